"""Transfer of learning rates: the fit by hand, the rate of a larger width, refusals, and the verb on a small recipe."""

import json
import math

import numpy as np
import pytest
import yaml
from benchmarks.widths import verdict
from hypothesis import given
from hypothesis import strategies as st

from contextwise.base.errors import ConfigError, DataError
from contextwise.base.estimates import Estimate
from contextwise.base.runs import RunFolder
from contextwise_plan import transfer
from contextwise_plan.transfer import WidthRow, best_factor, load_transfer
from small import recipe_values

FACTORS = [0.25, 0.5, 1.0, 2.0, 4.0]


@given(st.floats(-1, 1), st.floats(0.01, 10), st.floats(-5, 5))
def test_the_minimum_of_a_parabola_is_found(minimum, curvature, offset):
    losses = [curvature * (x - minimum) ** 2 + offset for x in np.log2(FACTORS)]
    assert best_factor(FACTORS, losses) == pytest.approx(2**minimum, rel=1e-3)


def test_an_edge_and_a_diverged_neighbour():
    assert best_factor(FACTORS, [1, 2, 3, 4, 5]) is None
    assert best_factor(FACTORS, [5, 4, 3, 2, np.inf]) == 2.0  # the largest that trains, without a parabola
    assert best_factor(FACTORS, [5, 4, np.inf, np.inf, np.inf]) == 0.5


def test_what_the_benchmark_of_widths_calls_a_transfer():
    """Best factors 1.3, 1 and 1, and a cost of 0.02 at 64 of the lowest at 128; then one beyond a step; then an edge."""

    def row(width, best, losses):
        return WidthRow(width, dict(zip((0.5, 1.0, 2.0), losses, strict=True)), best and Estimate(best), 0.0)

    near = [row(64, 1.3, (3.2, 3.02, 3.0)), row(128, 1.0, (3.1, 3.0, 3.1)), row(256, 1.0, (3.1, 2.9, None))]
    found = verdict(near)
    assert found["farthest"] == pytest.approx(1.3) and found["costs"] == pytest.approx([0.02, 0, 0])
    assert not found["transfers"] and verdict(near[1:])["transfers"]
    assert not verdict([near[1], row(256, 0.7, (3.0, 3.0, 3.1))])["transfers"]
    assert verdict([near[1], row(256, None, (2.9, 3.0, 3.1))])["farthest"] is None


def values(corpus, output, **settings):
    recipe = recipe_values(corpus, output / "unused")
    recipe.pop("output")
    return {"recipe": recipe, "widths": [16, 32], "factors": FACTORS, "output": str(output)} | settings


def fitted(corpus, tmp_path, slopes, start=0.0, **settings):
    """The result for losses whose best factor at width 16 is 2 to the power of ``start``; a slope for each seed."""
    given = load_transfer(values(corpus, tmp_path, seeds=list(range(len(slopes))), **settings))
    losses = [
        [[(x - start - slope * np.log2(width / 16)) ** 2 for slope in slopes] for x in np.log2(given.factors)]
        for width in given.widths
    ]
    return transfer.fitted(given, np.array(losses))


def test_one_rate_for_all_widths(corpus_folder, tmp_path):
    result = fitted(corpus_folder, tmp_path, [-0.05, 0.0, 0.05])
    # The t-interval of three slopes, and of their lines' values at width 64, two doublings above the first.
    half = 4.3027 * 0.05 / 3**0.5
    assert result.slope.limits == pytest.approx((-half, half), rel=1e-3)
    assert result.factor.value == pytest.approx(1, abs=1e-6)
    assert result.factor.limits == pytest.approx((2 ** (-2 * half), 2 ** (2 * half)), rel=1e-3)
    assert [row.cost for row in result.rows] == pytest.approx([0, 0])
    rate, answer = result.sentences
    assert rate.startswith("One rate suits all widths: with each doubling of the width the best rate is ")
    assert answer.startswith("At width 64: learning_rate 0.003 (the recipe's × 1 [0.84")


