"""One training run: its preparation and checks, its rounds and its devices."""
