"""Intervals: all t, resampling, normal and score intervals of the package.

Most measures are a ratio of two sums over documents, Σ nats / Σ tokens, so long documents have more weight, as in the loss
of the whole text. The tokens of one document are not independent, so whole documents are the unit.

- **Documents**: the variance is the delete-one jackknife's, and the interval is Student's t, ``value ± t · error``. With
  documents of equal size this is the t-interval of a mean. With unequal sizes the degrees of freedom are those of the
  effective number of documents, (Σ size)² / Σ size² (Kish 1965), minus 1: where one document holds most of the text, the
  spread of the others says little about it. One seed's interval does not cover variation between seeds.
- **Seeds**: Student's t over the values of the seeds; where those of two groups are not paired, the variances are added, and
  the degrees of freedom are much like Welch's.
- **Documents and seeds**: the two variances are added, less what both contain: the variation of each seed on each document.
  The degrees of freedom are those of :func:`~contextwise.base.estimates.joint_freedom`.
- **Readings of a curve** (the context at which it is lowest) are no smooth functions of the sums. They have percentile
  bootstrap intervals over documents, at the levels of a t-interval (Hesterberg 2015, "What teachers should know about the
  bootstrap", Section 4.4), and none for fewer than six documents.
- **Shares** have Wilson's score interval, which has a positive width even if all observations are equal.

Fewer than six documents have an interval but no verdict (:data:`~contextwise.base.estimates.FEWEST_DOCUMENTS`).
``benchmarks/coverage.py`` measures how often these intervals contain the true value.

Shapes: R resamples, S seeds, N documents, K columns. A *block* is an array (S, N) of sums over each document; a value is the
sum over blocks of the mean over seeds of Σ block / Σ weights. A difference paired by seed is one block (a - b); an unpaired
difference is two blocks, a and -b.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from contextwise.base.estimates import CONFIDENCE, FEWEST_DOCUMENTS, Estimate, joint_freedom

RESAMPLES = 2000
SEED = 0
NORMAL = float(special.ndtri((1 + CONFIDENCE) / 2))
"""Half the width of a 95% normal interval, in standard errors."""
_ELEMENTS_AT_ONCE = 4_000_000

Interval = tuple[float, float]


class Part(NamedTuple):
    """The variance that a value has by one source (documents or seeds), and the degrees of freedom of its estimate."""

    variance: float
    freedom: float

    @property
    def half_width(self) -> float:
        """Half the width of the 95% t-interval by this source alone."""
        return student_t(self.freedom) * math.sqrt(self.variance)


# Documents


def leave_one_out(sums: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Ratios Σ sums / Σ sizes without each of N documents in turn, in the shape of ``sums``: (N,) or (N, K).

    Args:
        sizes: (N,), or of each column (N, K). A ratio is NaN where nothing is left.
    """
    sizes = sizes.reshape(len(sizes), *(1,) * (sums.ndim - sizes.ndim), *sizes.shape[1:])
    left = sizes.sum(axis=0) - sizes
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(left > 0, (sums.sum(axis=0) - sums) / left, np.nan)


def over_documents(value: float, left_out_N: np.ndarray, sizes_N: np.ndarray) -> Part | None:
    """The part of the documents in a value's uncertainty, by the jackknife; None for fewer than two documents with a size.

    Args:
        value: of a smooth function of sums over documents, such as a ratio, or a difference of ratios.
        left_out_N: the same without each document in turn, as by :func:`leave_one_out`.
        sizes_N: share of the text, in any unit, that each document has.
    """
    count = int((sizes_N > 0).sum())
    if count < 2 or np.isnan(left_out_N).any():
        return None
    return Part(float(np.square(left_out_N - value).sum()) * (count - 1) / count, effective_freedom(sizes_N))


def effective_number(sizes_N: np.ndarray) -> float:
    """The number of documents of equal size that weigh as much as these (Kish 1965)."""
    return float(sizes_N.sum()) ** 2 / float(np.square(sizes_N, dtype=float).sum())


def effective_freedom(sizes_N: np.ndarray) -> float:
    """Degrees of freedom of a variance over documents: their effective number minus 1, and 1 at least."""
    return max(1.0, effective_number(sizes_N) - 1)


