"""Sweeps: grids of model sizes and training contexts, their points, and their page."""
