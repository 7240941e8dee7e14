"""Savings of a better model: readings off curves with known answers, and a measurement in miniature."""

import math

import pytest

from contextwise.base.config import validate
from contextwise.base.errors import ConfigError
from contextwise.base.estimates import Estimate
from contextwise.data import prepare_corpus
from contextwise.reproductions.contextlm.figure_1_savings import Savings, parameters_at, reached_at
from contextwise.reproductions.item import Item, Scale
from small import write_documents


def test_parameters_are_read_off_a_line_over_their_logarithm():
    # Half way down in loss is the geometric mean of the sizes.
    assert parameters_at([1e6, 4e6], [5.0, 4.0], 4.5) == pytest.approx(2e6)
    assert parameters_at([1e6, 4e6, 1.6e7], [5.0, 4.0, 3.5], 3.75) == pytest.approx(8e6)
    assert parameters_at([1e6, 4e6], [5.0, 4.0], 4.0) == pytest.approx(4e6)


@pytest.mark.parametrize("loss", [5.1, 3.9])
def test_nothing_is_read_off_outside(loss):
    assert parameters_at([1e6, 4e6], [5.0, 4.0], loss) is None


def test_a_curve_reaches_a_loss_between_its_points():
    curve = [(100.0, 6.0), (200.0, 5.0), (300.0, 4.5)]
    assert reached_at(curve, 5.5) == pytest.approx(150)
    assert reached_at(curve, 4.75) == pytest.approx(250)
    assert reached_at(curve, 4.4) is None
    assert reached_at(curve, 6.5) == 100


def settings(corpus, **training):
    return {
        "corpus": str(corpus),
        "recipe": {
            "name": "small",
            "data": {"context": 16},
            "model": {"layers": 1, "heads": 2},
            "training": {
                "steps": 12,
                "tokens_per_step": 64,
                "learning_rate": 2e-3,
                "schedule": "constant",
                "evaluate_every": 2,
                "evaluation_tokens": 256,
                "save_every": 12,
            }
            | training,
        },
        "models": {
            "a small": ["model.width=8"],
            "b small": ["model.width=8", "training.learning_rate=1.0e-2"],
            "a large": ["model.width=32"],
            "b large": ["model.width=32", "training.learning_rate=1.0e-2"],
        },
        "seeds": [0, 1],
        "reference": "a large",
        "pairs": [{"model": f"b {size}", "baseline": f"a {size}"} for size in ("small", "large")],
        "printed_savings": {"tokens": 0.23},
    }


@pytest.mark.slow
def test_a_measurement_in_miniature(tmp_path):
    source = write_documents(tmp_path / "text.jsonl", 60)
    corpus = prepare_corpus(source, "bytes", tmp_path / "corpus", validation=0.3).path
    measure = validate(Savings, settings(corpus), "the settings")
    item = Item(
        title="t", source="s", measure="savings", printed={}, scales={"tiny": Scale(machine="any", settings={})}
    )
    outcome = measure.measure(item, tmp_path / "out")
    # A rate five times as high learns faster here: it is where the other ends before its own end.
    saved = outcome.figures["savings"]["b large"]["tokens"]["value"]
    assert 0 < saved < 1
    same = outcome.figures["savings"]["b large"]["FLOPs"]["value"]
    assert same == pytest.approx(saved), "both models do the same operations for a token"
    assert [plot.title for plot in outcome.plots] == [
        "Loss against parameters",
        "Loss against training tokens",
        "Loss against training FLOPs",
    ]
    assert any("the document has 23%" in claim.evidence for claim in outcome.claims)
    assert all(
        math.isfinite(point["y"]) for plot in outcome.plots for points in plot.series.values() for point in points
    )


def saved(*values):
    return {f"model {i}": {"tokens": value} for i, value in enumerate(values)}


@pytest.mark.parametrize(
    ("savings", "holds"),
    [
        (saved(Estimate(0.3, 0.2, 0.4), Estimate(0.1, 0.05, 0.2)), True),
        (saved(Estimate(-0.3, -0.4, -0.2)), False),
        (saved(Estimate(0.3, 0.2, 0.4), Estimate(0.1, -0.05, 0.2)), None),
        (saved(Estimate(0.3, 0.2, 0.4), Estimate(-0.1, -0.2, -0.05)), None),
        (saved(Estimate(0.3)), None),
        (saved(Estimate(math.nan, math.nan, math.nan)), None),
        ({"model": {}}, None),
    ],
)
def test_savings_are_decided_by_their_intervals(savings, holds):
    claim = validate(Savings, settings("corpus"), "the settings")._claim("tokens", savings)
    assert claim.holds is holds
    assert "the document has 23%" in claim.evidence


def test_a_decaying_rate_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"training\.schedule: constant"):
        validate(Savings, settings("corpus", schedule="cosine"), "the settings")