def jackknife_estimate(value: float, left_out_N: np.ndarray, sizes_N: np.ndarray) -> Estimate:
    """A value with its t-interval over documents; arguments as for :func:`over_documents`."""
    part = over_documents(value, left_out_N, sizes_N)
    if part is None:
        return Estimate(float(value))
    documents = int((sizes_N > 0).sum())
    return plus_minus(value, part.half_width, method="t", documents=documents, freedom=part.freedom)


def ratios(sums: np.ndarray, sizes: dict[str, np.ndarray]) -> dict[str, Estimate]:
    """Σ sums / Σ size for each of ``sizes``, with t-intervals over documents; no interval for one document.

    Args:
        sums: (N,) sum over each document's scored tokens.
        sizes: name -> (N,) divisor (tokens, words, bytes), each with a positive sum.
    """
    sums = np.asarray(sums, dtype=np.float64)
    columns = {name: np.asarray(size, dtype=np.float64) for name, size in sizes.items()}
    return {
        name: jackknife_estimate(sums.sum() / size.sum(), leave_one_out(sums, size), size)
        for name, size in columns.items()
    }


def ratio_difference(a_2N: np.ndarray, b_2N: np.ndarray) -> Estimate:
    """Σ sums / Σ sizes of ``a`` minus that of ``b``, each (sums, sizes) of the same N documents, with its t-interval."""
    value = a_2N[0].sum() / a_2N[1].sum() - b_2N[0].sum() / b_2N[1].sum()
    shares_N = a_2N[1] / a_2N[1].sum() + b_2N[1] / b_2N[1].sum()
    return jackknife_estimate(value, leave_one_out(*a_2N) - leave_one_out(*b_2N), shares_N)


def mean_estimate(values_N: np.ndarray) -> Estimate:
    """The mean with its t-interval; no interval for a single value or equal values."""
    values = np.asarray(values_N, dtype=np.float64)
    mean, count = float(values.mean()), len(values)
    if np.ptp(values) == 0:
        return Estimate(mean)
    half = Part(float(values.var(ddof=1)) / count, count - 1).half_width
    return plus_minus(mean, half, method="t", n=count)


def mean_correlation(values_S: Sequence[float]) -> Estimate:
    """Mean of correlations, such as one a seed, by Fisher's transformation with its t-interval; none for a single one."""
    edge = 1 - 1e-15
    transformed = np.arctanh(np.clip(values_S, -edge, edge))
    return mean_estimate(transformed).map(math.tanh)


# Means over seeds and documents, and paired differences


def per_seed(block_SN: np.ndarray, weights_N: np.ndarray) -> np.ndarray:
    """(S,): Σ block / Σ weights for each seed."""
    return block_SN.sum(axis=1) / weights_N.sum()


def over_seeds(blocks: list[np.ndarray], weights_N: np.ndarray) -> Part | None:
    """The part of the seeds in the uncertainty of the blocks' value, by Welch; None if no block has several seeds."""
    parts = [
        Part(float(per_seed(block, weights_N).var(ddof=1)) / len(block), len(block) - 1)
        for block in blocks
        if len(block) > 1
    ]
    return joint(parts) if parts else None


def joint(parts: Sequence[tuple[float, float]], shared: float = 0.0, confidence: float = CONFIDENCE) -> Part:
    """The sum of variances, less what they share; at least the largest of them. For an interval at this confidence."""
    variances = [variance for variance, _ in parts]
    return Part(float(np.max([*variances, sum(variances) - shared])), joint_freedom(parts, confidence))


def shared_variance(block_SN: np.ndarray, weights_N: np.ndarray) -> float:
    """What the variance of the seeds' mean over documents, and that over seeds, both contain: seeds on single documents.

    The jackknife's variance over documents of one seed is that of documents and of seed and document together; of the mean of
    S seeds it contains an Sth of the second. So the difference of the two says how much that is. 0 for a single seed.
    """
    seeds, documents = block_SN.shape
    if seeds < 2:
        return 0.0
    columns = np.column_stack([*block_SN, block_SN.mean(axis=0)])
    away = leave_one_out(columns, weights_N) - columns.sum(axis=0) / weights_N.sum()
    *single, pooled = np.square(away).sum(axis=0) * (documents - 1) / documents
    return max(0.0, float(np.mean(single) - pooled)) / (seeds - 1)


