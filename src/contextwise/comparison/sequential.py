"""Sequential comparison of two models: an interval for the mean paired difference that may be looked at after every seed.

Differences of seeds are independent draws with an unknown mean μ and an unknown standard deviation. The *mixture t*
confidence sequence (Lai 1976, "On confidence sequences"; Wang and Ramdas 2024, arXiv:2310.03722) holds the values of μ that no
look has refuted. Under the hypothesis μ = m the Bayes factor of the t statistic, with the prior N(0, g) on the effect size
(μ - m) / σ, is a martingale in n that starts at 1, for every σ:

    B_n = (1 + n g)^(-1/2) · [(1 + T) / (1 + T / (1 + n g))]^(n/2),    T = t² / (n - 1),   t = √n (mean - m) / s

By Ville's inequality it ever exceeds 1/α with probability at most α. So the intervals {m : B_n < 1/α} hold the true mean after
*all* seeds at once with confidence 1 - α, and a trial may stop after any of them. The interval has a closed form,
``mean ± h_n · s`` with the sample standard deviation s; there is none below four seeds. Neither ``confseq`` (bounded
or sub-Gaussian observations) nor ``ville`` (asymptotic intervals) nor scipy has it.

Documents are random too. There are two readings of a difference:

- ``fixed``: the mean over seeds on these very documents. The sequence above.
- ``random``: the mean over seeds on any documents like these. The documents add a fixed error that no number of seeds reduces:
  ``half² = (h_n · s)² + (t_ν · e)²`` with the jackknife's error e over documents of the mean over the seeds so far, and
  Student's t with the degrees of freedom of the effective number of documents (:mod:`contextwise.base.intervals`).

``python -m benchmarks.sequential`` measures how often the intervals miss, and how many seeds a decision takes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats

from contextwise.base.errors import DataError
from contextwise.base.estimates import CONFIDENCE, FEWEST_DOCUMENTS, Estimate
from contextwise.base.intervals import leave_one_out, over_documents, plus_minus

PRIOR_VARIANCE = 8.0
"""g, the variance of the effect size under the prior. Between 4 and 16 the width at 4 to 30 seeds changes by less than 10%;
smaller values need more seeds for a first interval, larger ones have wider intervals later."""
FEWEST_SEEDS = 4
"""No interval is given for fewer: three seeds decide large differences only, and too easily where differences are not normal
and three of them happen to lie close together."""
Documents = Literal["fixed", "random"]
Decision = Literal["better", "worse", "equivalent", "undecided"]


def half_widths(seeds: int, confidence: float = CONFIDENCE) -> np.ndarray:
    """(seeds,) half width of the interval after each seed, in sample standard deviations; infinite after the first seeds."""
    n = np.arange(1, seeds + 1, dtype=float)
    spread = 1 + n * PRIOR_VARIANCE
    bound = (spread / (1 - confidence) ** 2) ** (1 / n)
    with np.errstate(divide="ignore", invalid="ignore"):
        squared = (bound - 1) / (1 - bound / spread) * (n - 1) / n
    return np.where((bound < spread) & (n >= FEWEST_SEEDS), np.sqrt(np.abs(squared)), np.inf)


def sequence_limits(differences: np.ndarray, confidence: float = CONFIDENCE) -> tuple[np.ndarray, np.ndarray]:
    """Means and half widths after each seed, for one sequence of differences or many.

    Args:
        differences: (..., S), in the order in which the seeds were looked at.

    Returns:
        Two arrays (..., S); a half width is infinite where the seeds allow no interval yet.
    """
    differences = np.asarray(differences, dtype=np.float64)
    seeds = differences.shape[-1]
    n = np.arange(1, seeds + 1)
    shift = differences[..., :1]  # differences close to each other keep their digits
    centred = differences - shift
    mean = centred.cumsum(-1) / n
    squares = np.maximum((centred**2).cumsum(-1) - n * mean**2, 0)
    deviation = np.sqrt(squares / np.maximum(n - 1, 1))
    widths = np.broadcast_to(half_widths(seeds, confidence), deviation.shape)
    half = np.full(deviation.shape, np.inf)
    np.multiply(widths, deviation, out=half, where=np.isfinite(widths))
    return mean + shift, half


def document_half_width(differences_SN: np.ndarray, tokens_N: np.ndarray, confidence: float = CONFIDENCE) -> float:
    """Half width of the t interval over documents, of the mean over seeds; infinite below six documents.

    Args:
        differences_SN: (S, N) difference of the summed nats of each document.
        tokens_N: (N,) scored tokens of each document.
    """
    if int((tokens_N > 0).sum()) < FEWEST_DOCUMENTS:
        return math.inf
    means_N = differences_SN.mean(axis=0)
    value = float(means_N.sum() / tokens_N.sum())
    part = over_documents(value, leave_one_out(means_N, tokens_N), tokens_N)
    assert part is not None
    return float(stats.t.ppf((1 + confidence) / 2, part.freedom)) * math.sqrt(part.variance)


@dataclass(frozen=True)
class Look:
    """What is known after a number of seeds.

    Attributes:
        fixed: the mean difference on these documents, nats per token, with its anytime-valid interval.
        random: the same on any documents like these.
        deviation: standard deviation of the differences by seed; 0 for one seed.
        evidence: the Bayes factor against a mean of zero on these documents, an e-value: without a difference its
            expectation is at most 1 wherever the seeds stop.
    """

    seeds: int
    fixed: Estimate
    random: Estimate
    deviation: float
    evidence: float

    def of(self, documents: Documents) -> Estimate:
        """The estimate of one of the two readings."""
        return self.fixed if documents == "fixed" else self.random


def looks(
    differences_SN: np.ndarray, tokens_N: np.ndarray, confidence: float = CONFIDENCE, unit: str = "nats per token"
) -> list[Look]:
    """What is known after each seed.

    Args:
        differences_SN: (S, N) arm minus reference: difference of the summed nats of each document, seed by seed.
        tokens_N: (N,) scored tokens of each document.
        confidence: of each of the intervals, over all looks.

    Raises:
        DataError: a difference is not finite, or no token was scored.
    """
    differences_SN = np.asarray(differences_SN, dtype=np.float64)
    tokens_N = np.asarray(tokens_N, dtype=np.float64)
    total = float(tokens_N.sum())
    if not np.isfinite(differences_SN).all() or total <= 0:
        raise DataError("a paired difference is not finite; a run of the trial has no valid loss")
    by_seed = differences_SN.sum(axis=1) / total
    means, halves = sequence_limits(by_seed, confidence)
    result = []
    for seeds in range(1, len(by_seed) + 1):
        half = float(halves[seeds - 1])
        of_documents = document_half_width(differences_SN[:seeds], tokens_N, confidence)
        about = {"unit": unit, "seeds": seeds, "confidence": confidence}
        mean, scored = float(means[seeds - 1]), int((tokens_N > 0).sum())
        fixed = plus_minus(mean, half, method="mixture t sequence", **about)
        about |= {"method": "mixture t sequence and t", "documents": scored}
        random = plus_minus(mean, math.hypot(half, of_documents), **about)
        deviation = float(by_seed[:seeds].std(ddof=1)) if seeds > 1 else 0.0
        result.append(Look(seeds, fixed, random, deviation, evidence(mean, deviation, seeds)))
    return result


def evidence(mean: float, deviation: float, seeds: int) -> float:
    """The Bayes factor B_n against a mean of zero.

    Args:
        deviation: standard deviation of the differences by seed.
    """
    spread = 1 + seeds * PRIOR_VARIANCE
    if seeds < 2:
        return 1.0
    factor = seeds * math.log(spread) if mean else 0.0
    if deviation:
        squared = seeds * (mean / deviation) ** 2 / (seeds - 1)
        factor = seeds * (math.log1p(squared) - math.log1p(squared / spread))
    return math.exp(min((factor - math.log(spread)) / 2, 700.0))  # more is no number of JSON


def discoveries(evidence_K: Sequence[float], rate: float = 0.1) -> list[bool]:
    """Which of K hypotheses of no difference are rejected, so that on average at most a share ``rate`` of those is true.

    e-BH (Wang and Ramdas 2022, "False discovery rate control with e-values"): the k with the most evidence, for the largest k
    for which each of them has K / (rate · k) or more. It holds for any dependence between the trials, wherever each stops.
    """
    values = np.sort(np.asarray(evidence_K, dtype=float))[::-1]
    enough = np.flatnonzero(values >= len(values) / (rate * np.arange(1, len(values) + 1)))
    least = values[enough[-1]] if len(enough) else math.inf
    return [bool(value >= least) for value in evidence_K]


def decide(difference: Estimate, margin: float) -> Decision:
    """The decision that an interval of a difference in loss (arm minus reference) allows.

    ``equivalent``: the interval lies within ± ``margin``; ``better`` or ``worse``: it lies below or above zero.
    """
    low, high = difference.limits
    if -margin <= low and high <= margin:
        return "equivalent"
    if high < 0:
        return "better"
    return "worse" if low > 0 else "undecided"


def simultaneous(confidence: float, comparisons: int) -> float:
    """The confidence of each of several intervals that hold together with ``confidence`` (Bonferroni)."""
    return 1 - (1 - confidence) / comparisons


def upper_deviation(deviation: float, seeds: int, confidence: float = 0.8) -> float:
    """Upper limit of a standard deviation that was estimated from a number of seeds."""
    return deviation * math.sqrt((seeds - 1) / float(stats.chi2.ppf(1 - confidence, seeds - 1)))


def deviation_limits(deviation: float, seeds: int, confidence: float = 0.8) -> tuple[float, float]:
    """Both limits of a standard deviation that was estimated from a number of seeds."""
    low, high = stats.chi2.ppf([(1 + confidence) / 2, (1 - confidence) / 2], seeds - 1)
    return deviation * math.sqrt((seeds - 1) / low), deviation * math.sqrt((seeds - 1) / high)


def seeds_to_decide(
    difference: float,
    deviation: float,
    margin: float,
    confidence: float = CONFIDENCE,
    documents: float = 0.0,
    power: float = 0.8,
    most: int = 200,
    on_these: bool = False,
) -> int | None:
    """The seeds within which a true difference is decided with probability ``power``; None: not within ``most`` seeds.

    2,000 trials of normal differences are drawn, with a fixed random seed.

    Args:
        documents: half width over documents, for a decision about any documents.
        on_these: ``difference`` is that on the documents at hand; otherwise each trial has documents of its own.
    """
    draw = np.random.default_rng(0)
    draws = draw.normal(difference, deviation, (2000, most))
    if documents and not on_these:
        draws += draw.normal(0, documents / stats.norm.ppf((1 + confidence) / 2), (2000, 1))
    means, halves = sequence_limits(draws, confidence)
    halves = np.hypot(halves, documents)
    decided = (means + halves < 0) | (means - halves > 0) | (np.abs(means) + halves <= margin)
    share = np.maximum.accumulate(decided, axis=1).mean(axis=0)
    reached = np.flatnonzero(share >= power)
    return int(reached[0]) + 1 if len(reached) else None


def least_difference(deviation: float, seeds: int, confidence: float = CONFIDENCE, documents: float = 0.0) -> float:
    """The smallest observed difference that would be decided after a number of seeds, nats per token."""
    half = float(half_widths(seeds, confidence)[-1])
    return math.hypot(half * deviation, documents) if math.isfinite(half) else math.inf
