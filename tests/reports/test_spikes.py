"""Spikes of a training loss: found where they are, and nowhere else."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from contextwise.reports.figures import spikes


def falling(rows, noise, seed):
    draw = np.random.default_rng(seed)
    return 3 + 6 * np.exp(-np.arange(rows) / 60) + noise * draw.standard_normal(rows)


def test_by_hand():
    losses = np.full(40, 4.0)
    losses[[20, 21, 22, 30, 35]] = [4.5, 6.0, 4.2, 4.04, 4.2]
    # Rows 20 to 22 are one jump, whose top is row 21; 4.04 is too little.
    assert spikes(losses).tolist() == [21, 35]
    assert spikes(np.array([])).tolist() == []
    assert spikes(np.array([1.0, 9.0])).tolist() == []


@given(seed=st.integers(0, 200), rows=st.integers(60, 400), noise=st.sampled_from([0.0, 0.02, 0.1]))
def test_a_falling_noisy_loss_has_none(seed, rows, noise):
    assert len(spikes(falling(rows, noise, seed))) == 0


@given(seed=st.integers(0, 200), place=st.integers(180, 298))
def test_a_jump_is_found_wherever_it_is(seed, place):
    """Behind the steep start, whose fall counts as deviation."""
    losses = falling(300, 0.05, seed)
    losses[place : place + 2] += [3.0, 1.5]
    assert spikes(losses).tolist() == [place]
