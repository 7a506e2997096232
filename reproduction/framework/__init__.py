"""What the experiments share: scales, stored runs, claims, verdicts, the page."""
