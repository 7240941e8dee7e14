"""The division of the examples of each optimizer step among processes and micro-batches."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class StepIndices:
    """The examples of one process in each step, as lists of indices: a batch sampler for a data loader.

    The micro-batches of all processes take turns, so that processes get examples of like lengths where a step is sorted.
    """

    steps: int
    examples: int  # in each step, over all processes
    rank: int
    processes: int
    limit: int  # maximum number of examples in a micro-batch

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[list[int]]:
        micro = micro_batch_size(self.examples // self.processes, self.limit)
        for first in range(0, self.steps * self.examples, self.examples):
            starts = range(first + self.rank * micro, first + self.examples, self.processes * micro)
            yield [index for start in starts for index in range(start, start + micro)]


def micro_batch_size(examples: int, limit: int) -> int:
    """The largest divisor of ``examples`` up to ``limit``."""
    return max(size for size in range(1, min(examples, limit) + 1) if examples % size == 0)
