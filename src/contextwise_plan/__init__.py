"""Sweeps over sizes and contexts, transfer of learning rates, scaling laws, and the planner."""
