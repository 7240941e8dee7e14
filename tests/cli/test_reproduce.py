"""``contextwise reproduce``: what there is, what it would take, and whole reproductions at a scale of seconds."""

import json
import math
from pathlib import Path

import pytest
import yaml

from contextwise.data.synthetic import ParityData
from contextwise.experiments.cost import cost_of
from contextwise.reproductions.item import list_items, measure_at, recipes_folder

SHIPPED = list_items(Path(__file__).parents[2] / "recipes")


def training(**changes):
    return {
        "examples_per_step": 64,
        "steps": 60,
        "learning_rate": 5e-3,
        "evaluate_every": 20,
        "save_every": 60,
    } | changes


def recipe(**synthetic):
    data = {"bits": 8, "tasks": 10, "first": 4, "shortest": 2, "validation_samples": 256} | synthetic
    return {
        "data": {"synthetic": data},
        "model": {"family": "parity_mlp", "width": 32, "feature_size": 12},
        "training": training(),
    }


PRINTED = {
    "bits": 60,
    "tasks": 100,
    "contexts": [17, 50],
    "model": [0.4648, 0.0613],
    "minimum": [0.4643, 0.0612],
}
ITEMS = {
    "table": (
        "parity_table",
        PRINTED,
        {"name": "one", "tolerance": 10, "contexts": [3, 5, 8], "samples": 1000, "recipe": recipe()},
    ),
    "entropy": (
        "parity_entropy",
        {},
        {"name": "one", "contexts": [4, 5, 6, 8], "samples": 1000, "recipe": recipe()},
    ),
    "dimension": (
        "parity_dimension",
        {},
        {
            "name": "several",
            "contexts": [4, 5, 6, 8],
            "samples": 1000,
            "recipe": recipe(masked=0.0, shortest=0),
        },
    ),
    "optimum": (
        "parity_optimum",
        {},
        {
            "name": "sizes",
            "sizes": [100, 200],
            "contexts": [4, 6, 8],
            "seeds": [0],
            "recipe": recipe(shortest=0) | {"training": training(patience=1)},
        },
    ),
}


@pytest.fixture
def workplace(tmp_path):
    folder = tmp_path / "recipes" / "paper"
    folder.mkdir(parents=True)
    for name, (measure, printed, settings) in ITEMS.items():
        scales = {"tiny": {"machine": "one CPU thread", "minutes": 0.1, "settings": settings}}
        item = {
            "title": f"The {name}",
            "source": "a paper",
            "measure": measure,
            "printed": printed,
            "scales": scales,
        }
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(item | {"inferred": ["nothing much"]}))
    (folder / "training.yaml").write_text("name: no item\n")
    return tmp_path


def outcome(workplace, name):
    return json.loads((workplace / "runs/reproduce/paper/tiny" / f"{name}.json").read_text())


def test_what_there_is_comes_with_its_scales(contextwise):
    status, output, _ = contextwise("reproduce", "--list", "--recipes", "recipes")
    assert status == 0
    assert "paper/table" in output
    assert "tiny (0.1 min)" in output
    assert "no item" not in output


def test_a_dry_run_says_what_it_takes_and_trains_nothing(contextwise, workplace):
    status, output, _ = contextwise("reproduce", "paper/optimum", "--dry-run", "--recipes", "recipes")
    assert status == 0
    assert "6 runs" in output
    assert not (workplace / "runs").exists()


def test_a_table_is_printed_beside_the_papers_and_written(contextwise, workplace):
    status, output, errors = contextwise("reproduce", "paper/table", "--recipes", "recipes")
    assert status == 0, errors
    assert "0.4648" in output
    assert "holds: at every context" in output
    assert "inferred: nothing much" in output
    found = outcome(workplace, "table")
    assert found["printed"] == PRINTED
    parity = ParityData(**recipe()["data"]["synthetic"]).parity()
    for context, one in found["figures"]["contexts"].items():
        assert one["minimum"] == pytest.approx(parity.minimum_cross_entropy(int(context)))
        assert 0 < one["loss"] < 2
    # The other item of the same model trains nothing again.
    status, _, errors = contextwise("reproduce", "paper/entropy", "--recipes", "recipes")
    assert status == 0
    assert "from the start" not in errors
    entropy = outcome(workplace, "entropy")["figures"]
    assert len(entropy["eigenvalues"]["8"]) == 12
    assert set(entropy["losses"]) == {"4", "5", "6", "8"}


def test_a_claim_that_does_not_hold_is_said_so(contextwise, workplace):
    file = workplace / "recipes/paper/table.yaml"
    item = yaml.safe_load(file.read_text())
    item["scales"]["tiny"]["settings"]["tolerance"] = 1e-6
    file.write_text(yaml.safe_dump(item))
    _, output, _ = contextwise("reproduce", "paper/table", "--recipes", "recipes")
    assert "does not hold: at every context" in output


