"""Sweeps over sizes and contexts, transfer of learning rates, scaling laws, and the planner."""

from typing import TYPE_CHECKING

from contextwise.base.lazy import lazy_exports

if TYPE_CHECKING:
    from contextwise_plan.api import sweep
    from contextwise_plan.optimum import Landscape
    from contextwise_plan.sweeps.points import SweepPoint, run_points, sweep_points
    from contextwise_plan.sweeps.recipe import load_sweep
    from contextwise_plan.sweeps.sweep import Sweep

__all__ = ["Landscape", "Sweep", "SweepPoint", "load_sweep", "run_points", "sweep", "sweep_points"]
__getattr__, __dir__ = lazy_exports(__name__)
