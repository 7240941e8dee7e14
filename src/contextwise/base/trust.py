"""The user's choice about foreign Python code: that which comes with a model or tokenizer runs only if the user allows it."""

from types import SimpleNamespace

trust = SimpleNamespace(remote_code=False)
"""The choice for the whole process."""
