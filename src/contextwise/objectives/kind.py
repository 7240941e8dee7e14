"""The kinds of language model that examples are made for; standalone exports include this module."""

from typing import Literal

Kind = Literal["decoder", "encoder", "encoder-decoder"]
TRAINED_POOLING = "embedding_pooling"
"""Attribute of the configuration of a model with trained embeddings: their pooling, which is its default."""
