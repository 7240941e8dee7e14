"""Scaling laws of a sweep: the loss over training context, model size and data, and what they recommend for a budget."""

from contextwise.analysis.scaling.analysis import analyse
from contextwise.analysis.scaling.hindcast import hindcast
from contextwise.analysis.scaling.observations import Observations, read_observations
from contextwise.analysis.scaling.planning import Budget, make_plan

__all__ = ["Budget", "Observations", "analyse", "hindcast", "make_plan", "read_observations"]
