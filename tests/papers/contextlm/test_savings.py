"""Savings of a better model: laws with known answers, branches of one run, and a measurement in miniature."""

import math

import numpy as np
import pytest

from contextwise.base.config import validate
from contextwise.base.errors import ConfigError, DataError
from contextwise.base.estimates import Estimate
from contextwise.base.runs import RunFolder
from contextwise.data import prepare_corpus
from contextwise_papers.contextlm.figure_1_savings import Family, Savings, _end, saved_share, saved_text
from contextwise_plan.scaling.forms import DATA_AND_SIZE
from contextwise_plan.scaling.observations import observations
from contextwise_plan.sweeps.points import SweepPoint
from shipped import an_item
from small import write_documents

SIZES, BUDGETS, SEEDS = (1e6, 3e6, 9e6), (1e8, 3e8, 9e8), (0, 1, 2)


def law(n, d, gain=1.0):
    """Nats; a model with a gain learns as from so many times the tokens."""
    return 2.0 + 30 / n**0.3 + 60 / (gain * d) ** 0.25


def family(gain=1.0, dearer=1.0, noise=0.0, luck_seed=0):
    draw = np.random.default_rng(luck_seed)
    points = []
    for size, n in enumerate(SIZES):
        for seed in SEEDS:
            luck = noise * draw.normal()
            for d in BUDGETS:
                loss = law(n, d, gain) * (1 + luck + 0.2 * noise * draw.normal())
                points.append(
                    SweepPoint(
                        f"{size}-s{seed}", str(size), int(n), 64, seed, 1, int(d), 6 * n * d * dearer, 1.0, loss, None
                    )
                )
    return Family(observations(points), resamples=100)


def small(corpus="corpus", **training):
    sizes = {"tiny": 8, "small": 16, "large": 32}
    models = {}
    for name, width in sizes.items():
        models |= {
            f"a {name}": [f"model.width={width}"],
            f"b {name}": [f"model.width={width}", "training.learning_rate=4e-3"],
        }
    return {
        "corpus": str(corpus),
        "recipe": {
            "name": "small",
            "data": {"context": 16},
            "model": {"layers": 1, "heads": 2},
            "training": {
                "tokens_per_step": 64,
                "warmup_steps": 1,
                "learning_rate": 2e-3,
                "schedule": "wsd",
                "evaluate_every": 20,
                "evaluation_tokens": 256,
                "save_every": 20,
            }
            | training,
        },
        "tokens": [320, 640, 1280],
        "models": models,
        "seeds": [0, 1, 2],
        "reference": "a large",
        "pairs": [{"model": f"b {size}", "baseline": f"a {size}"} for size in sizes],
        "printed_savings": {"tokens": 0.23},
    }


def test_a_gain_in_data_is_read_off_the_laws():
    measure = validate(Savings, small() | {"tokens": list(map(int, BUDGETS))}, "the settings")
    base, better = family(noise=1e-3), family(gain=1.6, dearer=1.1, noise=1e-3, luck_seed=1)
    for size in range(3):
        saved = measure._saved(better, base, size)
        for name, true in (("tokens", 1 - 1 / 1.6), ("FLOPs", 1 - 1.1 / 1.6)):
            low, high = saved[name].limits
            assert low < true < high and high - low < 0.2, (name, saved[name])
        # The same loss with fewer parameters and as many tokens: the law solved for them.
        target = law(SIZES[size], BUDGETS[-1]) - 2.0 - 60 / (1.6 * BUDGETS[-1]) ** 0.25
        true = 1 - (30 / target) ** (1 / 0.3) / SIZES[size]
        low, high = saved["parameters"].limits
        assert low < true < high


def test_nothing_is_read_off_a_term_at_a_bound(tmp_path):
    measure = validate(Savings, small() | {"tokens": list(map(int, BUDGETS))}, "the settings")
    base, better = family(noise=1e-3), family(gain=1.6, noise=1e-3)
    assert better.determines("size") and better.determines("data")
    better.theta[0, 2] = DATA_AND_SIZE.bounds[0][2]
    saved = {f"model {size}": measure._saved(better, base, size) for size in range(3)}
    assert {saved_text(each["parameters"]) for each in saved.values()} == {"not determined"}
    assert all(math.isfinite(each["tokens"].value) for each in saved.values())
    claim = measure._claim("parameters", "as in the document", saved)
    assert claim.holds is None and "do not determine this term" in claim.evidence


def test_a_loss_that_is_not_a_number_stops_the_fit(tmp_path, monkeypatch):
    row = {"step": 1, "tokens": 64, "flops": 1.0, "seconds": 1.0, "loss": math.nan}
    monkeypatch.setattr(RunFolder, "metrics", lambda self, kind: [row])
    monkeypatch.setattr(RunFolder, "recipe", lambda self: {"data": {"context": 16}})
    with pytest.raises(DataError, match="is not a number, so no law can be fitted"):
        _end(tmp_path, "00", 0)


