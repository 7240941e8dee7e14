"""Loss, perplexities and bits per byte from sums over documents, with intervals over documents.

Every measure is a ratio of two sums over documents, a ratio estimator: long documents have more weight, as they
do in the loss of the complete text.

    loss             = Σ nats / Σ tokens             nats per token
    perplexity       = exp(Σ nats / Σ tokens)        per token
    word perplexity  = exp(Σ nats / Σ words)         words: separated by white space in the source text
    byte perplexity  = exp(Σ nats / Σ bytes)         bytes: of the source text in UTF-8
    bits per byte    = Σ nats / (ln 2 · Σ bytes)

The intervals are percentile bootstrap intervals over documents (:mod:`contextwise.base.intervals`).
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from contextwise.base.estimates import exponential
from contextwise.base.intervals import ratios


def measures(
    nats: np.ndarray, tokens: np.ndarray, words: np.ndarray | None, n_bytes: np.ndarray | None
) -> dict[str, dict[str, Any] | None]:
    """Compute all measures of this module, in the format of ``summary.json``.

    Args:
        nats: (documents,) summed over each document's scored tokens.
        tokens: (documents,) targets scored in each document.
        words: (documents,) words of each document's text; None if the corpus does not know.
        n_bytes: (documents,) UTF-8 bytes of each document's text; None if the corpus does not know.

    Returns:
        ``loss``, ``perplexity``, ``word_perplexity``, ``byte_perplexity``, ``bits_per_byte``; each a
        dictionary ``{"value", "low", "high"}``, or None where words or bytes are not known (or are all zero).
    """
    optional = {"words": words, "bytes": n_bytes}
    sizes = {name: size for name, size in optional.items() if size is not None and np.sum(size) > 0}
    estimates = ratios(nats, {"tokens": tokens, **sizes})

    def shown(size: str, function: Callable[[float], float]) -> dict[str, Any] | None:
        return estimates[size].map(function).to_dict() if size in estimates else None

    return {
        "loss": estimates["tokens"].to_dict(),
        "perplexity": shown("tokens", exponential),
        "word_perplexity": shown("words", exponential),
        "byte_perplexity": shown("bytes", exponential),
        "bits_per_byte": shown("bytes", lambda nats_per_byte: nats_per_byte / math.log(2)),
    }
