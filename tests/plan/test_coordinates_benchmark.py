"""``benchmarks/coordinates.py``: slopes by hand, and what each parametrization does to activations."""

import numpy as np
import pytest
from benchmarks import coordinates

from contextwise_plan.transfer import load_transfer, recipe_at
from small import recipe_values


def values(corpus, output, widths):
    recipe = recipe_values(corpus, output / "unused")
    recipe.pop("output")
    return {"recipe": recipe, "widths": widths, "output": str(output)}


def checked(settings, steps=10, seeds=5):
    """The coordinates at the widths of a transfer."""
    recipes = {width: recipe_at(settings, width) for width in settings.widths}
    return coordinates.coordinates(recipes, steps, seeds)


def test_the_coordinate_check_reads_one_short_text(corpus_folder, tmp_path, monkeypatch):
    shapes, measured = set(), coordinates._activations

    def seen(model, input_ids):
        shapes.add(tuple(input_ids.shape))
        return measured(model, input_ids)

    monkeypatch.setattr(coordinates, "_activations", seen)
    monkeypatch.setattr(coordinates, "CHECK_TOKENS", 16)  # of windows of 32
    checked(load_transfer(values(corpus_folder, tmp_path, widths=[16, 32])), steps=2, seeds=2)
    assert shapes == {(1, 16)}


def test_slopes_over_the_widths_by_hand():
    """Three seeds whose sizes are powers of the width: exponents 0.1, 0.2 and 0.3 at the first step, 0 at the second."""
    exponents_ST = np.array([[0.1, 0.0], [0.2, 0.0], [0.3, 0.0]])
    logs_WST = np.log([16, 64])[:, None, None] * exponents_ST
    found = coordinates._coordinate("gate", [16, 64], logs_WST)
    assert found.slopes == pytest.approx([0.2, 0.0])
    half = 4.3027 * 0.05 / 3**0.5  # the t-interval of 0.05, 0.1 and 0.15
    assert found.slope.limits == pytest.approx((0.1 - half, 0.1 + half), rel=1e-4)
    assert found.sizes == pytest.approx({16: 1, 64: 1})


@pytest.mark.slow
def test_mup_keeps_the_sizes_of_activations(corpus_folder, tmp_path):
    """Under the standard parametrization they grow with the width; under µP they do not: backbone, predictor and gate."""
    for name, most in (("standard", None), ("mup", 0.15)):
        given = values(corpus_folder, tmp_path, widths=[32, 128])
        given["recipe"]["training"] |= {"parametrization": name, "mup_base_width": 32, "learning_rate": 1e-2}
        found = {each.name: each.slope.value for each in checked(load_transfer(given))}
        for part in ("backbone", "predictor", "gate"):
            assert abs(found[part]) < most if most else found[part] > 0.2, (name, part, found[part])


@pytest.mark.slow
@pytest.mark.parametrize(("head", "parts"), [("layer", ["backbone", "head"]), ("linear", ["backbone"])])
def test_the_heads_of_several_tokens_are_checked(corpus_folder, tmp_path, head, parts):
    """The last of three heads: its block, and the logits of all further heads; under µP neither grows with the width."""
    given = values(corpus_folder, tmp_path, widths=[32, 128])
    given["recipe"]["training"] |= {"parametrization": "mup", "mup_base_width": 32, "learning_rate": 1e-2}
    given["recipe"]["model"].pop("context_predictor")
    given["recipe"]["model"]["multi_token"] = {"future_tokens": 3, "head": head}
    found = {each.name: each for each in checked(load_transfer(given))}
    assert [name for name in found if f"change of {name}" in found] == [*parts, "logits", "further logits"]
    assert all(abs(found[part].slope.value) < 0.15 for part in parts) and found["further logits"].slope.value < 0.05
