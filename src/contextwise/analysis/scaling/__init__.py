"""Scaling laws of a sweep: the loss over training context, model size and data, and what they recommend for a budget."""

from contextwise.analysis.scaling.analysis import Analysis, analyse
from contextwise.analysis.scaling.hindcast import Hindcast, hindcast
from contextwise.analysis.scaling.observations import Observations, read_observations
from contextwise.analysis.scaling.planning import Budget, Plan, make_plan

__all__ = [
    "Analysis",
    "Budget",
    "Hindcast",
    "Observations",
    "Plan",
    "analyse",
    "hindcast",
    "make_plan",
    "read_observations",
]
