"""A Flower app for tests and benchmarks."""
