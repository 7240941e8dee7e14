"""A sweep file and the runs that it stands for."""

import copy
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from contextwise.base.config import validate
from contextwise.base.errors import ConfigError
from contextwise.experiments.trial.settings import TrialSettings
from contextwise.models.sizes import OUR_SIZES, adamw_rate
from contextwise_papers.item import RECIPES
from contextwise_plan.sweeps.recipe import SweepRecipe, load_sweep, run_id
from contextwise_plan.sweeps.sweep import grid_runs
from sweeping import sweep_values

SWEEPS = RECIPES / "context_scaling"
# Items of contextwise reproduce lie beside them: tests/papers/test_items.py.
SHIPPED = sorted(path for path in SWEEPS.glob("*.yaml") if "\nscales:" not in path.read_text())
VALUES = sweep_values(Path("corpus"), Path("out"))


def sweep(**changes):
    return validate(SweepRecipe, copy.deepcopy(VALUES) | changes, "the sweep")


def with_base(section=None, **changes):
    base = copy.deepcopy(VALUES["base"])
    (base if section is None else base[section]).update(changes)
    return base


def test_every_combination_is_a_run_with_a_readable_id():
    grid = {"model.size": ["pico", "nano"], "data.context": [16, 32], "seed": [0, 1], "training.steps": [12]}
    recipes = sweep(grid=grid, base=with_base(model={"family": "llama"})).recipes()
    assert len(recipes) == 8
    assert {name.rpartition("-")[0] for name in recipes} == {
        f"{size}-c{context}-1.54k-s{seed}" for size in ("pico", "nano") for context in (16, 32) for seed in (0, 1)
    }
    first = next(iter(recipes.values()))
    assert (first.model.size, first.data.context, first.seed, first.training.steps) == ("pico", 16, 0, 12)


def test_settings_of_one_axis_change_together():
    pairs = [["pico", 1000], ["nano", 2000]]
    grid = {"model.size, training.tokens": pairs, "data.context": [16, 32]}
    recipes = sweep(grid=grid, base=with_base(model={})).recipes().values()
    assert [[recipe.model.size, recipe.training.tokens] for recipe in recipes] == [
        pairs[0],
        pairs[0],
        pairs[1],
        pairs[1],
    ]


def test_ids_depend_on_what_changes_the_result_and_on_nothing_else():
    ids = set(sweep().recipes())
    assert ids == set(sweep().recipes())
    turned = {"training.steps": [12], "data.context": [32, 16]}
    elsewhere = with_base("data", corpus="/another/place")
    same = [
        {"grid": turned},
        {"base": elsewhere},
        {"name": "other", "output": "x"},
        {"executor": {"jobs": 3}},
        {"base": with_base("training", save_every=7, beta1=0.9)},  # the default, said aloud
        {"base": with_base(output="runs/elsewhere", name="mine")},
    ]
    assert all(set(sweep(**changes).recipes()) == ids for changes in same)
    other = [
        {"base": with_base("training", weight_decay=0)},
        {"base": with_base("training", curve_longest=64)},
        {"base": with_base("model", extra_layers=1)},
        {"measurements": 3},
        {"base": with_base(seed=1)},
    ]
    assert all(set(sweep(**changes).recipes()).isdisjoint(ids) for changes in other)


def test_a_grid_that_grows_keeps_its_runs():
    more = {"data.context": [8, 16, 32], "training.steps": [12], "seed": [0, 1]}
    assert set(sweep().recipes()) < set(sweep(grid=more).recipes())


def test_tokens_per_step_stay_and_all_are_measured_at_the_longest_context():
    recipes = sweep(grid={"data.context": [8, 32, 128], "training.tokens": [5000]}).recipes().values()
    assert {recipe.tokens_per_step for recipe in recipes} == {128}
    assert {recipe.training.curve_longest for recipe in recipes} == {128}
    assert {recipe.training.schedule for recipe in recipes} == {"constant"}


