"""Scaling laws of a sweep: the loss over training context, model size and data, and what they recommend for a budget."""
