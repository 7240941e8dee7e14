"""``contextwise reproduce``: what there is, what it would take, and whole reproductions at a scale of seconds."""

import json
import math

import pytest
import yaml

from contextwise.base.estimates import duration
from contextwise.base.files import write_sealed_json
from contextwise.base.runs import RunFolder
from contextwise_papers.intrinsic_entropy.synthetic import ParityData
from contextwise_papers.item import measure_at
from shipped import ALL_ITEMS

SHIPPED = ALL_ITEMS


def training(**changes):
    schedule = {"steps": 60, "evaluate_every": 20, "save_every": 60}
    return {"examples_per_step": 64, "learning_rate": 5e-3} | schedule | changes


def recipe(**synthetic):
    data = {"bits": 8, "tasks": 10, "first": 4, "shortest": 2, "validation_samples": 256} | synthetic
    return {
        "data": {"synthetic": data},
        "model": {"family": "parity_mlp", "width": 32, "feature_size": 12},
        "training": training(),
    }


PRINTED = {"bits": 60, "tasks": 100, "contexts": [17, 50], "model": [0.4648, 0.0613], "minimum": [0.4643, 0.0612]}
SAMPLES = {"contexts": [4, 5, 6, 8], "samples": 1000}
OPTIMUM = {"name": "sizes", "sizes": [100, 200], "contexts": [4, 6, 8], "seeds": [0]}
ITEMS = {
    "table": (PRINTED, {"name": "one", "tolerance": 10, "contexts": [3, 5, 8], "samples": 1000, "recipe": recipe()}),
    "entropy": ({}, {"name": "one", "recipe": recipe(), **SAMPLES}),
    "dimension": ({}, {"name": "several", "recipe": recipe(masked=0.0, shortest=0), **SAMPLES}),
    "optimum": ({}, OPTIMUM | {"recipe": recipe(shortest=0) | {"training": training(patience=1)}}),
}


@pytest.fixture
def workplace(tmp_path):
    folder = tmp_path / "recipes" / "paper"
    folder.mkdir(parents=True)
    for name, (printed, settings) in ITEMS.items():
        scales = {"tiny": {"machine": "one CPU thread", "minutes": 0.1, "settings": settings}}
        item = {"title": f"The {name}", "source": "a paper", "measure": f"parity_{name}", "printed": printed}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(item | {"scales": scales, "inferred": ["nothing much"]}))
    (folder / "training.yaml").write_text("name: no item\n")
    return tmp_path


def change_item(workplace, change):
    """Change the item paper/table."""
    file = workplace / "recipes/paper/table.yaml"
    item = yaml.safe_load(file.read_text())
    change(item)
    file.write_text(yaml.safe_dump(item))


def outcome(workplace, name):
    return json.loads((workplace / "runs/reproduce/paper/tiny" / f"{name}.json").read_text())


def test_items_are_listed_with_their_scales(contextwise):
    words = contextwise.words("reproduce --list --recipes recipes")
    assert "paper/table" in words and "tiny (0.1 min)" in words and "no item" not in words
    listed = json.loads(contextwise("reproduce --list --recipes recipes --json")[1])
    assert next(each for each in listed if each["name"] == "paper/table")["scales"]["tiny"]["minutes"] == 0.1


@pytest.mark.long
def test_a_dry_run_prints_the_cost_and_trains_nothing(contextwise, workplace):
    words = contextwise.words("reproduce paper/optimum --dry-run --recipes recipes")
    assert "6 runs" in words and "×" not in words and "takes about 0.1 min on one CPU thread" in words
    words = contextwise.words("reproduce paper/table --dry-run --recipes recipes --set seeds=[0,1,2]")
    assert words.count("one ×") == 1 and "one × 3" in words and "3 runs" in words
    costs = json.loads(contextwise("reproduce paper/optimum --dry-run --recipes recipes --json")[1])
    assert len({cost["name"] for cost in costs}) == 6 and all(cost["flops"] > 0 for cost in costs)
    assert not (workplace / "runs").exists()


def test_a_dry_run_needs_the_corpus_that_nothing_prepares(contextwise):
    missing = "corpora/news is not a prepared corpus, which scale tiny needs; prepare it with contextwise prepare"
    contextwise.refused("reproduce cue/table1 --dry-run", missing)
    assert "trains nothing; takes about 1 min" in contextwise.words("reproduce cue/table1 --scale paper --dry-run")
    assert "note: corpora/news is not a prepared corpus yet" in contextwise.words("reproduce cue/table3 --dry-run")


def test_a_table_is_printed_beside_the_papers_and_written(contextwise, workplace):
    status, output, errors = contextwise("reproduce paper/table --recipes recipes")
    assert status == 0, errors
    assert "0.4648" in output
    assert "undecided: at every context" in output and "it takes 3 seeds or more, and there are 1" in output
    assert "inferred: nothing much" in output
    result = outcome(workplace, "table")
    assert result["printed"] == PRINTED
    parity = ParityData(**recipe()["data"]["synthetic"]).parity()
    assert result["seconds"] > 0
    page = (workplace / "runs/reproduce/paper/tiny/table.html").read_text()
    assert f"{result['date']}, in {duration(result['seconds'])}" in page
    (of_seed,) = result["figures"]["contexts"]
    for context, row in of_seed.items():
        assert row["minimum"] == pytest.approx(parity.minimum_cross_entropy(int(context)))
        assert 0 < row["loss"] < 2
    # The other item of the same model trains nothing again.
    status, output, errors = contextwise("reproduce paper/entropy --recipes recipes --json")
    assert status == 0
    assert "from the start" not in errors and json.loads(output) == outcome(workplace, "entropy")
    (run,) = (workplace / "runs/reproduce/paper/tiny/runs").iterdir()
    summary = RunFolder(run).summary()
    write_sealed_json(run / "summary.json", summary | {"seconds": 1000.0})
    assert contextwise("reproduce paper/entropy --recipes recipes --json")[0] == 0
    assert outcome(workplace, "entropy")["seconds"] > 1000, "the training of an earlier call counts too"
    entropy = outcome(workplace, "entropy")["figures"]
    (eigenvalues,) = entropy["context feature"]["eigenvalues"]
    assert len(eigenvalues["8"]) == 12
    (losses,) = entropy["losses"]
    assert set(losses) == {"4", "5", "6", "8"}


