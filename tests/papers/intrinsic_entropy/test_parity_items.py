"""Measures of models of the parity task, against hand-made models and numpy."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.modeling_outputs import SequenceClassifierOutput

from contextwise.base.config import validate
from contextwise.base.errors import CheckpointError, ConfigError
from contextwise.base.estimates import Estimate
from contextwise_papers.intrinsic_entropy.appendix_j_3_dimension import (
    ParityDimension,
    best_step,
    joint_entropy,
    measure_features,
    thresholds,
)
from contextwise_papers.intrinsic_entropy.figures_4_12_14_optimum import loss_exponents, scaling_claims
from contextwise_papers.intrinsic_entropy.parity import ParityMLP, ParityMLPConfig
from contextwise_papers.intrinsic_entropy.synthetic import MASK, ParityData
from contextwise_papers.intrinsic_entropy.synthetic.samples import Samples
from contextwise_papers.intrinsic_entropy.table_1_figures_6_7_parity import (
    ParityEntropy,
    ParityTable,
    feature_eigenvalues,
    first_lasting,
    measure_contexts,
)
from contextwise_papers.item import RECIPES, find_item, measure_at
from shipped import an_item

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
    straight, bent = Estimate(0.99, 0.98, 0.999), Estimate(0.99, 0.5, 0.999)
    assert first_lasting({2: straight, 3: bent, 4: straight, 5: straight}, 0.97) == 4
    assert first_lasting({2: straight, 3: bent}, 0.97) is None


TRAINING = {"examples_per_step": 64, "steps": 6, "learning_rate": 1e-2, "evaluate_every": 2, "save_every": 6}


@pytest.mark.long
def test_figures_6_and_7_show_the_middle_and_the_last_state_and_decide_over_seeds(tmp_path):
    recipe = {
        "data": {"synthetic": {"bits": 12, "tasks": 18, "first": 4, "shortest": 3, "validation_samples": 64}},
        "model": {"family": "parity_transformer", "layers": 3, "width": 16, "heads": 2},
        "training": TRAINING,
    }
    shared = {"name": "small", "recipe": recipe, "contexts": [4, 6, 8, 10], "samples": 1000}
    one = validate(ParityEntropy, shared, "the settings").measure(an_item(), tmp_path)
    assert [claim.holds for claim in one.claims] == [None, None]
    several = validate(ParityEntropy, {**shared, "seeds": [0, 1, 2]}, "the settings").measure(an_item(), tmp_path)
    middle, last = several.claims
    # Half of three blocks, rounded up; six steps learn no line.
    assert middle.text.startswith("after block 2 (middle)") and last.text.startswith("last state")
    assert "here 6" in middle.text and middle.holds is not True
    interval = several.figures["last state"]["correlations"][6]
    assert interval["low"] < interval["value"] < interval["high"] and interval["n"] == 3
    printed = {"bits": 60, "tasks": 100, "contexts": [17], "model": [0.46], "minimum": [0.46]}
    table = validate(ParityTable, {**shared, "seeds": [0, 1, 2], "tolerance": 1e-3}, "the settings")
    assert table.measure(an_item(**printed), tmp_path).claims[0].holds is False
    alone = validate(ParityTable, {**shared, "tolerance": 1e-3}, "the settings")
    assert alone.measure(an_item(**printed), tmp_path).claims[0].holds is None


def test_the_item_has_both_of_its_names():
    assert find_item("intrinsic_entropy/figure6", RECIPES)[0] == "intrinsic_entropy/figure7"


def test_answers_that_are_independent_have_a_bit_each_and_copies_none():
    bits = np.random.default_rng(0).integers(0, 2, (40_000, 14))
    assert joint_entropy(bits) == pytest.approx(14 * math.log(2), rel=1e-3)
    bits[:, 1] = bits[:, 0]
    bits[:, 2] = bits[:, 3] ^ bits[:, 4]
    assert joint_entropy(bits) == pytest.approx(12 * math.log(2), rel=1e-3)


class Knowing(ParityMLP):
    """Its feature has the bits, and it answers every visible task right."""

    def context_feature(self, input_ids):
        return 2.0 * input_ids[:, :-1] - 1

    def answers(self, input_ids, tasks):
        pairs = [torch.from_numpy(p)[:tasks] - 1 for p in (LAW.parity.larger, LAW.parity.smaller)]
        return input_ids[:, pairs[0]] ^ input_ids[:, pairs[1]]


LAW = Samples(
    ParityData(
        bits=30,
        tasks=14,
        law={"limit": 15.5, "scale": 160, "exponent": 1.18},
        frequency_exponent=0,
        context=20,
        masked=0.0,
    ),
    0,
    "validation",
)


def test_the_tiny_tasks_are_independent_and_their_answers_have_t_log_2():
    """Appendix C.3 holds for tasks whose bits form no cycle; at scale tiny they are chosen so."""
    measure = measure_at(find_item("intrinsic_entropy/dimension", RECIPES)[1], "tiny")
    parity = ParityData(**measure.recipe["data"]["synthetic"]).parity()
    for context in measure.contexts:
        tasks = parity.visible_tasks(context)
        assert parity.answers_entropy(context) == pytest.approx(tasks * math.log(2))
    model = Knowing(ParityMLPConfig(bits=20, tasks=14, feature_size=20, width=8)).eval()
    features = measure_features(model, LAW, 20, 40_000)
    assert features.answers == pytest.approx(LAW.parity.visible_tasks(20) * math.log(2), rel=1e-3)


def test_a_models_answers_are_those_it_gives_when_asked():
    model = ParityMLP(ParityMLPConfig(bits=20, tasks=14, feature_size=6, width=8)).eval()
    ids = LAW.batch(np.arange(50))["input_ids"]
    decoded = model.answers(ids, 14)
    for task in range(14):
        ids[:, -1] = 3 + task
        assert torch.equal(decoded[:, task], model(ids).logits.argmax(-1))


@pytest.mark.long
def test_both_the_best_and_the_last_weights_are_measured(tmp_path):
    """A training set of 200 samples is overfitted at once: the last loss is above the lowest, which has weights of its own."""
    recipe = {
        "data": {"synthetic": {"bits": 30, "tasks": 14, "law": {"limit": 15.5, "scale": 160, "exponent": 1.18},
                               "frequency_exponent": 0, "masked": 0.0, "samples": 200, "validation_samples": 500}},
        "model": {"family": "parity_mlp", "width": 64, "feature_size": 20},
        "training": {**TRAINING, "steps": 20, "evaluate_every": 5},
    }  # fmt: skip
    values = {"name": "small", "recipe": recipe, "contexts": [10, 13, 15, 20], "samples": 1000, "seeds": [0, 1]}
    measure = validate(ParityDimension, values, "the settings")
    outcome = measure.measure(an_item(), tmp_path)
    features = outcome.figures["features"]
    for context in (10, 13, 15, 20):
        for best, last in zip(features["best"][context], features["last"][context], strict=True):
            assert best["loss"] < last["loss"]
    assert [claim.text.split(" ")[0] for claim in outcome.claims] == ["best"] * 4 + ["last"] * 4
    assert len(outcome.runs) == 8
    run = measure.run_set(tmp_path).runs[0]
    validation = outcome.figures["validation"][10][0]
    assert validation[best_step(run)] == min(validation.values())
    (run.folder / f"checkpoints/step-{best_step(run)}/weights.safetensors").unlink()
    with pytest.raises(CheckpointError, match="no checkpoint of step .* remove the run folder"):
        measure.measure(an_item(), tmp_path)


@pytest.mark.parametrize(
    ("changes", "contexts", "words"),
    [
        ({"patience": 3}, [10, 13, 15, 20], "training.patience stops before"),
        ({"evaluate_every": 0}, [10, 13, 15, 20], "training.evaluate_every is not set"),
        ({}, [5, 13, 15, 20], "contexts has 5, at which no task is visible"),
        ({}, [10, 10, 15, 20], "contexts: 10 is given twice"),
        ({}, [0, 13, 15, 20], "contexts.0 is 0, but must be at least 1"),
    ],
)
def test_a_wrong_setting_of_the_dimension_gets_one_sentence(changes, contexts, words, tmp_path):
    recipe = {
        "data": {"synthetic": {"bits": 30, "tasks": 14, "first": 7, "masked": 0.0}},
        "model": {"family": "parity_mlp", "width": 8},
        "training": {**TRAINING, **changes},
    }
    with pytest.raises(ConfigError, match=words):
        validate(ParityDimension, {"name": "x", "recipe": recipe, "contexts": contexts}, "the settings").run_set(
            tmp_path
        )


def test_the_exponent_of_the_approximation_loss_is_beside_the_dimension_of_the_features():
    """Losses 0.3 + 5 · samples^-α with α = 6/d, d growing with the context: Eq. 4 and α ≈ c/d hold; a constant α denies it."""
    draw = np.random.default_rng(0)
    dimensions = {c: (c + 0.05 * draw.normal(size=3)).tolist() for c in (6, 9, 12)}
    exponents = {}
    for context in dimensions:
        losses = {(n, context): [0.3 + 5 * n ** -(6 / context)] * 3 for n in (1000, 4000, 16_000)}
        exponents[context] = [a + 0.01 * draw.normal() for a in loss_exponents(losses, context, 0.3)]
        assert exponents[context] == pytest.approx([6 / context] * 3, abs=0.05)
    assert [claim.holds for claim in scaling_claims(dimensions, exponents)] == [True, True, True]
    constant = {c: (0.5 + 0.01 * draw.normal(size=3)).tolist() for c in (6, 9, 24)}
    wide = {**dimensions, 24: [24.0, 24.1, 23.9]}
    assert [claim.holds for claim in scaling_claims(wide, constant)][2] is False
    assert loss_exponents({(n, 6): [0.3] for n in (10, 20, 40)}, 6, 0.3) is None
    assert [claim.holds for claim in scaling_claims({}, exponents)] == [None] * 3