@given(steps=st.integers(1, 5000), measurements=st.integers(1, 64))
def test_measurements_are_evenly_spaced_and_never_too_many(steps, measurements):
    wanted = sweep(
        base=with_base("training", warmup_steps=0),
        grid={"training.steps": [steps], "data.context": [16]},
        measurements=measurements,
    )
    every = next(iter(wanted.recipes().values())).training.curve_every
    measured = {*range(every, steps + 1, every), steps}
    assert len(measured) <= measurements
    assert every == 1 or -(-steps // (every - 1)) > measurements  # one step closer would be too many


def test_learning_rate_rules():
    sizes = {"model.width": [16, 32, 64], "data.context": [16], "training.steps": [12]}
    rate = with_base("training", learning_rate=4e-3)

    def rates(**changes):
        return [recipe.training.learning_rate for recipe in sweep(grid=sizes, **changes).recipes().values()]

    assert rates() == [adamw_rate(16), adamw_rate(32), adamw_rate(64)] and rates()[2] == OUR_SIZES["pico"].learning_rate
    assert rates(base=rate, learning_rate="fixed") == [4e-3] * 3
    assert rates(base=rate, learning_rate="width") == [4e-3, 2e-3, 1e-3]  # base is 16 wide
    text = with_base("training", learning_rate="4e-3")  # as YAML reads it
    assert (
        rates(base=text, learning_rate="width") == [4e-3, 2e-3, 1e-3]
        and rates(base=text, learning_rate="fixed") == [4e-3] * 3
    )
    scaled = with_base("training", learning_rate=4e-3, parametrization="mup", mup_base_width=32)
    with pytest.raises(ConfigError, match="parametrization: mup does by itself; set learning_rate to fixed"):
        rates(base=scaled, learning_rate="width")


def test_the_folder_of_a_run_is_that_of_its_recipe():
    assert all(run.recipe().folder == run.folder == Path("out/runs") / run.id for run in grid_runs(sweep()))


def test_base_may_be_a_recipe_file_whose_length_the_grid_replaces(tmp_path):
    recipe = VALUES["base"] | {"name": "plain", "seed": 3, "output": "runs/x"}
    recipe = copy.deepcopy(recipe)
    recipe["training"]["steps"] = 99
    (tmp_path / "plain.yaml").write_text(yaml.safe_dump(recipe))
    grid = {"training.tokens": [1280], "data.context": [16, 32]}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump({"base": "plain.yaml", "grid": grid}))
    wanted = load_sweep(tmp_path / "sweep.yaml")
    assert wanted.name == "sweep" and wanted.folder == Path("sweeps/sweep")
    assert {(recipe.total_steps, recipe.seed) for recipe in wanted.recipes().values()} == {(10, 3)}
    other = tmp_path / "other.yaml"
    other.write_text(yaml.safe_dump(recipe | {"seed": 4}))
    wanted = load_sweep(tmp_path / "sweep.yaml", [f"base={other}", "base.training.weight_decay=0.5"])
    found = {(recipe.seed, recipe.training.weight_decay) for recipe in wanted.recipes().values()}
    assert found == {(4, 0.5)}


def test_a_corpus_in_the_home_folder_is_the_same_in_the_settings_that_are_written(monkeypatch):
    """Its path was taken for that of a folder called ``~``."""
    monkeypatch.setenv("HOME", "/home/of/a/user")
    wanted, place = sweep(base=with_base("data", corpus="~/texts")), "/home/of/a/user/texts"
    assert wanted.resolved()["base"]["data"]["corpus"] == place
    assert {run.recipe().data.corpus for run in grid_runs(wanted)} == {place}
    assert TrialSettings(name="t", corpus="~/texts", arms={"gpt2": {}, "pm": {}}, recipe={}).corpus == place


def test_the_resolved_sweep_is_a_sweep_file_of_the_same_runs(tmp_path):
    wanted = sweep()
    (tmp_path / "again.yaml").write_text(yaml.safe_dump(wanted.resolved()))
    again = load_sweep(tmp_path / "again.yaml", output=tmp_path / "out")
    assert list(again.recipes()) == list(wanted.recipes())
    assert again.folder == tmp_path / "out"
    assert Path(wanted.resolved()["base"]["data"]["corpus"]) == Path.cwd() / "corpus"


