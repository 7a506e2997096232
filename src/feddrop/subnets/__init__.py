"""Subnets: what is kept of a network (masks, units), and how it travels (frames)."""
