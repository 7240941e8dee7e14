"""A grid of training runs with stable ids, on this machine or on a Ray cluster."""