def test_equal_families_save_nothing():
    measure = validate(Savings, small() | {"tokens": list(map(int, BUDGETS))}, "the settings")
    for estimate in measure._saved(family(noise=1e-3), family(noise=1e-3), 1).values():
        assert (estimate.value, *estimate.limits) == pytest.approx((0, 0, 0), abs=1e-6)


def test_a_loss_that_no_law_reaches_takes_endlessly_many():
    fitted = family()
    assert np.isinf(fitted.reached(np.full(101, 1.5), tokens=1e9)).all()
    own = fitted.loss(3e6, 3e8)
    assert fitted.reached(own, tokens=3e8) == pytest.approx(3e6)
    assert fitted.reached(own, parameters=3e6) == pytest.approx(3e8)


def test_every_point_is_a_finished_run_that_decays_to_its_end(tmp_path):
    measure = validate(Savings, small(), "the settings")
    runs = measure.run_set(tmp_path)
    assert len(runs.runs) == 6 * 3 * 3
    recipes = {(run.arm, run.seed): run.planned_recipe() for run in runs.runs}
    for seed in (0, 1):
        whole = recipes["a large", seed]
        assert (whole.total_tokens, whole.training.branches) == (1280, [320, 640])
        branch = recipes["a large, 640 tokens", seed]
        assert branch.total_tokens == 640 and branch.training.trunk == str(whole.folder)


@pytest.mark.slow
def test_a_measurement_in_miniature(tmp_path):
    source = write_documents(tmp_path / "text.jsonl", 60)
    corpus = prepare_corpus(source, "bytes", tmp_path / "corpus", validation=0.3).path
    measure = validate(Savings, small(corpus), "the settings")
    outcome = measure.measure(an_item(), tmp_path / "out")
    assert len(outcome.runs) == 54 and all(RunFolder(path).finished for path in outcome.runs)
    # Twice the rate learns faster here.
    tokens, flops = (outcome.figures["savings"]["b large"][name]["value"] for name in ("tokens", "FLOPs"))
    assert 0 < tokens < 1
    assert flops == pytest.approx(tokens), "both models do the same operations for a token"
    assert [plot.title for plot in outcome.plots] == [
        "Loss against parameters",
        "Loss against training tokens",
        "Loss against training FLOPs",
    ]
    assert any("the document has 23%" in claim.evidence for claim in outcome.claims)
    assert all(
        math.isfinite(point["y"]) for plot in outcome.plots for points in plot.series.values() for point in points
    )


def test_a_saving_at_its_bound_is_said_in_words():
    assert saved_text(saved_share(np.full(50, np.inf), 6, 3)) == "needs more than 4×"
    assert saved_text(saved_share(np.full(50, 0.01), 6, 3)) == "needs less than 1/4"
    assert saved_text(saved_share(np.append(np.inf, np.geomspace(5, 500, 50)), 6, 3)) == "needs more than 4×"
    assert saved_text(Estimate(-3.0, -3.0, -0.5)) == "−300% [−300%, −50%]"
    some = np.where(np.arange(51) % 10 == 3, np.inf, 0.8)
    assert saved_share(some, 6, 3).decided is False, "a tenth of the laws never reach the loss"


@pytest.mark.parametrize("error", [0.5, 1.0, 1.5])
def test_the_interval_of_a_saving_that_is_not_there_excludes_zero_no_more_often_than_it_says(error):
    """Log ratios around zero, and an ensemble as wide around each."""
    rng = np.random.default_rng(0)
    fits = error * rng.standard_normal(400)
    wrong = sum(
        saved_share(np.exp(np.append(fit, fit + error * rng.standard_normal(100))), 6, 3).decided for fit in fits
    )
    assert wrong <= 0.07 * len(fits)
    assert saved_text(Estimate(0.23)) == "23%"


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
    ],
)
def test_savings_are_decided_by_their_intervals(savings, holds):
    claim = validate(Savings, small(), "the settings")._claim("tokens", "as in the document", savings)
    assert claim.holds is holds
    assert "the document has 23%" in claim.evidence


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tokens": [64, 64, 128]}, "3 different budgets"),
        ({"pairs": small()["pairs"][:2]}, "needs 3 sizes or more, and pairs have 2"),
        ({"recipe": small(schedule="cosine")["recipe"]}, r"training\.schedule: wsd"),
    ],
)
def test_what_determines_no_law_is_refused(changes, words):
    with pytest.raises(ConfigError, match=words):
        validate(Savings, small() | changes, "the settings")
