"""Intervals: all resampling, t, normal and score intervals of the package.

Most measures are a ratio of two sums over documents, Σ nats / Σ tokens, so long documents have more weight, as in the loss
of the whole text. The tokens of one document are not independent, so whole documents are resampled.

- With one seed, the interval is the percentile bootstrap over documents. It does not cover variation between seeds.
- With several seeds, the variance over documents (bootstrap) and the variance of the mean over seeds are added, and the
  interval is ``value ± t · sqrt(sum)`` with Satterthwaite's degrees of freedom: between ``seeds - 1`` where the seeds dominate
  and ``documents - 1`` where the documents do.
- The crossed bootstrap (Owen 2007, "The pigeonhole bootstrap": seeds and documents are drawn independently) is reported in
  addition. Three seeds can be drawn in only ten ways and their spread is underestimated by a third, so it is too narrow if
  the seeds dominate: in simulations with three seeds its 95% interval covered the true value in 79% to 94% of cases, the
  interval above in 92% to 95%.
- Shares have Wilson's score interval, which has a positive width even if all observations are equal.

Shapes: R resamples, S seeds, N documents, K columns. A *block* is an array (S, N) of sums over each document; a value is the
sum over blocks of the mean over seeds of Σ block / Σ weights. A difference paired by seed is one block (a - b); an unpaired
difference is two blocks, a and -b.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from scipy import stats

from contextwise.base.estimates import CONFIDENCE, Estimate

RESAMPLES = 2000
SEED = 0
NORMAL = float(stats.norm.ppf((1 + CONFIDENCE) / 2))
"""Half the width of a 95% normal interval, in standard errors."""
_BOOTSTRAP = "percentile bootstrap"
_ELEMENTS_AT_ONCE = 4_000_000

Interval = tuple[float, float]


# Resampling


def bootstrap(
    samples: Sequence[np.ndarray], statistic: Callable[..., np.ndarray], paired: bool = True
) -> Any:
    """Run scipy's percentile bootstrap of a vectorized statistic of samples (N,), with 2000 resamples and a fixed seed."""
    return stats.bootstrap(
        samples,
        statistic,
        paired=paired,
        vectorized=True,
        n_resamples=RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        batch=_at_once(len(samples[0])),
        rng=np.random.default_rng(SEED),
    )


def bootstrap_estimate(
    value: float, samples: Sequence[np.ndarray], statistic: Callable[..., Any]
) -> Estimate:
    """A statistic of paired samples (N,) with its bootstrap interval; no interval for N = 1."""
    if len(samples[0]) < 2:
        return Estimate(value)
    low, high = bootstrap(samples, statistic).confidence_interval
    return Estimate(value, float(low), float(high), n=len(samples[0]), method=_BOOTSTRAP)


def draw_counts(observations: int, seed: Any = SEED, resamples: int = RESAMPLES) -> Iterator[np.ndarray]:
    """Yield how often each of N observations is drawn in each resample: batches (≤ R, N) float64, R rows in total.

    A fixed seed draws the same observations for every statistic, so that the draws of two statistics are paired.
    """
    draw, at_once = np.random.default_rng(seed), _at_once(observations)
    chances = np.full(observations, 1 / observations)
    for start in range(0, resamples, at_once):
        rows = min(at_once, resamples - start)
        yield draw.multinomial(observations, chances, size=rows).astype(float)


def resampled_ratios(sums_NK: np.ndarray, sizes: np.ndarray, seed: Any = SEED) -> np.ndarray:
    """Ratios (R, K) Σ sums / Σ sizes over resampled observations; ``sizes`` are shared (N,) or per column (N, K)."""
    sizes_NK = sizes if sizes.ndim == 2 else sizes[:, None]
    return np.concatenate(
        [(counts @ sums_NK) / (counts @ sizes_NK) for counts in draw_counts(len(sums_NK), seed)]
    )


def percentile_interval(
    draws_R: np.ndarray, confidence: float = CONFIDENCE, method: str = "linear"
) -> Interval:
    """The central interval of draws; ``method`` as for :func:`numpy.quantile`."""
    limits = [(1 - confidence) / 2, (1 + confidence) / 2]
    low, high = np.quantile(draws_R, limits, method=method)  # type: ignore[call-overload]
    return float(low), float(high)


