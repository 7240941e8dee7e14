"""Seeds, documents and tokens that a decision needs, estimated from a few seeds of two arms, or of the baseline alone.

With two arms, v_sn is the difference of the summed nats of document n between the runs of seed s. With the baseline alone, v_sn
are its own nats, and a difference has twice their variance, as if runs of two arms with the same seed were no more alike than
two seeds of one arm. With t_n tokens of document n, the variance has two parts:

    Var_s(Σ_n v_sn) = λ (Σ_n t_n)² + Σ_n w_n,      Σ_n Var_s(v_sn) = λ Σ_n t_n² + Σ_n w_n

λ is the part of the level, which all documents of a run share: only seeds reduce it. w_n is each document's own: more text
reduces it, too. Both equations give both parts. How much the effect of a change differs between documents, which a decision
about any documents depends on, cannot be known from one arm.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from contextwise.base.errors import ConfigError
from contextwise.base.estimates import CONFIDENCE
from contextwise.comparison.sequential import deviation_limits, only_rounded, seeds_to_decide
from contextwise.decisions import check
from contextwise.decisions.rows import Losses

TIMES = (1, 4, 16)
MOST = 200


@dataclass(frozen=True)
class Needed:
    """Seeds that decide a true difference of the margin in 4 of 5 cases, with so much held-out text; None: more than 200."""

    times: int  # the text that there is
    deviation: float  # of a difference by seed, in the unit of the losses
    seeds: int | None
    fewest: int | None  # and most: at the limits of the deviation's 80% interval
    most: int | None


@dataclass(frozen=True)
class Plan:
    """What a decision about a difference of the margin needs."""

    arm: str
    other: str  # the arm whose differences from ``arm`` this is known from; empty if it is known from ``arm`` alone
    unit: str
    margin: float
    runs: int  # seeds that this is known from
    held_out: int
    tokens: int
    level: float  # share of the variance that no text reduces
    needed: list[Needed] = field(default_factory=list)  # by the size of the held-out text

    IN_JSON: ClassVar = ("sentences",)

    @property
    def sentences(self) -> list[str]:
        """How many seeds, what limits, and how sure this is."""
        now = self.needed[0]
        size = f"{self.tokens:,} {self.unit.split()[-1]}s" if self.tokens else "what was measured"
        if self.tokens > self.held_out:
            size = f"{self.held_out:,} documents of {size} in all"
        known = f"{self.runs} seeds of {self.arm} and {self.other}" if self.other else f"{self.runs} runs"
        first = f"A difference of {self.margin:g} {self.unit} needs {_seeds(now)} with {size}, as far as {known} tell."
        alone = (
            "This number is for runs that are not paired. Runs of two arms with the same seed, which read the same data in the "
            "same order, are more alike than two seeds of one arm: two seeds of both arms give the number for pairs, often "
            "far smaller."
        )
        unpaired = [] if self.other else [alone]
        if not self.tokens:
            return [first, *unpaired]
        more = self.needed[-1]
        limit = "the seeds" if self.level >= 0.5 else "the held-out text"
        second = (
            f"The bottleneck is {limit}: {self.level:.0%} of the variance is that of whole runs, which no text reduces"
        )
        second += f"; with {more.times} times the text it would be {_seeds(more)}."
        third = (
            "To decide about any documents like these (--documents random) takes more, by how much the effect of the change "
            "differs between documents."
        )
        return [first, *unpaired, second, third]


def _seeds(needed: Needed) -> str:
    """The seeds and their range."""
    limits = [f"more than {MOST}" if seeds is None else str(seeds) for seeds in (needed.fewest, needed.most)]
    middle = f"more than {MOST}" if needed.seeds is None else str(needed.seeds)
    return f"{middle} seeds ({' to '.join(dict.fromkeys(limits))})"


def plan(losses: Losses, arm: str, margin: float, confidence: float = CONFIDENCE) -> Plan:
    """What a decision about ``margin`` needs, from seeds of two arms, or of one.

    Of several other arms, the one whose differences from ``arm`` vary most counts.
    """
    check(margin, confidence, "fixed")
    seeds = losses.seeds(arm)
    if len(seeds) < 2:
        raise ConfigError(f"{arm} has {len(seeds)} seed, but its spread takes two or more; train it with another seed")
    nats_SN = np.stack([losses.values[arm, seed] for seed in seeds])
    if not np.ptp(nats_SN, axis=0).any():
        raise ConfigError(
            f"all {len(seeds)} seeds of {arm} have the same losses; give those of runs with different seeds"
        )
    other, of_a_run, total = "", 2, float(losses.sizes.sum())
    parts = _parts(nats_SN, losses.sizes)
    paired = []
    for name in dict.fromkeys(name for name, _ in losses.values if name != arm):
        shared = [seed for seed in losses.seeds(name) if seed in seeds]
        differences = [losses.values[name, seed] - losses.values[arm, seed] for seed in shared]
        means = np.sum(differences, axis=1) / total if shared else np.zeros(0)
        alike = len(shared) < 2 or only_rounded(float(means.mean()), float(means.std(ddof=1)))
        if not alike and np.ptp(differences, axis=0).any():
            paired.append((_parts(np.stack(differences), losses.sizes), name, shared))
    if paired:
        parts, other, seeds = max(paired, key=lambda each: sum(each[0]))
        of_a_run = 1
    level, own = parts

    def needed(times: int) -> Needed:
        deviation = float(np.sqrt(of_a_run * (level + own / times)))
        known = deviation, *deviation_limits(deviation, len(seeds))
        middle, fewest, most = (seeds_to_decide(margin, value, margin, confidence, most=MOST) for value in known)
        return Needed(times, deviation, middle, fewest, most)

    text = bool(losses.documents)
    return Plan(
        arm=arm,
        other=other,
        unit=losses.unit,
        margin=margin,
        runs=len(seeds),
        held_out=len(losses.documents),
        tokens=int(total) if text else 0,
        level=level / (level + own) if level + own else 1.0,
        needed=[needed(times) for times in (TIMES if text else TIMES[:1])],
    )


def _parts(nats_SN: np.ndarray, sizes_N: np.ndarray) -> tuple[float, float]:
    """λ, and Σ w_n / (Σ t_n)²: variances of the mean loss of a run."""
    total = sizes_N.sum()
    of_sum, summed = float(nats_SN.sum(1).var(ddof=1)), float(nats_SN.var(axis=0, ddof=1).sum())
    squares = float((sizes_N**2).sum())
    if len(sizes_N) < 2:
        return of_sum / total**2, 0.0
    level = min(max(0.0, (of_sum - summed) / (total**2 - squares)), of_sum / total**2)
    return level, max(0.0, of_sum / total**2 - level)