@pytest.mark.long
def test_a_claim_that_does_not_hold_is_reported(contextwise, workplace):
    change_item(workplace, lambda item: item["scales"]["tiny"]["settings"].update(tolerance=1e-6, seeds=[0, 1, 2]))
    _, output, _ = contextwise("reproduce paper/table --recipes recipes")
    assert "does not hold: at every context" in output


@pytest.mark.long
def test_runs_trained_two_at_a_time_give_the_same_figures(contextwise, workplace):
    command = "reproduce paper/table --recipes recipes --set seeds=[0,1]"
    assert contextwise(f"{command} --out alone")[0] == 0
    status, _, errors = contextwise(f"{command} --out beside --jobs 2")
    assert status == 0, errors
    assert "2 of 2 runs to do" in errors and errors.count(": finished\n") == 2
    alone, beside = (json.loads((workplace / out / "table.json").read_text()) for out in ("alone", "beside"))
    assert beside["figures"] == alone["figures"]
    # A second call finds all runs.
    status, _, errors = contextwise(f"{command} --out beside --jobs 2")
    assert status == 0 and "all 2 runs are finished" in errors
    contextwise.refused(f"{command} --jobs 0", "--jobs is 0")
    contextwise.refused(f"{command} --jobs 2 --set executor.jobs=1", "jobs is given twice, as 2 and as")


@pytest.mark.slow
def test_the_dimension_has_a_model_for_each_context(contextwise, workplace):
    status, output, errors = contextwise("reproduce paper/dimension --recipes recipes")
    assert status == 0, errors
    assert "−0.06931" in output  # -log 2 / 10 tasks
    figures = outcome(workplace, "dimension")["figures"]
    for measured in (figures["features"]["best"], figures["features"]["last"]):
        for context, visible in {"4": 2, "5": 4, "6": 6, "8": 10}.items():
            (features,) = measured[context]
            assert features["relative"][0] == 1
            assert 0 < features["answers"] <= visible * math.log(2) + 1e-6  # bits at most, one for each visible task


@pytest.mark.slow
def test_the_optimum_is_the_lowest_of_each_size(contextwise, workplace):
    status, output, errors = contextwise("reproduce paper/optimum --recipes recipes")
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
        ("paper/tabel", "did you mean 'paper/table'?"),
        ("papr/table", "did you mean 'paper/table'?"),
        ("../recipes/paper/table", "there is no item"),
        ("paper/training", "there is no item 'paper/training'"),
        ("paper/table --scale tinny", "has no scale 'tinny'; did you mean 'tiny'?"),
        ("paper/table --scale paper", "has no scale 'paper'; it has tiny"),
        ("", "no item is given"),
    ],
)
def test_a_missing_item_is_refused(contextwise, arguments, words):
    contextwise.refused(f"reproduce {arguments} --recipes recipes", words)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda item: item.update(measure="parity_tabel"), "did you mean 'parity_table'?"),
        (lambda item: item["scales"]["tiny"]["settings"].update(contexs=[1]), "did you mean 'contexts'"),
        (lambda item: item["scales"]["tiny"]["settings"].update(contexts=[9]), "contexts has 9, but the inputs have 8"),
        (lambda item: item.update(sorce="x"), "did you mean 'source'"),
    ],
)
def test_a_wrong_item_is_refused(contextwise, workplace, change, words):
    change_item(workplace, change)
    contextwise.refused("reproduce paper/table --recipes recipes", words)


def test_an_item_has_other_names_too(contextwise, workplace):
    change_item(workplace, lambda item: item.update(also=["table9"]))
    assert contextwise("reproduce paper/table9 --recipes recipes")[0] == 0
    assert outcome(workplace, "table")["title"] == "The table"
    words = contextwise.words("reproduce --list --recipes recipes")
    assert "The table (also table9)" in words
    contextwise.refused("reproduce --list --recipes nowhere", "there is no folder of recipes at nowhere")


def test_table_1_and_figure_7_are_of_the_same_model(tmp_path):
    for scale in SHIPPED["intrinsic_entropy/table1"].scales:
        items = [SHIPPED[f"intrinsic_entropy/{name}"] for name in ("table1", "figure7")]
        table, figure = ([r.resolved() for r in measure_at(item, scale).recipes(tmp_path)] for item in items)
        assert table == figure


def test_the_papers_scale_is_the_published_setting(tmp_path):
    item = SHIPPED["intrinsic_entropy/table1"]
    run, *_ = measure_at(item, "paper").recipes(tmp_path)
    data = run.data.synthetic
    assert (data.bits, data.tasks, data.samples, data.validation_samples) == (60, 100, 10_000_000, 1_000_000)
    assert run.total_steps == math.ceil(125 * 10_000_000 / 4096)
    parity = data.parity()
    printed = dict(zip(item.printed["contexts"], item.printed["minimum"], strict=True))
    assert all(abs(parity.minimum_cross_entropy(c) - value) < 2.5e-4 for c, value in printed.items())