def percentile_estimate(value: float, draws_R: np.ndarray | None, method: str = "linear") -> Estimate:
    """A value with the percentile interval of its resamples; no interval without resamples."""
    if draws_R is None:
        return Estimate(float(value))
    return Estimate(float(value), *percentile_interval(draws_R, method=method), method=_BOOTSTRAP)


# Means and ratios over documents


def mean_estimate(values_N: np.ndarray) -> Estimate:
    """The mean with its bootstrap interval; no interval for a single value or equal values."""
    values = np.asarray(values_N, dtype=np.float64)
    mean = float(values.mean())
    return Estimate(mean) if np.ptp(values) == 0 else bootstrap_estimate(mean, (values,), np.mean)


def ratios(nats: np.ndarray, sizes: dict[str, np.ndarray]) -> dict[str, Estimate]:
    """Σ nats / Σ size for each of ``sizes``, with bootstrap intervals over documents; no interval for one document.

    Args:
        nats: (N,) sum over each document's scored tokens.
        sizes: name -> (N,) divisor (tokens, words, bytes), each with a positive sum.
    """
    nats = np.asarray(nats, dtype=np.float64)
    columns = [np.asarray(size, dtype=np.float64) for size in sizes.values()]
    values = [float(nats.sum() / column.sum()) for column in columns]
    if len(nats) < 2:
        return {name: Estimate(value) for name, value in zip(sizes, values, strict=True)}

    def statistic(nats: np.ndarray, *columns: np.ndarray, axis: int) -> np.ndarray:
        return np.stack([nats.sum(axis=axis) / column.sum(axis=axis) for column in columns])

    interval = bootstrap((nats, *columns), statistic).confidence_interval
    limits = zip(np.atleast_1d(interval.low), np.atleast_1d(interval.high), strict=True)
    return {
        name: Estimate(value, float(low), float(high), n=len(nats), method=_BOOTSTRAP)
        if np.isfinite([low, high]).all()
        else Estimate(value)
        for name, value, (low, high) in zip(sizes, values, limits, strict=True)
    }


# Means over seeds and documents, and paired differences


def per_seed(block_SN: np.ndarray, weights_N: np.ndarray) -> np.ndarray:
    """(S,): Σ block / Σ weights for each seed."""
    return block_SN.sum(axis=1) / weights_N.sum()


def estimate(blocks: list[np.ndarray], weights_N: np.ndarray) -> Estimate:
    """The value of the blocks with its 95% interval; no interval for fewer than two documents."""
    value = float(sum(per_seed(block, weights_N).mean() for block in blocks))
    kept = weights_N > 0
    if kept.sum() < 2:
        return Estimate(value)
    pooled_N = sum(block[:, kept].mean(axis=0) for block in blocks)
    over_documents = bootstrap((pooled_N, weights_N[kept]), _ratio)
    documents = int(kept.sum())
    if all(len(block) == 1 for block in blocks):
        low, high = map(float, over_documents.confidence_interval)
        return Estimate(value, low, high, n=documents, method=_BOOTSTRAP)
    variance = float(over_documents.bootstrap_distribution.var(ddof=1))
    half = _half_width([*_seed_variances(blocks, weights_N), (variance, documents - 1)])
    seeds = min(len(block) for block in blocks)
    return plus_minus(value, half, n=seeds, method="t over seeds and documents (Satterthwaite)")


def seed_interval(blocks: list[np.ndarray], weights_N: np.ndarray) -> Interval | None:
    """The t-interval over seeds alone, for fixed documents; None if a block has one seed."""
    if any(len(block) == 1 for block in blocks):
        return None
    value = float(sum(per_seed(block, weights_N).mean() for block in blocks))
    half = _half_width(_seed_variances(blocks, weights_N))
    return value - half, value + half


