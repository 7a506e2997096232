"""A federated-dropout device in NumPy, as a Flower app."""
