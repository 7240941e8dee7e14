"""Fixtures of the tests of objectives."""

from objective_corpora import bpe, corpus, known, letters, modules  # noqa: F401