def within_groups(groups: Iterable[Sequence[float]]) -> Part | None:
    """The pooled variance of one value within groups, such as the seeds of a context; None if no group has several values."""
    several = [np.asarray(group) for group in groups if len(group) > 1]
    freedom = sum(len(group) - 1 for group in several)
    if not freedom:
        return None
    return Part(sum(float(np.square(group - group.mean()).sum()) for group in several) / freedom, freedom)


def estimate(blocks: list[np.ndarray], weights_N: np.ndarray) -> Estimate:
    """The value of the blocks with its 95% interval over documents, and over seeds where a block has several.

    No interval for fewer than two documents with a weight.
    """
    value = _value(blocks, weights_N)
    kept = weights_N > 0
    weights = weights_N[kept].astype(np.float64)
    pooled_N = np.sum([block[:, kept].mean(axis=0) for block in blocks], axis=0)
    documents = over_documents(value, leave_one_out(pooled_N, weights), weights) if len(weights) else None
    if documents is None:
        return Estimate(value)
    of_seeds = over_seeds(blocks, weights_N)
    about: dict[str, Any] = {"method": "t", "documents": len(weights)}
    if of_seeds is None:
        return plus_minus(value, documents.half_width, freedom=documents.freedom, **about)
    seeds = min(len(block) for block in blocks if len(block) > 1)  # of one run alone no seeds are in the interval
    about |= {"seeds": seeds, "deviation": math.sqrt(of_seeds.variance * seeds) if len(blocks) == 1 else None}
    both = joint([documents, of_seeds], sum(shared_variance(block[:, kept], weights) for block in blocks))
    return plus_minus(value, both.half_width, freedom=both.freedom, parts=(documents, of_seeds), **about)


def seed_interval(blocks: list[np.ndarray], weights_N: np.ndarray) -> Interval | None:
    """The t-interval over seeds alone, for fixed documents; None if a block has one seed."""
    part = over_seeds(blocks, weights_N)
    if part is None or any(len(block) == 1 for block in blocks):
        return None
    value = _value(blocks, weights_N)
    return value - part.half_width, value + part.half_width


def estimate_over_seeds(a_S: np.ndarray, b_S: np.ndarray, paired: bool) -> Estimate:
    """Mean of ``a`` minus mean of ``b`` (one value per seed), with a t-interval if there are several seeds.

    ``paired``: the two have the same seeds in the same order.
    """
    weight = np.ones(1)
    blocks = [(a_S - b_S)[:, None]] if paired else [a_S[:, None], -b_S[:, None]]
    low, high = seed_interval(blocks, weight) or (None, None)
    part, seeds = over_seeds(blocks, weight), min(len(a_S), len(b_S))
    freedom = None if part is None else part.freedom
    return Estimate(float(a_S.mean() - b_S.mean()), low, high, method="t", seeds=seeds, freedom=freedom)


def with_seeds(over_documents: Estimate, values_S: np.ndarray) -> Estimate:
    """An estimate over documents with the variance of the seeds added to its interval.

    Args:
        values_S: the value with each seed alone; with one seed the estimate stays as it is.
    """
    if len(values_S) < 2 or not over_documents.has_interval:
        return over_documents
    seeds = Part(float(np.var(values_S, ddof=1)) / len(values_S), len(values_S) - 1)
    value, known = over_documents.value, over_documents.degrees_of_freedom
    # Each side by its own length, as a percentile interval's may differ.
    errors = [abs(limit - value) / student_t(known) for limit in over_documents.limits]
    sides = [joint([Part(error**2, known), seeds]) for error in errors]
    parts = (*(over_documents.parts or (Part(float(np.mean(errors)) ** 2, known),)), seeds)
    low, high = value - sides[0].half_width, value + sides[1].half_width
    about: dict[str, Any] = {"seeds": len(values_S), "freedom": joint(parts).freedom, "mapped": None, "parts": parts}
    return replace(over_documents, low=low, high=high, deviation=math.sqrt(seeds.variance * len(values_S)), **about)


def _value(blocks: list[np.ndarray], weights_N: np.ndarray) -> float:
    return float(sum(per_seed(block, weights_N).mean() for block in blocks))


# Resampling, for readings that are no smooth function of sums


