"""From sums over documents to loss, perplexities and bits per byte, with intervals over documents.

Every measure is a ratio of two sums over documents, a ratio estimator: long documents count for more, as they
do in the loss of the text as a whole.

    loss             = Σ nats / Σ tokens             nats per token
    perplexity       = exp(Σ nats / Σ tokens)        per token
    word perplexity  = exp(Σ nats / Σ words)         words: separated by white space in the source text
    byte perplexity  = exp(Σ nats / Σ bytes)         bytes: of the source text in UTF-8
    bits per byte    = Σ nats / (ln 2 · Σ bytes)

The intervals are percentile bootstrap intervals: whole documents are drawn with replacement, since the tokens
of one document are not independent of each other.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

CONFIDENCE = 0.95
RESAMPLES = 2000
SEED = 0
_ELEMENTS_AT_ONCE = 4_000_000


@dataclass(frozen=True)
class Estimate:
    """A value with the two ends of its interval; the ends are None where the data allow no interval."""

    value: float
    low: float | None = None
    high: float | None = None

    def map(self, function: Callable[[float], float]) -> "Estimate":
        """Apply an increasing function to the value and both ends (percentile intervals carry over)."""
        ends = [None if end is None else function(end) for end in (self.low, self.high)]
        return Estimate(function(self.value), *ends)

    def to_dict(self) -> dict[str, float | None]:
        """``{"value", "low", "high"}``, with None for what is not finite (JSON has no infinity)."""
        ends = {"value": self.value, "low": self.low, "high": self.high}
        return {name: end if end is not None and math.isfinite(end) else None for name, end in ends.items()}


def exponential(value: float) -> float:
    """``exp(value)``; infinity where a float cannot hold it."""
    return math.exp(value) if value < 709.0 else math.inf


def resamples_at_once(observations: int) -> int:
    """How many resamples to draw together, so that memory holds about 4M numbers for any corpus."""
    return max(1, min(RESAMPLES, _ELEMENTS_AT_ONCE // max(1, observations)))


def bootstrap(
    samples: Sequence[np.ndarray], statistic: Callable[..., np.ndarray], paired: bool = True
) -> Any:
    """scipy's percentile bootstrap of a vectorized statistic, as it is done everywhere here: 95%, 2000 resamples, fixed seed.

    Args:
        samples: (N,) each.
        statistic: takes arrays like ``samples``, and ``axis``.
        paired: whether the samples' elements are drawn together.
    """
    return stats.bootstrap(
        samples,
        statistic,
        paired=paired,
        vectorized=True,
        n_resamples=RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        batch=resamples_at_once(len(samples[0])),
        rng=np.random.default_rng(SEED),
    )


def ratios(nats: np.ndarray, sizes: dict[str, np.ndarray]) -> dict[str, Estimate]:
    """Σ nats / Σ size for each of ``sizes``, with 95% intervals over documents (2000 resamples, fixed seed).

    Args:
        nats: (documents,) summed over each document's scored tokens.
        sizes: name -> (documents,) what to divide by (tokens, words, bytes), all of them with a positive sum.

    Returns:
        An estimate in nats for each name. With one document there is no interval.
    """
    nats = np.asarray(nats, dtype=np.float64)
    columns = [np.asarray(size, dtype=np.float64) for size in sizes.values()]
    values = [float(nats.sum() / column.sum()) for column in columns]
    if len(nats) < 2:
        return {name: Estimate(value) for name, value in zip(sizes, values, strict=True)}

    def statistic(nats: np.ndarray, *columns: np.ndarray, axis: int) -> np.ndarray:
        return np.stack([nats.sum(axis=axis) / column.sum(axis=axis) for column in columns])

    interval = bootstrap((nats, *columns), statistic).confidence_interval
    ends = zip(np.atleast_1d(interval.low), np.atleast_1d(interval.high), strict=True)
    return {
        name: Estimate(value, float(low), float(high)) if np.isfinite([low, high]).all() else Estimate(value)
        for name, value, (low, high) in zip(sizes, values, ends, strict=True)
    }


def measures(
    nats: np.ndarray, tokens: np.ndarray, words: np.ndarray | None, n_bytes: np.ndarray | None
) -> dict[str, dict[str, Any] | None]:
    """All the measures of this module, as they stand in ``summary.json``.

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
    found = ratios(nats, {"tokens": tokens, **sizes})

    def shown(size: str, function: Callable[[float], float]) -> dict[str, Any] | None:
        return found[size].map(function).to_dict() if size in found else None

    return {
        "loss": found["tokens"].to_dict(),
        "perplexity": shown("tokens", exponential),
        "word_perplexity": shown("words", exponential),
        "byte_perplexity": shown("bytes", exponential),
        "bits_per_byte": shown("bytes", lambda nats_per_byte: nats_per_byte / math.log(2)),
    }
