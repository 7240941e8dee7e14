"""Scaling laws of a sweep: the loss over training context, model size and data, and what they recommend for a budget."""

from contextwise.analysis.scaling.analysis import Analysis
from contextwise.analysis.scaling.hindcast import Hindcast
from contextwise.analysis.scaling.observations import Observations, read_observations, read_table, write_table
from contextwise.analysis.scaling.planning import Budget, Plan, PlanJson

__all__ = [
    "Analysis",
    "Budget",
    "Hindcast",
    "Observations",
    "Plan",
    "PlanJson",
    "read_observations",
    "read_table",
    "write_table",
]
