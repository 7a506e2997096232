"""One training run: its rounds, its devices, and everything that is checked before it starts."""
