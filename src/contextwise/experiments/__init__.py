"""Experiments: sets of training runs (arms × seeds × a grid), sweeps and the demo."""