def crossed_interval(blocks: list[np.ndarray], weights_N: np.ndarray) -> Interval | None:
    """Percentile interval of the crossed bootstrap; None with one seed or one document."""
    kept = weights_N > 0
    several = [block for block in blocks if len(block) > 1]
    if not several or kept.sum() < 2:
        return None
    weights = weights_N[kept]
    single_N = sum((block[0, kept] for block in blocks if len(block) == 1), np.zeros_like(weights))

    def statistic(documents: np.ndarray, *seeds: np.ndarray, axis: int) -> np.ndarray:
        documents = documents.astype(int)
        total = single_N[documents].sum(axis=axis)
        for block, drawn in zip(several, seeds, strict=True):
            rows = np.stack([row[documents].sum(axis=axis) for row in block[:, kept]], axis=-1)
            total = total + np.take_along_axis(rows, drawn.astype(int), axis=-1).mean(axis=-1)
        return total / weights[documents].sum(axis=axis)

    samples = (np.arange(len(weights)), *(np.arange(len(block)) for block in several))
    low, high = bootstrap(samples, statistic, paired=False).confidence_interval
    return float(low), float(high)


def estimate_over_seeds(a_S: np.ndarray, b_S: np.ndarray, paired: bool) -> Estimate:
    """Mean of ``a`` minus mean of ``b`` (one value per seed), with a t-interval if there are several seeds.

    ``paired``: the two have the same seeds in the same order.
    """
    weight = np.ones(1)
    blocks = [(a_S - b_S)[:, None]] if paired else [a_S[:, None], -b_S[:, None]]
    low, high = seed_interval(blocks, weight) or (None, None)
    seeds = min(len(a_S), len(b_S))
    return Estimate(float(a_S.mean() - b_S.mean()), low, high, n=seeds, method="t over seeds")


def _ratio(values: np.ndarray, weights: np.ndarray, axis: int) -> np.ndarray:
    return values.sum(axis=axis) / weights.sum(axis=axis)


def _seed_variances(blocks: list[np.ndarray], weights_N: np.ndarray) -> list[tuple[float, int]]:
    """(variance of the mean over seeds, degrees of freedom) of each block with several seeds."""
    return [
        (float(per_seed(block, weights_N).var(ddof=1)) / len(block), len(block) - 1)
        for block in blocks
        if len(block) > 1
    ]


def _half_width(terms: list[tuple[float, int]]) -> float:
    """Half the width of a t-interval; the terms (variance, degrees of freedom) are independent and are summed."""
    variance = sum(term for term, _ in terms)
    if variance == 0:
        return 0.0
    freedom = variance**2 / sum(term**2 / degrees for term, degrees in terms)
    return student_t(freedom) * math.sqrt(variance)


# Intervals in closed form


def student_t(freedom: float) -> float:
    """Half the width of a 95% t-interval in standard errors."""
    return float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom))


def plus_minus(value: float, half: float, n: int | None = None, method: str = "") -> Estimate:
    """``value ± half``."""
    return Estimate(float(value), float(value - half), float(value + half), n=n, method=method)


def wilson(value: float, n: int) -> Estimate:
    """A mean of ``n`` scores from 0 to 1 with Wilson's score interval.

    For scores strictly between 0 and 1 it is conservative, since their variance is at most p(1 - p).
    """
    z = NORMAL
    centre = (value + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(value * (1 - value) / n + z * z / (4 * n * n))
    return Estimate(value, max(0.0, centre - half), min(1.0, centre + half), n=n, method="Wilson")


def correlation_estimate(correlation: float, n: int) -> Estimate:
    """A correlation over ``n`` points with its interval by Fisher's transformation; no interval below four points."""
    if n < 4:
        return Estimate(correlation)
    edge = 1 - 1e-15
    middle, half = np.arctanh(np.clip(correlation, -edge, edge)), NORMAL / np.sqrt(n - 3)
    low, high = float(np.tanh(middle - half)), float(np.tanh(middle + half))
    return Estimate(correlation, low, high, n=n, method="Fisher")


def _at_once(observations: int) -> int:
    """Number of resamples to draw together, so that about 4M numbers are in memory for any corpus."""
    return max(1, min(RESAMPLES, _ELEMENTS_AT_ONCE // max(1, observations)))
