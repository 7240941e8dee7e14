"""Sweeps: grids of model sizes and training contexts, on this machine or on a Ray cluster."""

from contextwise.experiments.sweep.settings import SweepRecipe, load_sweep
from contextwise.experiments.sweep.sweep import Sweep, grid_runs, notes, run_sweep

__all__ = ["Sweep", "SweepRecipe", "grid_runs", "load_sweep", "notes", "run_sweep"]
