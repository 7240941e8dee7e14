"""The parametric losses: values by hand, derivatives by differences."""

from pathlib import Path

import numpy as np
import pytest

from contextwise_plan.scaling.forms import ONE_SIZE, SEVERAL_SIZES, Law, features_of

FORMS = {form.name: form for form in SEVERAL_SIZES}


def test_the_loss_of_a_hand_worked_example():
    # E = 1, C/l^γ = 8/√16 = 2, B/N^β = 1000/10^6^½ = 1, A·l^b/D^α = 30·16^¼/10^4^½ = 0.6
    theta = np.array([0, np.log(8), -0.5, np.log(1000), -0.5, np.log(30), -0.5, 0.25])
    law = Law(FORMS["harder"], theta, np.zeros(3))
    assert law.loss(16, 1e6, 1e4) == pytest.approx(1 + 2 + 1 + 0.6, rel=1e-14)


@pytest.mark.parametrize("form", [*ONE_SIZE, *SEVERAL_SIZES], ids=lambda form: form.formula)
def test_derivatives_are_those_of_the_value(form):
    draw = np.random.default_rng(0)
    features = {name: draw.normal(size=7) for name in ("l", "N", "D")} | {"1": np.ones(7)}
    features["lD"] = features["l"] * features["D"]
    features["lT"] = features["l"] * (features["D"] + 15)
    theta = draw.normal(size=(3, len(form.parameters))) * 0.4
    _, slopes = form.value_and_slope(theta, features)
    for i in range(theta.shape[1]):
        nudge = np.zeros_like(theta)
        nudge[:, i] = 1e-6
        above, _ = form.value_and_slope(theta + nudge, features)
        below, _ = form.value_and_slope(theta - nudge, features)
        np.testing.assert_allclose(slopes[:, :, i], (above - below) / 2e-6, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("form", [*ONE_SIZE, *SEVERAL_SIZES], ids=lambda form: form.formula)
def test_the_printed_numbers_are_those_of_the_formula(form):
    """The formula itself, evaluated with the printed numbers, gives the fitted loss at any point."""
    draw = np.random.default_rng(1)
    theta = draw.normal(size=len(form.parameters)) * 0.2
    law = Law(form, theta, np.log([300, 2e6, 5e6]))
    numbers = {name: float(value) for name, value in law.printed().items()}
    names = {"γ": "gamma", "β": "beta", "α": "alpha", "δ": "delta", "ln l": "log(l)", "·": "*", "^": "**"}
    formula = form.formula
    for symbol, name in names.items():
        formula = formula.replace(symbol, name)
    for context, parameters, tokens in ((64, 1e5, 1e6), (2048, 9e6, 4e8)):
        values = numbers | {"l": context, "N": parameters, "D": tokens, "log": np.log}
        assert law.loss(context, parameters, tokens) == pytest.approx(eval(formula, values), rel=1e-9)


def test_an_ensemble_is_its_laws_side_by_side():
    draw = np.random.default_rng(2)
    theta = draw.normal(size=(4, 9)) * 0.2
    form, centre = FORMS["slower"], np.log([300, 2e6, 5e6])
    context, tokens = np.array([64, 512, 2048]), np.array([1e6, 2e6, 3e6])
    together = Law(form, theta, centre).loss(context[None], 1e6, tokens[None])
    one_by_one = [Law(form, row, centre).loss(context, 1e6, tokens) for row in theta]
    np.testing.assert_allclose(together, one_by_one, rtol=1e-13)


def test_features_broadcast():
    features = features_of(np.zeros(3), np.array([[2.0], [4.0]]), 3.0, np.array([[1.0, 5.0, 7.0]]))
    assert {value.shape for value in features.values()} == {(2, 3)}
    assert features["lD"][1, 2] == pytest.approx(np.log(4) * np.log(7))


def test_the_guide_names_every_form() -> None:
    guide = (Path(__file__).parents[3] / "docs" / "plan.md").read_text()
    assert [form.name for form in (*ONE_SIZE, *SEVERAL_SIZES) if f"`{form.name}`" not in guide] == []
