"""Position-weighted multitask sparse parity: its tasks, their frequencies, and the lowest possible loss.

A sample has ``bits`` random context bits and one of ``tasks`` tasks. Each task names two of the bits, always the same; the
answer is their exclusive or. With only the nearest l bits visible the lowest cross entropy is

    R(l) = log 2 × (share of the samples whose task has its larger bit beyond l)      (intrinsic entropy, Section 4.2)

Printed for Table 1: each of the bits 11 to 60 is the larger bit of two of the 100 tasks. Inferred: a task's frequency is
proportional to (larger bit - 1) ** -1.15, which gives the calculated column of Table 1 (but 0.3986 for 0.3988 at 20), and the
smaller bit is any before the larger one. Printed for Appendix J.3: the number of tasks visible at l follows
51.1 - 1700 / l ** 1.18, of 50 tasks, all equally frequent. Inferred: the k-th has the smallest larger bit at which that law has
reached k; it puts the last one at bit 505, or at the last bit of fewer.
"""

import math
from functools import cached_property

import numpy as np
from pydantic import Field, model_validator

from contextwise.settings import ConfigError, Settings

MASK, FIRST_TASK = 2, 3
"""Tokens of a bit that is not visible and of the first task; those of bits are 0 and 1."""


class VisibleLaw(Settings):
    """Number of tasks visible at context l: ``limit - scale / l ** exponent`` (intrinsic entropy, Appendix J.3)."""

    limit: float = Field(default=51.1, gt=0, description="C0: tasks at an infinite context")
    scale: float = Field(default=1700.0, gt=0, description="C")
    exponent: float = Field(default=1.18, gt=0, description="gamma")

    def context_of(self, count: int) -> int:
        """Shortest context at which ``count`` tasks are visible; a count at or above the limit is a :class:`ConfigError`."""
        if count >= self.limit:
            raise ConfigError(
                f"law.limit is {self.limit:g}, which never makes {count} tasks visible; give fewer tasks, or a larger limit"
            )
        return math.ceil((self.scale / (self.limit - count)) ** (1 / self.exponent))


class ParitySettings(Settings):
    """Settings of the task: Table 1 by default; Appendix J.3 with a ``law`` and ``frequency_exponent`` 0."""

    bits: int = Field(default=60, ge=2, description="context bits, the first the nearest")
    tasks: int = Field(default=100, ge=1)
    first: int = Field(default=11, ge=2, description="smallest larger bit; the tasks are spread evenly from it on")
    law: VisibleLaw | None = Field(default=None, description="places the larger bits instead")
    frequency_exponent: float = Field(
        default=1.15, ge=0, description="a task's frequency is (larger bit - 1) to minus this"
    )
    task_seed: int = Field(default=0, ge=0, description="draws the smaller bits")


class Parity:
    """Tasks defined by the settings; bits are counted from 1, the nearest first. Too few bits are a :class:`ConfigError`.

    Attributes:
        larger, smaller: (tasks,) int64, the two bits of each task, in the order of the larger one.
        frequencies: (tasks,) float64, shares of the samples; their sum is 1.
    """

    def __init__(self, settings: ParitySettings) -> None:
        bits, tasks, first = settings.bits, settings.tasks, settings.first
        if settings.law is not None:
            larger = [min(settings.law.context_of(k + 1), bits) for k in range(tasks)]
            self.larger = np.array(larger, dtype=np.int64)
        elif first > bits:
            raise ConfigError(
                f"the tasks cannot be placed: their larger bits begin at {first}, but there are only {bits} bits; lower first"
            )
        else:
            self.larger = first + np.arange(tasks, dtype=np.int64) * (bits - first + 1) // tasks
        self.bits, self.tasks = bits, tasks
        self.smaller = _smaller_bits(self.larger, settings.task_seed)
        weights = (self.larger - 1.0) ** -settings.frequency_exponent
        self.frequencies: np.ndarray = weights / weights.sum()

    def visible_tasks(self, context: int) -> int:
        """Number of tasks that can be answered from the nearest ``context`` bits."""
        return int((self.larger <= context).sum())

    def minimum_cross_entropy(self, context: int) -> float:
        """Lowest cross entropy of the answer at a context of ``context`` bits, nats (intrinsic entropy, Appendix C.4)."""
        return math.log(2) * float(self.frequencies[self.larger > context].sum())

    def answers_entropy(self, context: int) -> float:
        """Entropy of the answers of all tasks that are visible at a context together, nats.

        The source (intrinsic entropy, Appendix C.3) gives T log 2 for T tasks, which is so while the answers are independent:
        the exclusive or of the answers around a cycle of bits is 0. Exact is log 2 times the rank of the tasks over GF(2): the
        bits less the groups of bits that tasks connect.
        """
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        seen, size = self.larger <= context, self.bits + 1
        graph = coo_array((np.ones(seen.sum()), (self.larger[seen], self.smaller[seen])), shape=(size, size))
        groups, _ = connected_components(graph, directed=False)
        return (size - groups) * math.log(2)

    @cached_property
    def cumulative(self) -> np.ndarray:
        """(tasks,) cumulative frequencies; the last one is 1."""
        return np.append(np.cumsum(self.frequencies)[:-1], 1.0)


def _smaller_bits(larger: np.ndarray, seed: int) -> np.ndarray:
    """Draw the smaller bit of each task, distinct among the tasks that share a larger bit."""
    draw = np.random.Generator(np.random.PCG64([seed, 0x9A217]))
    smaller = np.empty_like(larger)
    for bit, count in zip(*np.unique(larger, return_counts=True), strict=True):
        if count > bit - 1:
            raise ConfigError(
                f"{count} tasks cannot be placed at bit {bit}, which has only {bit - 1} bits before it; give fewer tasks, or a "
                "larger first"
            )
        smaller[larger == bit] = 1 + draw.choice(bit - 1, size=count, replace=False)
    return smaller


class ParityData(ParitySettings):
    """Settings of the task and of its samples; by default half of the training samples are masked, as in Appendix C.4."""

    context: int | None = Field(default=None, ge=1, description="nearest bits that the inputs have; all if not given")
    masked: float = Field(default=0.5, ge=0, le=1, description="share of the training samples that are masked")
    shortest: int = Field(default=10, ge=0, description="fewest bits that a masked sample leaves visible")
    samples: int | None = Field(
        default=None, ge=1, description="training samples, repeated every epoch; if not given, none comes twice"
    )
    validation_samples: int = Field(default=4096, ge=1, description="never masked")

    @property
    def length(self) -> int:
        """Length of an example in tokens."""
        return (self.context or self.bits) + 1

    @property
    def vocab_size(self) -> int:
        """Vocabulary size of the inputs: the bits, the mask, and a token for each task."""
        return FIRST_TASK + self.tasks

    def parity(self) -> Parity:
        """Build the task."""
        return Parity(self)

    @model_validator(mode="after")
    def _whole(self) -> "ParityData":
        self.parity()
        shown = self.context or self.bits
        if shown > self.bits:
            raise ConfigError(f"context is {self.context}, but the task has {self.bits} bits; give at most that many")
        if self.masked and self.shortest > shown:
            raise ConfigError(
                f"masked samples leave {self.shortest} to {shown} bits visible, which is no range; lower shortest, or set "
                "masked to 0"
            )
        return self
