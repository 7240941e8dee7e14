"""Comparisons of measured models: paired differences, budgets, ledgers, forgetting, context curves."""
