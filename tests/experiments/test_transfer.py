"""Transfer of learning rates: the fit by hand, the rate of a larger width, refusals, and the verb on a small recipe."""

import json

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from contextwise.base.errors import ConfigError
from contextwise.experiments import transfer
from contextwise.experiments.transfer import best_factor, load_transfer
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


def values(corpus, output, **settings):
    recipe = recipe_values(corpus, output / "unused")
    recipe.pop("output")
    return {"recipe": recipe, "widths": [16, 32], "factors": FACTORS, "output": str(output)} | settings


def fitted(corpus, tmp_path, slopes):
    """The rows and the rate at width 64 for losses whose best factor at width 16 is 1; a slope for each seed."""
    given = load_transfer(values(corpus, tmp_path, seeds=[0, 1, 2], to=64))
    losses = [
        [[(x - slope * np.log2(width / 16)) ** 2 for slope in slopes] for x in np.log2(FACTORS)]
        for width in given.widths
    ]
    return transfer._fitted(given, np.array(losses), 64)


def test_one_rate_for_all_widths(corpus_folder, tmp_path):
    rows, seeds, slope, _, factor = fitted(corpus_folder, tmp_path, [-0.1, 0.0, 0.1])
    assert seeds == 3 and slope.value == pytest.approx(0, abs=1e-6) and slope.low < 0 < slope.high
    assert factor.value == pytest.approx(1, abs=1e-6) and factor.low < 1 < factor.high
    assert [row.cost for row in rows] == pytest.approx([0, 0])


def test_a_rate_that_falls_with_the_width_is_continued(corpus_folder, tmp_path):
    rows, _, slope, _, factor = fitted(corpus_folder, tmp_path, [-0.51, -0.5, -0.49])
    assert slope.value == pytest.approx(-0.5) and rows[1].best.value == pytest.approx(2**-0.5)
    assert factor.value == pytest.approx(2 ** (-0.5 * 2))


def test_the_verb_trains_checks_and_answers(corpus_folder, contextwise):
    recipe = recipe_values(corpus_folder, contextwise.folder / "unused", steps=2, evaluate_every=0)
    recipe.pop("output")
    (contextwise.folder / "small.yaml").write_text(yaml.safe_dump(recipe))
    line = "transfer small.yaml --widths 16,32 --factors 0.5,1,2 --seeds 2 --out out"
    status, output, errors = contextwise(line, "--json")
    assert status == 0, errors
    result = json.loads(output)
    assert [row["width"] for row in result["rows"]] == [16, 32]
    measured = {each["name"] for each in result["coordinates"]}
    assert measured >= {"backbone", "predictor", "gate", "logits", "change of logits"}
    assert json.loads((contextwise.folder / "out/transfer.json").read_text()) == result
    assert len(list((contextwise.folder / "out/runs").iterdir())) == 12
    assert "Mean size of activations after 10 steps" in contextwise.words(line)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"widths": [16, 24]}, "24 cannot be divided into heads of 16 channels"),
        ({"widths": [32, 16]}, "must be ascending"),
        ({"factors": [-1.0, 1.0, 2.0]}, "must be above 0"),
        ({"factors": [1.0, 2.0]}, "at least 3"),
        ({"seeds": [0]}, "at least 2"),
    ],
)
def test_what_cannot_be_searched_is_refused(corpus_folder, tmp_path, settings, sentence):
    with pytest.raises(ConfigError, match=sentence):
        load_transfer(values(corpus_folder, tmp_path, **settings))


def test_a_pretrained_model_has_no_other_width(corpus_folder, tmp_path):
    given = values(corpus_folder, tmp_path)
    given["recipe"]["model"] = {"pretrained": "gpt2"}
    with pytest.raises(ConfigError, match="a model of a named size"):
        load_transfer(given)


def test_mup_keeps_the_sizes_of_activations(corpus_folder, tmp_path):
    """Under the standard parametrization logits grow; under µP they do not."""
    slopes = {}
    for name in ("standard", "mup"):
        given = values(corpus_folder, tmp_path, widths=[32, 128])
        given["recipe"]["training"] |= {"parametrization": name, "mup_base_width": 32, "learning_rate": 1e-2}
        found = {each.name: each.slopes[-1] for each in transfer.coordinates(load_transfer(given))}
        slopes[name] = found["change of logits"]
    assert abs(slopes["mup"]) < 0.15 < slopes["standard"]