def draw_counts(observations: int, seed: Any = SEED, resamples: int = RESAMPLES) -> Iterator[np.ndarray]:
    """Yield how often each of N observations is drawn in each resample: batches (≤ R, N) float64, R rows in total.

    A fixed seed draws the same observations for every statistic, so that the draws of two statistics are paired.
    """
    at_once = max(1, min(resamples, _ELEMENTS_AT_ONCE // max(1, observations)))  # about 4M numbers in memory
    draw = np.random.default_rng(seed)
    chances = np.full(observations, 1 / observations)
    for start in range(0, resamples, at_once):
        rows = min(at_once, resamples - start)
        yield draw.multinomial(observations, chances, size=rows).astype(float)


def resampled_ratios(sums_NK: np.ndarray, sizes: np.ndarray, seed: Any = SEED) -> np.ndarray:
    """Ratios (R, K) Σ sums / Σ sizes over resampled observations; ``sizes`` are shared (N,) or per column (N, K)."""
    sizes_NK = sizes if sizes.ndim == 2 else sizes[:, None]
    return np.concatenate([(counts @ sums_NK) / (counts @ sizes_NK) for counts in draw_counts(len(sums_NK), seed)])


def percentile_interval(draws_R: np.ndarray, confidence: float = CONFIDENCE, method: str = "linear") -> Interval:
    """The central interval of draws; ``method`` as for :func:`numpy.quantile`."""
    limits = [(1 - confidence) / 2, (1 + confidence) / 2]
    low, high = np.quantile(draws_R, limits, method=method)  # type: ignore[call-overload]
    return float(low), float(high)


def bootstrap_estimate(
    value: float, draws_R: np.ndarray, documents: int, method: str = "linear", freedom: float | None = None
) -> Estimate:
    """A value with the percentile interval of its resamples over documents, at the levels of a t-interval.

    A resample of N documents varies less than N new documents would, by (N - 1) / N, and its percentiles are a normal
    distribution's. So the quantile at Φ(-t √(N / (N - 1))) takes the place of the one at 2.5%. No interval for fewer than six
    documents: their resamples hold no such quantile. Of documents of unequal sizes the ``freedom`` is less than their number
    minus one (:func:`effective_freedom`).
    """
    if documents < FEWEST_DOCUMENTS:
        return Estimate(float(value))
    reach = student_t(documents - 1 if freedom is None else freedom) * math.sqrt(documents / (documents - 1))
    limits = percentile_interval(draws_R, 1 - 2 * float(special.ndtr(-reach)), method)
    return Estimate(float(value), *limits, method="bootstrap", documents=documents, freedom=freedom)


# Intervals in closed form


def student_t(freedom: float, confidence: float = CONFIDENCE) -> float:
    """Half the width of a t-interval in standard errors."""
    return float(special.stdtrit(freedom, (1 + confidence) / 2))


def plus_minus(value: float, half: float, **about: Any) -> Estimate:
    """``value ± half``, without an interval if that is not finite; ``about``: the other fields, such as the method."""
    limits = (float(value - half), float(value + half)) if math.isfinite(half) else (None, None)
    return Estimate(float(value), *limits, **about)


def wilson(value: float, n: int) -> Estimate:
    """A mean of ``n`` scores from 0 to 1 with Wilson's score interval.

    For scores strictly between 0 and 1 it is conservative, since their variance is at most p(1 - p).
    """
    z = NORMAL
    centre = (value + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(value * (1 - value) / n + z * z / (4 * n * n))
    low, high = (max(0.0, centre - half) if value > 0 else 0.0), (min(1.0, centre + half) if value < 1 else 1.0)
    return Estimate(value, low, high, n=n, method="Wilson")


def correlation_estimate(correlation: float, n: int) -> Estimate:
    """A correlation over ``n`` points with its interval by Fisher's transformation; no interval below four points."""
    if n < 4:
        return Estimate(correlation)
    edge = 1 - 1e-15
    middle, half = np.arctanh(np.clip(correlation, -edge, edge)), NORMAL / np.sqrt(n - 3)
    on_the_line = plus_minus(float(middle), float(half), n=n, method="Fisher", freedom=math.inf)
    return replace(on_the_line.map(math.tanh), value=correlation)
