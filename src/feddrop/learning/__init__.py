"""Learning: local training, losses and measures, means of updates, server optimizers."""
