"""Sequential comparison of two models: an interval for the mean paired difference that may be looked at after every seed.

Differences of seeds are independent normal draws with an unknown mean μ and an unknown standard deviation. The *t sequence*
is ``mean ± h_n · s`` after n seeds, with their standard deviation s. Its widths spend the error α as n grows (Lan and DeMets
1983, "Discrete sequential boundaries for clinical trials"): the intervals of the first n seeds miss μ, any of them, with
probability α (1 - (3 / n)^1.5). So a trial may stop after any seed, and the number of seeds need not be known before. There
is no interval below four seeds.

The widths are computed, at most 0.12% too wide. With u_n = Σx / √(Σx²) for draws x around zero, the path u_4, u_5, … is a
Markov chain that no scale changes: a point on the sphere in n dimensions, without its last coordinate y, is one in n - 1
dimensions, so that u_(n-1) = (u_n - y) / √(1 - y²). The last coordinate given u_n is u_n / n + √(1 - u_n² / n) √((n - 1) /
n) c, where (1 + c) / 2 has the distribution Beta((n - 2) / 2, (n - 2) / 2). So the probability of an earlier miss, given
u_n, is an integral of the same probability one seed before; h_n is where the sum over all u_n is what may be spent.

Evidence is another matter: the Bayes factor B_n of the t statistic with the prior N(0, g) on the effect size μ / σ is a
martingale in n that starts at 1 (Lai 1976, "On confidence sequences"; Wang and Ramdas 2024, arXiv:2310.03722),

    B_n = (1 + n g)^(-1/2) · [(1 + T) / (1 + T / (1 + n g))]^(n/2),    T = t² / (n - 1),   t = √n mean / s

so its mean is at most 1 where there is no difference, wherever a trial stops (:func:`discoveries`). By Ville's inequality it
exceeds 1/α with probability α at most; what is left of α after 64 seeds is spent by this bound, for any number of seeds. The
first intervals by it are wider again: by a fifth at 95%.

Documents are random too. There are two readings of a difference:

- ``fixed``: the mean over seeds on these very documents. The sequence above.
- ``random``: the mean over seeds on any documents like these. The documents add a fixed error that no number of seeds reduces.
  Its variance is the jackknife's, and that of the seeds is such that alone it would have the width h_n · s; the two are added
  as for any interval over documents and seeds (:mod:`contextwise.base.intervals`).

``python -m benchmarks.sequential`` measures how often the intervals miss, and how many seeds a decision takes. Neither
``confseq`` (bounded or sub-Gaussian observations) nor ``ville`` (asymptotic intervals) nor scipy has such intervals.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from scipy.special import beta, betainc, gammaincinv, stdtrit

from contextwise.base.errors import DataError
from contextwise.base.estimates import CONFIDENCE, FEWEST_DOCUMENTS, Documents, Estimate
from contextwise.base.intervals import (
    Part,
    joint,
    leave_one_out,
    over_documents,
    plus_minus,
    shared_variance,
    student_t,
)

PRIOR_VARIANCE = 8.0
"""g, the variance of the effect size under the prior. Between 4 and 16 the width at 4 to 30 seeds changes by less than 10%;
smaller values need more seeds for a first interval, larger ones have wider intervals later."""
FEWEST_SEEDS = 4
"""No interval is given for fewer: three seeds decide large differences only, and too easily where differences are not normal
and three of them happen to lie close together."""
SPENDING = 1.5
"""The error left after n seeds is the share (3 / n) to this power. With 2 the intervals of four seeds are 8% narrower and those
of thirty 6% wider; with 1 13% wider and 8% narrower."""
MOST_EXACT = 64
_TAILS = np.concatenate([np.linspace(1, 0.05, 120)[:-1], np.geomspace(0.05, 1e-13, 160)])
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(40)
Decision = Literal["better", "worse", "equivalent", "undecided"]


def half_widths(seeds: int, confidence: float = CONFIDENCE) -> np.ndarray:
    """(seeds,) half width of the interval after each seed, in sample standard deviations; infinite after the first seeds."""
    exact = min(MOST_EXACT, max(16, seeds))  # a prefix of a longer one; few different ones are kept
    widths = np.concatenate([np.full(FEWEST_SEEDS - 1, np.inf), _spending_widths(exact, confidence)])
    return np.concatenate([widths, _mixture_widths(seeds, (1 - confidence) * _unspent(MOST_EXACT))[exact:]])[:seeds]


def _unspent(seeds: int) -> float:
    """Share of the error that is left for looks after so many seeds."""
    return ((FEWEST_SEEDS - 1) / seeds) ** SPENDING


def _mixture_widths(seeds: int, error: float) -> np.ndarray:
    """(seeds,) half widths of the interval of all means with B_n < 1 / error."""
    n = np.arange(1, seeds + 1, dtype=float)
    spread = 1 + n * PRIOR_VARIANCE
    bound = (spread / error**2) ** (1 / n)
    with np.errstate(divide="ignore", invalid="ignore"):
        squared = (bound - 1) / (1 - bound / spread) * (n - 1) / n
    return np.where((bound < spread) & (n >= FEWEST_SEEDS), np.sqrt(np.abs(squared)), np.inf)


@lru_cache(maxsize=64)
def _spending_widths(seeds: int, confidence: float) -> np.ndarray:
    """(seeds - 3,) half widths from the fourth seed on that spend the error."""
    error, widths = 1 - confidence, []
    edge, missed, known = 0.0, np.zeros_like(_TAILS), np.zeros_like(_TAILS)
    for n in range(FEWEST_SEEDS, seeds + 1):
        t = stdtrit(n - 1, 1 - _TAILS / 2)  # |t| exceeds it with this probability
        u = t * np.sqrt(n / (n - 1 + t**2))
        if n > FEWEST_SEEDS:
            # |u_(n-1)| is inside its edge for last coordinates between the roots of (u - y)² = edge² (1 - y²).
            root = edge * np.sqrt(np.maximum(0, 1 + edge**2 - u**2))
            scale = np.sqrt(np.maximum(1 - u**2 / n, 1e-300) * (n - 1) / n)
            low, high = (np.clip(((u + sign * root) / (1 + edge**2) - u / n) / scale, -1, 1) for sign in (-1, 1))
            a = (n - 2) / 2
            inside = betainc(a, a, (1 + high) / 2) - betainc(a, a, (1 + low) / 2)
            far = min(1.0, 9 / math.sqrt(n))  # beyond it the density of c is nothing
            low, high = np.clip(low, -far, far), np.clip(high, -far, far)
            c = (low + high)[:, None] / 2 + (high - low)[:, None] / 2 * _NODES
            density = (1 - c**2) ** (a - 1) / (beta(a, a) * 2 ** (2 * a - 1))
            y = u[:, None] / n + scale[:, None] * c
            before = np.abs(u[:, None] - y) / np.sqrt(np.maximum(1 - y**2, 1e-300))
            missed = 1 - inside + (high - low) / 2 * ((np.interp(before, known, missed) * density) @ _WEIGHTS)
        # Missed by now, if the edge is at each u: beyond it, or inside it and earlier.
        earlier = np.concatenate([[0], np.cumsum((missed[1:] + missed[:-1]) / 2 * -np.diff(_TAILS))])
        spent = error * (1 - _unspent(n))
        tail = math.exp(np.interp(-spent, -(_TAILS + earlier), np.log(_TAILS)))
        at_edge = float(stdtrit(n - 1, 1 - tail / 2))
        edge, known = at_edge * math.sqrt(n / (n - 1 + at_edge**2)), u
        widths.append(at_edge / math.sqrt(n))
    return np.array(widths)


def sequence_limits(differences: np.ndarray, confidence: float = CONFIDENCE) -> tuple[np.ndarray, np.ndarray]:
    """(..., S) means and half widths after each seed of differences (..., S), in the order in which the seeds were looked at; a
    half width is infinite where the seeds allow no interval yet.
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
    """Half width of the t interval over documents, of the mean over seeds; infinite below six documents."""
    part = _documents(differences_SN, tokens_N)
    return math.inf if part is None else student_t(part.freedom, confidence) * math.sqrt(part.variance)


