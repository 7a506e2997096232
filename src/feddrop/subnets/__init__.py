"""Subnets: parameters, blueprints, masks, units, and how a subnet is cut from a network."""
