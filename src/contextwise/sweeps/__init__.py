"""A grid of training runs with stable ids, on this machine or on a Ray cluster."""

from contextwise.sweeps.folder import PlannedRun, RunState, Sweep
from contextwise.sweeps.grid import SweepRecipe, load_sweep
from contextwise.sweeps.run import claimed, run_sweep

__all__ = ["PlannedRun", "RunState", "Sweep", "SweepRecipe", "claimed", "load_sweep", "run_sweep"]
