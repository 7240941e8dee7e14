"""Measures of models of the parity task, against hand-made models and numpy."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.modeling_outputs import SequenceClassifierOutput

from contextwise.analysis.fits import fit_line
from contextwise.base.errors import ConfigError
from contextwise.data.synthetic import MASK, ParityData
from contextwise.data.synthetic.samples import Samples
from contextwise.reproductions.intrinsic_entropy.table_1_figures_7_17_parity import (
    feature_eigenvalues,
    first_lasting,
    measure_contexts,
    thresholds,
)

SAMPLES = Samples(ParityData(bits=12, tasks=18, first=4, shortest=3), 0, "validation")


class Bayes:
    """The best there is: certain of what it can see, and undecided otherwise; ``error`` spoils its certainty."""

    device = "cpu"

    def __init__(self, error=0.0):
        self.error = error

    def __call__(self, input_ids):
        task = input_ids[:, -1] - 3
        rows = torch.arange(len(task))
        pair = [input_ids[rows, torch.from_numpy(p)[task] - 1] for p in (SAMPLES.parity.larger, SAMPLES.parity.smaller)]
        seen = (pair[0] != MASK) & (pair[1] != MASK)
        right = torch.where(seen, 1 - self.error, 0.5)
        answer = torch.where(seen, pair[0] ^ pair[1], 0)
        p = torch.stack([torch.where(answer == 0, right, 1 - right), torch.where(answer == 1, right, 1 - right)], 1)
        return SequenceClassifierOutput(logits=p.clamp(min=1e-30).log())

    def context_feature(self, input_ids):
        bits = input_ids[:, :3].double()
        return torch.stack([bits[:, 0], 3 * bits[:, 1], bits[:, 2] + bits[:, 0], 5.0 + 0 * bits[:, 0]], 1)


def test_the_bayes_model_has_the_lowest_cross_entropy_at_every_context():
    measured = measure_contexts(Bayes(), SAMPLES, [3, 4, 7, 10, 12], 20_000)
    for context, loss in measured.items():
        assert loss.minimum == SAMPLES.parity.minimum_cross_entropy(context)
        assert loss.excess == pytest.approx(0, abs=1e-6)
        assert loss.loss == pytest.approx(loss.minimum, abs=4 * loss.standard_error + 1e-6)
    assert measured[3].loss == pytest.approx(math.log(2), abs=1e-6)
    assert measured[12].loss == pytest.approx(0, abs=1e-6)


def test_the_excess_is_what_a_worse_model_loses_on_the_same_samples():
    error = 0.1
    measured = measure_contexts(Bayes(error), SAMPLES, [7], 20_000)[7]
    tasks = SAMPLES.draw(np.arange(20_000)).tasks
    seen = (SAMPLES.parity.larger[tasks] <= 7).mean()
    assert measured.excess == pytest.approx(-math.log(1 - error) * seen, abs=1e-6)
    nats = np.where(SAMPLES.parity.larger[tasks] <= 7, -math.log(1 - error), math.log(2))
    assert measured.standard_error == pytest.approx(nats.std(ddof=1) / math.sqrt(20_000), rel=1e-5)


def test_eigenvalues_are_those_of_the_centred_covariance():
    measured = feature_eigenvalues(Bayes(), SAMPLES, 12, 9000)
    features = Bayes().context_feature(SAMPLES.batch(np.arange(9000))["input_ids"]).numpy()
    expected = np.linalg.eigvalsh(np.cov(features.T, bias=True))[::-1]
    assert measured == pytest.approx(expected, abs=1e-9)
    # Bits are even and independent: variance 1/4 each.
    assert measured[0] == pytest.approx(9 / 4, rel=0.05)
    assert measured[3] == pytest.approx(0, abs=1e-9)


@given(st.lists(st.floats(1e-6, 1), min_size=2, max_size=20, unique=True), st.data())
def test_the_thresholds_are_those_that_count_the_dimension(values, data):
    relative = np.sort(values)[::-1]
    dimension = data.draw(st.integers(1, len(relative)))
    low, high = thresholds(relative, dimension)
    assert low < high
    for theta in (high, (low + high) / 2):
        if theta > low:
            assert (relative >= theta).sum() == dimension
    assert (relative >= low).sum() > dimension or dimension == len(relative)


def test_linearity_must_last():
    straight = fit_line({1: 1.0, 2: 2.0, 3: 3.0}, {1: 1.0, 2: 2.0, 3: 3.0})
    bent = fit_line({1: 1.0, 2: 2.0, 3: 3.0}, {1: 1.0, 2: 9.0, 3: 1.5})
    assert first_lasting({2: straight, 3: bent, 4: straight, 5: straight}, 0.98) == 4
    assert first_lasting({2: straight, 3: bent}, 0.98) is None


def test_contexts_beyond_the_inputs_get_one_sentence():
    with pytest.raises(ConfigError, match="visible is 13, but the inputs have 12"):
        measure_contexts(Bayes(), SAMPLES, [13], 100)