def _documents(differences_SN: np.ndarray, tokens_N: np.ndarray) -> Part | None:
    """The part of the documents in the uncertainty of the mean over seeds; None below six documents."""
    if int((tokens_N > 0).sum()) < FEWEST_DOCUMENTS:
        return None
    means_N = differences_SN.mean(axis=0)
    return over_documents(float(means_N.sum() / tokens_N.sum()), leave_one_out(means_N, tokens_N), tokens_N)


def _on_any_documents(differences_SN: np.ndarray, tokens_N: np.ndarray, half: float, confidence: float) -> float:
    """Half width about any documents like these, where it is ``half`` about these; infinite if either part is not known."""
    documents, freedom = _documents(differences_SN, tokens_N), len(differences_SN) - 1
    if documents is None or not math.isfinite(half):
        return math.inf
    seeds, scored = Part((half / student_t(freedom, confidence)) ** 2, freedom), tokens_N > 0
    both = joint([documents, seeds], shared_variance(differences_SN[:, scored], tokens_N[scored]), confidence)
    return max(half, student_t(both.freedom, confidence) * math.sqrt(both.variance))


@dataclass(frozen=True)
class Look:
    """What is known after a number of seeds.

    ``evidence`` is the Bayes factor against a mean of zero on these documents, an e-value: without a difference its expectation
    is at most 1 wherever the seeds stop.
    """

    seeds: int
    fixed: Estimate  # the mean difference on these documents, nats per token, with its anytime-valid interval
    random: Estimate  # the same on any documents like these
    deviation: float  # of the differences by seed; 0 for one seed
    evidence: float

    def of(self, documents: Documents) -> Estimate:
        """The estimate of one of the two readings."""
        return self.fixed if documents == "fixed" else self.random

    @property
    def alike(self) -> bool:
        """Whether both readings have the same interval."""
        return self.fixed.has_interval and self.fixed.limits == self.random.limits


