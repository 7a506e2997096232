"""Learning: local steps, how updates are averaged, and what the server does with the mean."""
