"""Corpora on disk: reading, token storage and writing."""

from contextwise.data.corpus.corpus import MANIFEST, Corpus

__all__ = ["MANIFEST", "Corpus"]
