"""``contextwise plan budget``, as it is typed."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from contextwise.data import Corpus
from contextwise_plan import verbs
from contextwise_plan.scaling.observations import read_observations
from contextwise_plan.sweeps import sweep
from laws import drawn_points, write_sweep
from synthetic_sweep import SIZES
from synthetic_sweep import write_sweep as write_sweep_of_runs


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plans")
    points = drawn_points(run_noise=0.003, point_noise=0.001, count=5)
    write_sweep(folder / "sweep", points)
    write_sweep(folder / "half", points, unfinished=("nano-context64-seed0",))
    write_sweep(folder / "narrow", drawn_points(contexts=(64, 512)))
    return folder


@pytest.mark.long
def test_a_plan_fits_a_terminal(contextwise, workplace):
    details = ("Measured: ", "90 points of 18 runs", "harder*")
    words = contextwise.words("plan budget sweep --budget 1e16 --details")
    assert all(expected in words for expected in ("Plan for 1e+16 FLOPs", "training context", *details))
    status, output, _ = contextwise("plan budget sweep --budget 1e16")
    assert status == 0 and "Plan for 1e+16 FLOPs" in output and "--details shows more" in output
    assert not any(absent in output for absent in details)
    *lines, last = output.splitlines()
    assert len(lines) <= 25 and max(map(len, lines)) <= 80
    assert last.startswith("next (micro, the sweep's nearest size): contextwise train sweep/runs/micro-")


@pytest.mark.parametrize(
    ("size", "parameters", "context", "command"),
    [
        (
            "nano",
            None,
            150.0,
            "nano-c64-s0 --set name=mine-planned --set data.context=128 --set training.tokens=1230000 --out",
        ),
        (
            None,
            5e6,
            3000.0,
            "micro-c64-s0 --set name=mine-planned --set data.context=512 --set training.tokens=45700000 "
            "--set training.curve_longest=512 --set 'training.branches=[]' --out runs/mine-planned",
        ),
        ("pico", 4e5, 8000.0, None),
    ],
)
def test_a_plan_ends_with_the_command_that_trains_it(tmp_path, size, parameters, context, command):
    """A size between those of the sweep has the optimum of the nearest one; a step must hold whole windows."""
    made = write_sweep_of_runs(tmp_path / "mine", contexts=(64,), measurements=2)
    folder = made.run_folder("micro-c64-s0")
    recipe = folder.recipe()
    recipe["training"] |= {"branches": [64], "curve_longest": 256}
    folder.recipe_file.write_text(json.dumps(recipe))
    observed = read_observations(tmp_path / "mine")

    def row(size, parameters, context, tokens):
        values = [None if each is None else SimpleNamespace(value=each) for each in (parameters, context, tokens)]
        return SimpleNamespace(size=size, parameters=values[0], context=values[1], tokens=values[2])

    each = [row(name, SIZES[name], *tokens) for name, tokens in (("nano", (64, 5e6)), ("micro", (500.0, 45_670_000.0)))]
    plan = SimpleNamespace(best=row(size, parameters, context, 1_234_567.0), each_size=each)
    printed = verbs.training_line(tmp_path / "mine", plan, observed)
    which = "" if size else " (micro, the sweep's nearest size)"
    whole = f"next{which}: contextwise train {tmp_path}/mine/runs/{command}"
    assert printed is None if command is None else printed.startswith(whole)


@pytest.mark.long
def test_json_holds_everything(contextwise, workplace):
    status, output, _ = contextwise("plan budget sweep --budget 3e15 --json")
    printed = json.loads(output)
    assert status == 0 and set(printed) == {"plan", "law"}
    best = printed["plan"]["best"]
    for name in ("parameters", "context", "tokens", "loss"):
        assert best[name]["low"] <= best[name]["value"] <= best[name]["high"]
    assert len(printed["law"]["residuals"]) == 90 == printed["law"]["points"]
    assert printed["law"]["form"] in {form["form"] for form in printed["law"]["forms"]}
    assert printed["plan"]["flops"] == pytest.approx(3e15)


@pytest.mark.long
def test_a_table_plans_as_its_folder_to_the_last_digit(contextwise, workplace):
    """Of intervals, too, which are drawn: a plan is reproducible."""
    for _ in range(2):  # a table may be replaced, another file may not
        assert contextwise("plan budget sweep --table table.json")[:2] == (0, "written to table.json\n")
    before = (workplace / "sweep" / "plan.json").read_bytes()
    contextwise.refused(
        "plan budget sweep --budget 3e15 --table sweep/plan.json",
        "sweep/plan.json is no table of a sweep, and would be lost",
    )
    assert (workplace / "sweep" / "plan.json").read_bytes() == before
    command = "--budget 3e15 --json"
    assert contextwise(f"plan budget table.json {command}") == contextwise(f"plan budget sweep {command}")
    status, _, errors = contextwise("plan budget table.json --table again.json")
    assert status == 2 and "is a table already" in errors and not (workplace / "again.json").exists()
    contextwise.refused("plan budget table.json --budget 3e15 --partial", "table.json is a table already")


@pytest.mark.long
def test_hours_alone_are_those_of_the_sweeps_machine(contextwise, workplace):
    """Its runs took a second for 10^10 FLOPs."""
    status, output, _ = contextwise("plan budget sweep --hours 50 --json")
    plan = json.loads(output)["plan"]
    assert status == 0 and plan["seconds"] == pytest.approx(180_000)
    assert plan["flops"] == pytest.approx(180_000 * 1e10, rel=1e-6)


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("sweep", "a plan has one budget; give either --budget (FLOPs) or --hours"),
        ("sweep --budget 1e15 --hours 2", "a plan has one budget; give either --budget"),
        ("sweep --budget -1", "--budget is '-1', but must be greater than 0"),
        ("sweep --budget nan", "--budget is 'nan', but must be a finite number"),
        ("sweep --budget 1e19", "beyond 30 times a law of these few runs is a guess"),
        ("narrow --budget 1e15", "has 2 training contexts (64, 512)"),
        ("nowhere --budget 1e15", "there is no sweep at nowhere"),
    ],
)  # fmt: skip
def test_bad_input_is_refused(contextwise, arguments, message):
    contextwise.refused(f"plan budget {arguments}", message)


def test_a_plan_that_reads_the_text_again_says_how_often(corpus_folder, monkeypatch):
    """No run of the sweep did, so its law does not know what repeated text is worth."""
    corpus = Corpus.open(corpus_folder, "train")
    recipe = {"data": {"corpus": str(corpus_folder), "split": "train"}}
    of_runs = SimpleNamespace(recipe=lambda: recipe)
    monkeypatch.setattr(sweep.Sweep, "open", lambda folder: SimpleNamespace(run_folder=lambda run: of_runs))
    observed = SimpleNamespace(points=[SimpleNamespace(run="a")], tokens=np.array([0.5, 0.25]) * corpus.tokens)
    assert verbs._passes(Path("sweep"), observed, corpus.tokens) == []
    (note,) = verbs._passes(Path("sweep"), observed, 3 * corpus.tokens)
    assert "are 3.0 passes over the sweep's corpus, of which its runs read 0.5 at most" in note
    recipe["data"]["corpus"] = "elsewhere"
    assert verbs._passes(Path("sweep"), observed, 3 * corpus.tokens) == []
