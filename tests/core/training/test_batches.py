"""Partition of the examples of a step over processes and micro-batches, and the batches that are stacked of them."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from contextwise.training.batches import StepIndices


@given(
    share=st.integers(1, 24), steps=st.integers(1, 40), processes=st.sampled_from([1, 2, 4]), limit=st.integers(1, 9)
)
def test_processes_share_every_example_once_in_order(share, steps, processes, limit):
    examples = share * processes
    shares = [list(StepIndices(steps, examples, rank, processes, limit)) for rank in range(processes)]
    assert {len(own) for own in shares} == {steps}
    for step, indices in enumerate(zip(*shares, strict=True)):
        assert sorted(itertools.chain(*indices)) == list(range(step * examples, (step + 1) * examples))
        assert len({len(own) for own in indices}) == 1
