"""Corpora on disk: reading, token storage, manifest and writing."""

from contextwise.data.corpus.corpus import Corpus

__all__ = ["Corpus"]