def test_a_rate_that_falls_with_the_width_is_continued(corpus_folder, tmp_path):
    result = fitted(corpus_folder, tmp_path, [-0.51, -0.5, -0.49])
    assert result.slope.value == pytest.approx(-0.5) and result.rows[1].best.value == pytest.approx(2**-0.5)
    assert result.factor.value == pytest.approx(2 ** (-0.5 * 2))
    assert result.sentences[0].startswith("The best rate changes with the width: with each doubling")
    assert "is multiplied by 0.707 [" in result.sentences[0]
    assert result.sentences[1].startswith("At width 64: learning_rate 0.0015 (the recipe's × 0.5 [")


def test_equal_slopes_are_continued_without_an_interval(corpus_folder, tmp_path):
    """As where a neighbour of each best factor diverged, so that it is one of the given factors."""
    factors = [0.125, *FACTORS]
    result = fitted(corpus_folder, tmp_path, [-1, -1], widths=[16, 32, 64], to=128, factors=factors)
    assert result.factor.value == pytest.approx(0.125) and not result.factor.has_interval
    assert "is open (the slopes of the 2 seeds are equal, so there is no interval): with each" in result.sentences[0]


def test_slopes_that_differ_leave_it_open(corpus_folder, tmp_path):
    result = fitted(corpus_folder, tmp_path, [-0.6, 0.2])
    assert "Whether one rate suits all widths is open (2 seeds do not tell)" in result.sentences[0]
    assert result.factor.value == pytest.approx(2 ** (-0.2 * 2))
    assert result.factor.low < 0.1 and result.factor.high > 1


def test_one_seed_at_an_edge_is_said_to_be_one(corpus_folder, tmp_path):
    result = fitted(
        corpus_folder, tmp_path, [0, 2.5]
    )  # at width 32 the best factors are 1 and, beyond all of them, 5.7
    assert result.rows[1].best is None and min(result.rows[1].losses, key=result.rows[1].losses.get) == 2.0
    why = "the lowest loss of at least one seed is at an edge of the factors at width 32; give more factors"
    assert result.sentences[-1] == f"No rate follows: {why}."


def test_a_width_at_which_everything_diverged_is_no_edge(corpus_folder, tmp_path):
    given = load_transfer(values(corpus_folder, tmp_path, seeds=[0, 1]))
    losses = np.array([[[(x - 1) ** 2] * 2 for x in range(len(given.factors))], [[np.inf] * 2] * len(given.factors)])
    result = transfer.fitted(given, losses)
    assert (
        "No rate follows: at width 32 no factor has finite losses of all seeds; give lower factors." in result.sentences
    )


