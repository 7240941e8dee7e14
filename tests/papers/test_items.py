"""The items that ship of intrinsic entropy, context scaling and objectives: each parses and can be planned without a corpus."""

import json
from pathlib import Path

import pytest

from contextwise.experiments.cost import cost_of, costs_of
from contextwise_papers.claims import LEAST_SEEDS
from contextwise_papers.item import measure_at
from contextwise_papers.models import GivenModel
from contextwise_papers.tables import printed_table
from shipped import ALL_ITEMS

DOCUMENTS = ("intrinsic_entropy", "context_scaling", "objectives")
SHIPPED = {name: item for name, item in ALL_ITEMS.items() if name.startswith(DOCUMENTS)}
OUTCOMES = sorted((Path(__file__).parents[2] / "benchmarks/results/reproduce").glob("*-tiny-cpu.json"))
CUE = tuple(f"cue/{number}" for number in ("figure4", "figure5", "table4", "table5"))
MANY = (*CUE, "contextlm/figure1", "contextlm/figure4a", "intrinsic_entropy/figure12")
"""Items of many runs, alike to those of others."""
FIGURES = [1, 2, 3, 4, 5, 7, 9, 10, 12, 13, 15]
OF_ONE_MODEL = [f"intrinsic_entropy/figure{n}" for n in (1, 2, 3, 10, 15)]


def test_every_figure_with_numbers_has_an_item():
    of_entropy = {f"intrinsic_entropy/figure{n}" for n in FIGURES}
    assert of_entropy | {"intrinsic_entropy/table1", "intrinsic_entropy/dimension"} <= set(SHIPPED)
    assert {f"objectives/exercise-6.2.{n}" for n in (1, 2, 3, 4)} <= set(SHIPPED)


@pytest.mark.long
@pytest.mark.parametrize("published", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in MANY else name for name in ALL_ITEMS]
)
def test_every_item_can_be_planned_at_every_scale_without_a_corpus(name, published, tmp_path):
    """The runs of every scale are valid recipes; building the published models, to count their parameters, is slow."""
    item = ALL_ITEMS[name]
    for scale, scale_settings in item.scales.items():
        assert scale_settings.supports, f"{scale} does not say what it supports"
        measure = measure_at(item, scale)
        # Seeds cost the same; of CUE's runs each is planned behind its parents.
        recipes = [recipe for recipe in measure.recipes(tmp_path) if recipe.seed == 0 or not name.startswith("cue/")]
        alike = {recipe.model_dump_json(exclude={"seed", "name", "output"}): recipe for recipe in recipes}
        of_parity = item.measure.startswith("parity_")
        if scale == "paper" and not published and not of_parity:
            continue
        plans = costs_of(list(alike.values()), measure.vocab_size)
        if scale == "tiny" and name in SHIPPED:  # which has a few seeds of each
            assert sum(planned.flops for planned in plans) < 2e14
        plans += measure.passes(tmp_path) if isinstance(measure, GivenModel) else []
        assert all(planned.flops > 0 and planned.parameters > 0 for planned in plans)
        if of_parity:  # every parameter is multiplied in every example
            assert all(planned.flops > 6 * planned.parameters * planned.examples * 0.5 for planned in plans)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ALL_ITEMS)
def test_a_tiny_run_takes_ten_minutes_or_says_why(name):
    scale = ALL_ITEMS[name].scales["tiny"]
    assert scale.minutes is not None
    assert bool(scale.over_ten_minutes) == (scale.minutes > 10)


@pytest.mark.parametrize("file", OUTCOMES, ids=lambda file: file.stem)
def test_the_minutes_of_an_item_are_those_of_its_outcome(file):
    outcome = json.loads(file.read_text())
    if outcome.get("seconds") is None:
        pytest.skip("the outcome is older than its time")
    document, _, item = file.stem.removesuffix("-tiny-cpu").partition("-")
    assert outcome["seconds"] / 60 <= 1.25 * ALL_ITEMS[f"{document}/{item}"].scales["tiny"].minutes


@pytest.mark.parametrize("file", OUTCOMES, ids=lambda file: file.stem)
def test_what_an_outcome_decides_of_trained_models_has_seeds_enough(file):
    outcome = json.loads(file.read_text())
    seeds = {run["seed"] for run in outcome["runs"]}
    assert not 0 < len(seeds) < LEAST_SEEDS or all(claim["holds"] is None for claim in outcome["claims"])


@pytest.mark.parametrize("scale", ["tiny", "gpu", "paper"])
def test_figures_of_one_measurement_have_the_same_settings(scale):
    first, *others = (measure_at(SHIPPED[name], scale).model_dump(exclude={"show"}) for name in OF_ONE_MODEL)
    assert all(other == first for other in others)


@pytest.mark.slow
def test_the_papers_sweep_is_the_published_grid(tmp_path):
    measure = measure_at(SHIPPED["context_scaling/optimal-context"], "paper")
    recipes = measure.recipes(tmp_path)
    contexts = sorted({recipe.data.context for recipe in recipes})
    assert contexts == [2**n for n in range(7, 17)] and len(recipes) == 40
    plans = [cost_of(recipe) for recipe in recipes]
    millions = sorted({round(planned.parameters / 1e6) for planned in plans})
    printed = [124, 354, 772, 1600]
    assert all(abs(ours / theirs - 1) < 0.04 for ours, theirs in zip(millions, printed, strict=True))
    assert len({recipe.tokens_per_step for recipe in recipes}) == 1
    # 160 GPU hours of an H100 at 30% of its peak, attention left out.
    for planned in plans:
        assert 6 * planned.parameters * planned.tokens / (989e12 * 0.3 * 3600) == pytest.approx(160, rel=0.1)


@pytest.mark.parametrize("name", ALL_ITEMS)
def test_every_printed_table_has_a_title_for_each_column(name):
    table = printed_table(ALL_ITEMS[name].printed)
    if table is not None:
        assert all(len(row) == len(table.columns) for row in table.rows)
        assert table.__html__()
