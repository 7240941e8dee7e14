"""Readings written by hand: no model."""

import numpy as np

from contextwise_papers.contextlm.attention import ModelReading, Reading

PIECES = ["<|endoftext|>", "The", " <b>", " said", " &", "\n", "more", ",", " “x”", "."]


def model(name: str, seed: int, layers: int = 2, heads: int = 3, chunk_size: int | None = None) -> ModelReading:
    """A model whose attention is that of random scores, with a sink at the first token."""
    random = np.random.default_rng(seed)

    def sums(length: int) -> np.ndarray:
        scores = random.normal(size=(heads, length, length))
        scores[:, :, 0] += 2
        weights = np.tril(np.exp(scores))
        return (weights / weights.sum(axis=-1, keepdims=True)).sum(axis=1).astype(np.float32)

    return ModelReading(f"runs/{name}", name, [sums(len(PIECES)) for _ in range(layers)], chunk_size)


def reading(*models: ModelReading, chunk_size: int = 4) -> Reading:
    return Reading(list(PIECES), list(range(len(PIECES))), True, chunk_size, list(models))
