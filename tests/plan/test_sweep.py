"""``contextwise plan sweep``, as it is typed."""

import json
import re

import pytest
import yaml

from contextwise.base.errors import TrainingError
from contextwise.experiments.executors import RunHere
from contextwise_plan.sweeps.sweep import Sweep
from sweeping import sweep_values


@pytest.fixture
def workplace(corpus_folder, tmp_path):
    """A sweep file of two runs."""
    values = sweep_values(corpus_folder, tmp_path) | {"output": ""}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(values))
    return tmp_path


@pytest.mark.long
def test_a_sweep_from_plan_to_end(contextwise, workplace):
    words = contextwise.words("plan sweep tiny.yaml --dry-run")
    assert not (workplace / "sweeps").exists()
    assert "2 runs (2 missing), 3.07k tokens," in words
    assert re.search(
        r"The missing runs take about [\d.]+ s to [\d.]+ (s|min) on this machine: [\d.]+ (ms|s) of training steps, and 1 to 20",
        words,
    )
    at_once = contextwise.words("plan sweep tiny.yaml --dry-run --jobs 8")  # both start together
    assert re.search(r"The missing runs take about 1\d s to 6\d s on this machine", at_once)

    assert contextwise("plan sweep tiny.yaml")[:2] == (0, "sweeps/tiny\n")
    words = contextwise.words("plan sweep --status sweeps/tiny")
    assert "2 runs (2 finished)" in words and words.count("100%") == 2
    listed = json.loads(contextwise("plan sweep --status sweeps/tiny --json")[1])
    states = Sweep.open(workplace / "sweeps" / "tiny").states()
    assert [run["loss"] for run in listed["runs"]] == [state.loss for state in states]
    assert listed["flops"] == sum(run["run"]["flops"] for run in listed["runs"])

    # Its own sweep.yaml stands for the folder, wherever that is.
    (workplace / "sweeps" / "tiny").rename(workplace / "moved")
    status, output, errors = contextwise("plan sweep moved/sweep.yaml")
    assert (status, output) == (0, "moved\n") and "nothing to train" in errors


@pytest.mark.long
def test_a_failed_run_is_listed_with_its_reason(contextwise, workplace, monkeypatch):
    train = RunHere.train

    def unlucky(self):
        if "-c16-" in self.run:
            raise TrainingError("lightning")
        train(self)

    monkeypatch.setattr(RunHere, "train", unlucky)
    status, output, errors = contextwise("plan sweep tiny.yaml --out mine")
    assert (status, output) == (1, "") and "1 of 2 runs failed (lightning)" in errors
    words = contextwise.words("plan sweep --status mine")
    assert "2 runs (1 finished, 1 failed)" in words and "failed: lightning" in words


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "a sweep is missing"),
        ("no.yaml", "there is no file no.yaml"),
        ("tiny.yaml --status x", "leave the recipe tiny.yaml out"),
        ("--status .", ". is not a sweep: it has no plan.json"),
        ("tiny.yaml --json", "--json goes with --dry-run or --status"),
        ("tiny.yaml --jobs 2 --set executor.jobs=1", "jobs is given twice, as 2 and as --set executor.jobs=1"),
        ("tiny.yaml --jobs 0", "--jobs is 0, but at least one run at a time is needed"),
        ("tiny.yaml --executor 010", "--executor is '010', but must be local or ray"),
        ("tiny.yaml --out tiny.yaml", "tiny.yaml is a file"),
    ],
)  # fmt: skip
def test_bad_input_is_refused(contextwise, arguments, message):
    contextwise.refused(f"plan sweep {arguments}", message)


def test_a_folder_with_a_similar_name_is_named(contextwise, tmp_path):
    (tmp_path / "sweeps/choose").mkdir(parents=True)
    contextwise.refused(
        "plan sweep --status sweeps/chose", "there is no sweep at sweeps/chose; did you mean sweeps/choose?"
    )