@pytest.mark.long
def test_the_verb_trains_and_answers(corpus_folder, contextwise, monkeypatch):
    monkeypatch.setattr(transfer, "FARTHEST", math.inf)  # one factor shall diverge at once
    recipe = recipe_values(corpus_folder, contextwise.folder / "unused", steps=2, evaluate_every=0)
    recipe.pop("output")
    recipe["training"]["learning_rate"] = 1.0  # so that the best factor is none at an edge
    (contextwise.folder / "small.yaml").write_text(yaml.safe_dump(recipe))
    line = "plan transfer small.yaml --widths 16,32 --factors 1e-4,0.01,1e30 --seeds 2 --to 128 --out out"
    dry = f"{line} --corpus {corpus_folder} --dry-run"
    assert "12 runs (12 missing)" in contextwise.words(dry)
    assert len(json.loads(contextwise(dry, "--json")[1])["runs"]) == 12 and not (contextwise.folder / "out").exists()
    contextwise.refused(f"{dry} --set data.corpus=b", "data.corpus is given twice")
    contextwise.refused(f"{line} --corpus nowhere --dry-run", "there is no corpus at nowhere")
    status, output, errors = contextwise(line, "--json")
    assert status == 0, errors
    result = json.loads(output)
    assert [row["width"] for row in result["rows"]] == [16, 32]
    assert json.loads((contextwise.folder / "out/transfer.json").read_text()) == result
    losses = {}
    for run in map(RunFolder, (contextwise.folder / "out/runs").iterdir()):
        recipe = run.recipe()
        assert run.finished != run.diverged
        loss = run.summary()["validation_loss"] if run.finished else np.inf
        at = recipe["model"]["width"], recipe["training"]["learning_rate"]
        losses.setdefault(at, []).append(loss)
    assert len(losses) == 6
    for row in result["rows"]:
        for factor, loss in row["losses"].items():
            both = losses[row["width"], float(factor)]
            assert loss == (pytest.approx(np.mean(both)) if np.isfinite(both).all() else None)
    assert result["rows"][0]["losses"]["1e+30"] is None  # diverged
    ends = [row["best"]["value"] for row in result["rows"]]
    slope = np.log2(ends[1] / ends[0])
    assert result["slope"]["value"] == pytest.approx(slope)
    assert result["factor"]["value"] == pytest.approx(ends[1] * 2 ** (2 * slope))
    words = contextwise.words(line)
    assert " ".join(result["sentences"]) in words
    status, _, errors = contextwise(f"{line} --set training.parametrization=mup")
    assert status == 2 and "out holds the transfer of another recipe (it differs in training.parametrization)" in errors
    (contextwise.folder / "notes").mkdir()
    (contextwise.folder / "notes/mine.txt").write_text("mine")
    for dry in ("", " --dry-run"):
        contextwise.refused(line.replace("--out out", f"--out notes{dry}"), "notes is not empty and holds no transfer")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"widths": [16, 24]}, "24 cannot be divided into heads of 16 channels"),
        ({"to": 40}, "to: 40 cannot be divided into heads of 16 channels"),
        ({"widths": [32, 16]}, "must be ascending"),
        ({"widths": [16]}, "widths .* at least 2"),
        ({"factors": [-1.0, 1.0, 2.0]}, "must be above 0"),
        ({"factors": [1.0, 2.0]}, "three or more"),
        ({"factors": [1.0, 2.0, math.inf]}, "finite"),
        ({"factors": [0.01, 1.0, 100.0]}, "at most 4 times apart, and 0.01 and 1 are 100 times"),
        ({"seeds": [0]}, "at least 2"),
    ],
)
def test_what_cannot_be_searched_is_refused(corpus_folder, tmp_path, settings, sentence):
    with pytest.raises(ConfigError, match=sentence):
        load_transfer(values(corpus_folder, tmp_path, **settings))


def test_a_factor_multiplies_the_recipes_own_rate_at_every_width(corpus_folder, tmp_path):
    recipe = {"model": {"family": "gpt2", "size": "pico"}, "data": {"corpus": str(corpus_folder), "context": 16}}
    training = {"tokens": 4096, "tokens_per_step": 64}
    given = values(corpus_folder, tmp_path, widths=[32, 128]) | {
        "recipe": {"name": "own", "training": training, **recipe}
    }
    settings = load_transfer(given)
    own = settings.own_recipe.learning_rate
    for run in transfer.search_runs(settings).runs:
        assert run.recipe().learning_rate == pytest.approx(own * float(run.arm.split("x")[1]))
    assert {transfer.recipe_at(settings, width).learning_rate for width in settings.widths} == {own}


@pytest.mark.parametrize(
    ("recipe", "sentence"),
    [
        ({"model": {"pretrained": "gpt2"}}, "a model of a named size"),
        (
            {"model": {"family": "bert", "size": "pico"}, "objective": "masked"},
            "a causal language model, and model.family is bert",
        ),
        ({"data": {"validation_split": "lost"}}, "no validation split, on whose loss rates are compared"),
        ({"training": {"evaluation_tokens": 0}}, "training.evaluation_tokens is 0, but rates are compared by"),
    ],
)
def test_recipes_without_another_width_or_a_loss_are_refused(corpus_folder, tmp_path, recipe, sentence):
    given = values(corpus_folder, tmp_path)
    for section in ("data", "training"):
        recipe = {**recipe, section: given["recipe"][section] | recipe.get(section, {})}
    given["recipe"] |= recipe
    with pytest.raises((ConfigError, DataError), match=sentence):
        load_transfer(given)


def test_more_seeds_than_a_machine_can_count_are_refused(contextwise):
    contextwise.refused(f"plan transfer gpt2-nano --seeds {10**30}", "1000")
