"""Number of examples of property tests."""

from hypothesis import settings

FEW = settings(max_examples=settings().max_examples // 10)
"""For properties of whole models, whose examples cost more: 5 in ``make test``, 20 in ``make test-all``."""
