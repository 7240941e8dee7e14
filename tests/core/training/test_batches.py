"""Partition of the examples of a step over processes and micro-batches, and the batches that are stacked of them."""

import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st

from contextwise.objectives import NO_LOSS
from contextwise.training.batches import StepIndices, collate_step


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


def test_processes_take_turns_with_their_micro_batches():
    """A sorted step has examples of like lengths for all of them at once."""
    one, two = (list(StepIndices(2, 8, rank, 2, 3)) for rank in (0, 1))
    assert one == [[0, 1, 4, 5], [8, 9, 12, 13]] and two == [[2, 3, 6, 7], [10, 11, 14, 15]]


def test_micro_batches_hold_a_step_in_order_without_the_padding_that_all_share():
    lengths, width = [3, 5, 2, 8, 1, 4], 9
    examples = [
        {
            "input_ids": torch.arange(width) + 10 * number,
            "labels": torch.where(torch.arange(width) < length, 1, NO_LOSS),
            "length": length,
        }
        for number, length in enumerate(lengths)
    ]
    batches = collate_step(examples, 4)
    assert [batch["length"].tolist() for batch in batches] == [lengths[:3], lengths[3:]]
    assert [tuple(batch["input_ids"].shape) for batch in batches] == [(3, 5), (3, 8)]
    assert batches[1]["input_ids"][2].tolist() == list(range(50, 58))
    for batch in batches:
        labels = batch["labels"].flatten()
        assert (labels != NO_LOSS).nonzero()[:, 0].tolist() == batch["labelled"].tolist()
        assert len(batch["labelled"]) == batch["length"].sum()
    (whole,) = collate_step([each | {"length": width, "labels": torch.ones(width)} for each in examples], 6)
    assert "labelled" not in whole