@pytest.mark.slow
def test_the_dimension_has_a_model_for_each_context(contextwise, workplace):
    status, output, errors = contextwise("reproduce", "paper/dimension", "--recipes", "recipes")
    assert status == 0, errors
    assert "-0.06931" in output  # -log 2 / 10 tasks
    figures = outcome(workplace, "dimension")["figures"]
    assert figures["dimensions"] == {"4": 2, "5": 4, "6": 6, "8": 10}
    assert all(values[0] == 1 for values in figures["spectra"].values())


@pytest.mark.slow
def test_the_optimum_is_the_lowest_of_each_size(contextwise, workplace):
    status, output, errors = contextwise("reproduce", "paper/optimum", "--recipes", "recipes")
    assert status == 0, errors
    figures = outcome(workplace, "optimum")["figures"]
    for size, optimum in figures["optima"].items():
        means = {int(c): sum(values) / len(values) for c, values in figures["losses"][size].items()}
        assert len(means) == 3
        assert means[optimum] == min(means.values())
    assert "one seed" in " ".join(output.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["paper/tabel"], "did you mean paper/table?"),
        (["papr/table"], "did you mean paper/table?"),
        (["../recipes/paper/table"], "there is no item"),
        (["paper/training"], "there is no item 'paper/training'"),
        (["paper/table", "--scale", "tinny"], "has no scale 'tinny'; did you mean tiny?"),
        (["paper/table", "--scale", "paper"], "has no scale 'paper'; it has tiny"),
        ([], "no item is given"),
    ],
)
def test_what_is_not_there_gets_one_sentence(contextwise, arguments, words):
    status, _, errors = contextwise("reproduce", *arguments, "--recipes", "recipes")
    assert status == 2
    assert words in " ".join(errors.split())
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda item: item.update(measure="parity_tabel"), "did you mean parity_table?"),
        (lambda item: item["scales"]["tiny"]["settings"].update(contexs=[1]), "did you mean 'contexts'"),
        (
            lambda item: item["scales"]["tiny"]["settings"].update(contexts=[9]),
            "contexts has 9, but the inputs have 8",
        ),
        (lambda item: item.update(sorce="x"), "did you mean 'source'"),
    ],
)
def test_a_wrong_item_gets_one_sentence(contextwise, workplace, change, words):
    file = workplace / "recipes/paper/table.yaml"
    item = yaml.safe_load(file.read_text())
    change(item)
    file.write_text(yaml.safe_dump(item))
    status, _, errors = contextwise("reproduce", "paper/table", "--recipes", "recipes")
    assert status == 2
    assert words in " ".join(errors.split())


def test_an_item_has_other_names_too(contextwise, workplace):
    file = workplace / "recipes/paper/table.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | {"also": ["table9"]}))
    status, _, errors = contextwise("reproduce", "paper/table9", "--recipes", "recipes")
    assert status == 0, errors
    assert outcome(workplace, "table")["title"] == "The table"
    status, output, _ = contextwise("reproduce", "--list", "--recipes", "recipes")
    assert "The table (also table9)" in output and "tiny: 1 hold" in output


def test_no_folder_of_recipes(contextwise):
    status, _, errors = contextwise("reproduce", "--list", "--recipes", "nowhere")
    assert status == 2
    assert "there is no folder of recipes at nowhere" in errors


@pytest.mark.parametrize(
    "name", [name for name, item in SHIPPED.items() if item.measure.startswith("parity_")]
)
def test_every_item_that_ships_can_be_planned_at_every_scale(name, tmp_path):
    item = SHIPPED[name]
    for scale in item.scales:
        for one in measure_at(item, scale).recipes(tmp_path):
            planned = cost_of(one)
            assert planned.parameters > 0
            assert planned.flops > 6 * planned.parameters * planned.examples * 0.5


def test_table_1_and_figure_7_are_of_the_same_model(tmp_path):
    for scale in SHIPPED["intrinsic_entropy/table1"].scales:
        one, other = (
            measure_at(SHIPPED[f"intrinsic_entropy/{name}"], scale).recipes(tmp_path)
            for name in ("table1", "figure7")
        )
        assert [r.resolved() for r in one] == [r.resolved() for r in other]


def test_the_papers_scale_is_the_published_setting(tmp_path):
    item = SHIPPED["intrinsic_entropy/table1"]
    (one,) = measure_at(item, "paper").recipes(tmp_path)
    data = one.data.synthetic
    assert (data.bits, data.tasks, data.samples, data.validation_samples) == (60, 100, 10_000_000, 1_000_000)
    assert one.total_steps == math.ceil(125 * 10_000_000 / 4096)
    parity = data.parity()
    printed = dict(zip(item.printed["contexts"], item.printed["minimum"], strict=True))
    assert all(abs(parity.minimum_cross_entropy(c) - value) < 2.5e-4 for c, value in printed.items())


def test_the_recipes_of_the_checkout_are_found():
    assert (recipes_folder() / "intrinsic_entropy/table1.yaml").is_file()