def looks(
    differences_SN: np.ndarray, tokens_N: np.ndarray, confidence: float = CONFIDENCE, unit: str = "nats per token"
) -> list[Look]:
    """What is known after each seed.

    Args:
        differences_SN: (S, N) arm minus reference: difference of the summed nats of each document, seed by seed.
        tokens_N: (N,) scored tokens of each document.
        confidence: of each of the intervals, over all looks.
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
        deviation = float(by_seed[:seeds].std(ddof=1)) if seeds > 1 else 0.0
        alike = only_rounded(float(means[seeds - 1]), deviation)
        half = math.inf if alike else float(halves[seeds - 1])
        about_any = _on_any_documents(differences_SN[:seeds], tokens_N, half, confidence)
        about = {"unit": unit, "seeds": seeds, "confidence": confidence}
        mean, scored = float(means[seeds - 1]), int((tokens_N > 0).sum())
        fixed = plus_minus(mean, half, method="t sequence", **about)
        about |= {"method": "t sequence and t", "documents": scored}
        random = plus_minus(mean, about_any, **about)
        result.append(Look(seeds, fixed, random, deviation, 1.0 if alike else evidence(mean, deviation, seeds)))
    return result


def only_rounded(mean: float, deviation: float) -> bool:
    """Whether differences that are not zero are the same in all seeds: rounded, or of runs that no seed changes.

    They have no interval and are no evidence: how much the difference varies is not known. Losses in float32 vary by more than
    a hundred-thousandth of a small difference through their own rounding, which training by another seed exceeds by far.
    """
    return mean != 0 and deviation <= 1e-4 * abs(mean)


def evidence(mean: float, deviation: float, seeds: int) -> float:
    """The Bayes factor B_n against a mean of zero, by the standard deviation of the differences by seed."""
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
    """Decide by the interval of a difference in loss (arm minus reference).

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


def deviation_limits(deviation: float, seeds: int, confidence: float = 0.8) -> tuple[float, float]:
    """Both limits of a standard deviation that was estimated from a number of seeds."""
    low, high = 2 * gammaincinv((seeds - 1) / 2, [(1 + confidence) / 2, (1 - confidence) / 2])
    return deviation * math.sqrt((seeds - 1) / low), deviation * math.sqrt((seeds - 1) / high)


def seeds_to_decide(
    difference: float,
    deviation: float,
    margin: float,
    confidence: float = CONFIDENCE,
    documents: float = 0.0,
    power: float = 0.8,
    most: int = 200,
) -> int | None:
    """The seeds within which a true difference is decided with probability ``power``; None: not within ``most`` seeds.

    2,000 trials of normal differences are drawn, with a fixed random seed.

    Args:
        difference: on the documents at hand.
        documents: half width over documents, for a decision about any documents. Its square is added to that of the seeds,
            which is a little more than the interval has.
    """
    draws = np.random.default_rng(0).normal(difference, deviation, (2000, most))
    means, halves = sequence_limits(draws, confidence)
    halves = np.hypot(halves, documents)
    decided = (means + halves < 0) | (means - halves > 0) | (np.abs(means) + halves <= margin)
    share = np.maximum.accumulate(decided, axis=1).mean(axis=0)
    reached = np.flatnonzero(share >= power)
    return int(reached[0]) + 1 if len(reached) else None
