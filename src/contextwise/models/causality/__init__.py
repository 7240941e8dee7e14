"""Measure whether a causal language model leaks later tokens into earlier predictions, for any Hugging Face model."""

from contextwise.models.causality.effects import Causality, Effect
from contextwise.models.causality.measure import measure_causality
from contextwise.models.causality.rows import TOLERANCE

__all__ = ["TOLERANCE", "Causality", "Effect", "measure_causality"]
