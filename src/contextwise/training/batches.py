"""The number of examples in each optimizer step of a run, and their division among processes and micro-batches."""

import math
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class BatchSizes:
    """The number of examples in each step, over all processes and micro-batches."""

    stages: tuple[tuple[int, int], ...]  # steps of each stage, and examples of such a step; at last of the full size

    @classmethod
    def doubling(cls, first: int, full: int, rampup: int, full_steps: int) -> "BatchSizes":
        """Sizes that double from ``first`` to ``full``; each size below ``full`` has an equal part of the ramp-up.

        Each stage has the examples of a whole number of full steps, so a run has ``full_steps * full`` examples. If the
        ramp-up has fewer full steps than sizes, some of the sizes are skipped.

        Args:
            first: examples of the first step; ``full / first`` is a power of two.
            rampup: length of the ramp-up, in full steps.
            full_steps: length of the run, in full steps.
        """
        sizes = [first << number for number in range((full // first).bit_length())]
        ends = [math.ceil(rampup * number / (len(sizes) - 1)) for number in range(1, len(sizes))]
        lengths = [end - start for start, end in zip([0, *ends], [*ends, full_steps], strict=True)]
        stages = [(length * full // size, size) for length, size in zip(lengths, sizes, strict=True)]
        return cls(tuple(stage for stage in stages if stage[0]))

    @property
    def steps(self) -> int:
        return sum(steps for steps, _ in self.stages)

    @property
    def first(self) -> int:
        """Examples of the first step, a divisor of all others."""
        return self.stages[0][1]

    @property
    def full(self) -> int:
        """Examples of a step after the ramp-up."""
        return self.stages[-1][1]

    def before(self, step: int) -> int:
        """Number of examples in the first ``step`` steps of the run."""
        examples = 0
        for steps, size in self.stages:
            examples += min(step, steps) * size
            step = max(0, step - steps)
        return examples

    def step_at(self, examples: int) -> int:
        """Number of steps in which the first ``examples`` examples are read."""
        step = 0
        for steps, size in self.stages:
            step += min(steps, examples // size)
            examples = max(0, examples - steps * size)
        return step


@dataclass(frozen=True)
class StepIndices:
    """The examples of one process in each step, as lists of indices: a batch sampler for a data loader.

    The micro-batches of all processes take turns, so that processes get examples of like lengths where a step is sorted.
    """

    sizes: BatchSizes
    rank: int
    processes: int
    limit: int  # maximum number of examples in a micro-batch

    def __len__(self) -> int:
        return self.sizes.steps

    def __iter__(self) -> Iterator[list[int]]:
        for step in range(len(self)):
            first, end = self.sizes.before(step), self.sizes.before(step + 1)
            micro = micro_batch_size((end - first) // self.processes, self.limit)
            starts = range(first + self.rank * micro, end, self.processes * micro)
            yield [index for start in starts for index in range(start, start + micro)]


def micro_batch_size(examples: int, limit: int) -> int:
    """The largest divisor of ``examples`` up to ``limit``."""
    return max(size for size in range(1, min(examples, limit) + 1) if examples % size == 0)
