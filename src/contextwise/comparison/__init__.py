"""Comparisons of measured models: paired differences, budgets, context curves."""
