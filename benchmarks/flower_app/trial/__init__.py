"""A Flower app for tests and measurements."""
