"""Federated dropout as a Flower app."""
