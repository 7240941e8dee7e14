"""Experiments: sets of training runs (arms × seeds × a grid), trials and the demo."""