def test_settings_may_be_given_beside_the_file(tmp_path):
    file = tmp_path / "sweep.yaml"
    file.write_text(yaml.safe_dump(VALUES))
    wanted = load_sweep(
        file, ["grid.data.context=[64]", "grid.seed=[1, 2]", "base.training.weight_decay=0.5", "executor.jobs=3"]
    )
    found = [(recipe.data.context, recipe.seed, recipe.training.weight_decay) for recipe in wanted.recipes().values()]
    assert found == [(64, 1, 0.5), (64, 2, 0.5)]
    assert wanted.executor.jobs == 3
    pairs = {"grid.data.context": [64], "base.training.weight_decay": 1e-05, "base.name": "α 🙂"}
    wanted = load_sweep(file, pairs)
    assert [r.training.weight_decay for r in wanted.recipes().values()] == [1e-5] * len(wanted.recipes())
    with pytest.raises(ConfigError, match="write --set base.training.steps=4"):
        load_sweep(file, ["training.steps=4"])
    with pytest.raises(ConfigError, match="is below 'grid', which is a single value"):
        load_sweep(file, ["grid=3", "grid.data.context=[64]"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"grid": {"data.context": [16, 24, 48], "training.steps": [12]}},
            "which is not a multiple of data.context (24)",
        ),
        ({"grid": {"data.contxt": [16]}}, "'data.contxt' cannot be an axis; did you mean 'data.context'?"),
        ({"grid": {"context": [16]}}, "'context' cannot be an axis; did you mean 'data.context'?"),
        ({"grid": {"training.beta1": [0.9]}}, "'training.beta1' cannot be an axis"),
        ({"grid": {"training.learning_rate": [1]}}, "'training.learning_rate' cannot be an axis"),
        ({"grid": {"training.tokens_per_step": [64]}}, "'training.tokens_per_step' cannot be an axis"),
        (
            {"base": {"training": {"examples_per_step": 8}}},
            "training.examples_per_step is given, but the runs of a sweep",
        ),
        ({"grid": {"data.context": [16, 16]}}, "data.context has 16 twice"),
        ({"grid": {"data.context": []}}, "data.context has no values"),
        ({"grid": {"data.context, data.context": [[8, 16]]}}, "data.context is in the grid twice"),
        ({"grid": {}}, "grid: it is empty"),
        ({"grid": {"seed, data.context": [[0, 16], [1]]}}, "[1] is no list of 2 values"),
        ({"grid": {"seed, data.context": [[0, 16]], "seed": [1]}}, "seed is in the grid twice"),
        ({"grid": {"training.steps": [5]}}, "which is not a multiple of data.context (256)"),
        ({"grid": {"training.steps": [5], "training.tokens": [640]}}, "they set the same length"),
        ({"grid": {"data.context": [16]}}, "set exactly one of steps, tokens and epochs"),
        (
            {"grid": {"training.steps": [5], "data.context": ["long"]}},
            "data.context holds 'long', which is no whole number",
        ),
        (
            {"grid": {"training.steps": [5], "data.context": [16, "32"]}},
            "data.context holds '32', which is no whole number",
        ),
        (
            {"grid": {"training.steps": [5], "data.context": [16.0]}},
            "data.context holds 16.0, which is no whole number",
        ),
        (
            {"grid": {"training.steps": [5], "data.context": [True]}},
            "data.context holds True, which is no whole number",
        ),
        ({"base": with_base("training", schedule="cosine")}, "each point along a run represents a smaller run"),
        ({"base": with_base("training", learning_rate=1e-3)}, "the rule is learning_rate: size"),
        ({"learning_rate": "fixed"}, "learning_rate: fixed needs base.training.learning_rate"),
        ({"learning_rate": "best"}, "learning_rate is 'best', but must be one of size, fixed, width"),
        ({"base": with_base("model", pretrained="gpt2")}, "a sweep trains each size from scratch"),
        ({"base": with_base("training", tokens_per_stp=4)}, "did you mean 'tokens_per_step'?"),
        ({"base": with_base(model=3)}, "model must be a mapping"),
        ({"executor": {"jobs": 0}}, "executor.jobs is 0"),
        ({"executor": {"kind": "slurm"}}, "executor.kind is 'slurm', but must be local or ray"),
        ({"model": {"size": "pico"}}, "model is an unknown key; did you mean 'base.model.size'?"),
        ({"measurments": 3}, "did you mean 'measurements'?"),
    ],
)
def test_an_invalid_sweep_is_refused_in_one_sentence(changes, message):
    with pytest.raises(ConfigError) as error:
        sweep(**changes)
    assert message in str(error.value)
    assert str(error.value).startswith("the sweep has a problem: ")


def test_all_problems_come_in_one_message():
    with pytest.raises(ConfigError) as error:
        sweep(grid={"data.contxt": [16], "seed": [1, 1]}, measurements=0, learning_rate="best")
    for part in ("data.contxt", "seed has 1 twice", "measurements is 0", "'best'"):
        assert part in str(error.value)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_the_sweeps_that_ship_are_grids_of_sizes_and_contexts(path):
    wanted = load_sweep(path)
    recipes = wanted.recipes()
    assert len(wanted.values("model.size")) >= 2 and len(wanted.values("data.context")) >= 3
    assert all(run_id(recipe) == name for name, recipe in recipes.items())
    assert {recipe.training.curve_longest for recipe in recipes.values()} == {wanted.longest}


def test_the_shipped_sweeps_exist():
    assert {path.stem for path in SHIPPED} >= {"books-tiny", "stdlib-quick"}


def test_widths_under_mup_keep_the_width_of_a_head():
    """An axis of widths alone would keep the number of heads, and change every attention score."""
    base = with_base("training", parametrization="mup", mup_base_width=64, learning_rate=1e-3, steps=12)
    base["model"] = {"family": "llama", "size": "pico"}
    wide = {"base": base, "learning_rate": "fixed"}
    with pytest.raises(
        ConfigError, match="heads of 32 and 64 channels, but with .* give both, such as 'model.width, model.heads'"
    ):
        sweep(grid={"model.width": [64, 128], "data.context": [16]}, **wide)
    both = sweep(grid={"model.width, model.heads": [[64, 2], [128, 4]], "data.context": [16]}, **wide)
    assert len(both.recipes()) == 2


def test_lengths_of_the_same_steps_are_one_run():
    with pytest.raises(ConfigError, match="two lengths of .* are 12 steps, so they are one run"):
        sweep(
            grid={"data.context": [16], "training.tokens": [1536, 1530]},
            base=with_base("training", schedule="wsd", warmup_steps=1),
        )


def test_many_like_problems_are_counted():
    with pytest.raises(
        ConfigError, match=r"too few for one decay.*lower \(and 5 more problems of other runs\)$"
    ) as error:
        sweep(
            grid={"data.context": [4, 8, 16, 32, 64, 128], "training.steps": [1]},
            base=with_base("training", schedule="wsd", warmup_steps=0),
        )
    assert str(error.value).count("too few for one decay") == 1
