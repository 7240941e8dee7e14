"""A corpus on disk: opening it, how its tokens are stored, its manifest, and writing one."""

from contextwise.data.corpus.corpus import Corpus

__all__ = ["Corpus"]
