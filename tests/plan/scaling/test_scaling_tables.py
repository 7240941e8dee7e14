"""The table of a sweep holds what a plan needs of its folder."""

import json
from dataclasses import replace

import numpy as np
import pytest

from contextwise.base.errors import DataError
from contextwise.base.files import read_sealed_json, write_sealed_json
from contextwise.base.runs import RunFolder
from contextwise.data import Corpus
from contextwise_plan.optimum import Landscape
from contextwise_plan.scaling.observations import check_enough, observations, read_observations, read_table, write_table
from contextwise_plan.sweeps.points import sweep_points
from laws import drawn_points, write_sweep
from small import run_summary


def test_a_table_says_what_the_folder_says(tmp_path):
    draw = np.random.default_rng(0)
    points = []
    for point in drawn_points(run_noise=0.003, count=6):
        nats = tuple(np.round(100 * point.loss + draw.standard_normal(6), 2).tolist())
        points.append(replace(point, document_ids=(0, 1, 4, 5, 7, 9), document_targets=(100,) * 6, document_nats=nats))
    observed = read_observations(write_sweep(tmp_path / "sweep", points), early=0.1)
    write_table(observed, tmp_path / "table.json", tmp_path / "sweep")
    table = read_table(tmp_path / "table.json")
    assert table.points == observed.points and table.left_out == observed.left_out > 0
    for name in ("runs", "sizes", "planned"):
        assert getattr(table, name) == getattr(observed, name)
    for name in ("run", "size", "context", "parameters", "tokens", "flops", "seconds", "loss"):
        assert getattr(table, name).tolist() == getattr(observed, name).tolist()
    assert table.landscape().findings() == observed.landscape().findings()
    one = observed.points[0].context  # all points of a context may be early ones
    others = tuple(point for point in observed.points if point.context != one)
    write_table(replace(observed, points=others), tmp_path / "others.json", tmp_path / "sweep")
    table = read_table(tmp_path / "others.json")
    assert table.points == others and one in {point.context for point in table.shown}
    assert "one seed" in table.landscape().findings()[-1]


def test_a_table_names_what_it_was_made_from(corpus_folder, tmp_path, monkeypatch):
    """The median is that of the documents that were trained on: none where the corpus is elsewhere or another one."""
    monkeypatch.chdir(tmp_path)
    folder = write_sweep(tmp_path / "sweep", drawn_points(count=4))
    observed, corpus = read_observations(folder), Corpus.open(corpus_folder)
    plan = read_sealed_json(folder / "plan.json", "the plan")
    written = []
    for present, fingerprint in ((False, corpus.fingerprint), (True, "0" * 64), (True, corpus.fingerprint)):
        if present and not (tmp_path / "books").exists():
            (tmp_path / "books").symlink_to(corpus_folder)
        write_sealed_json(folder / "plan.json", plan | {"inputs": {"train": fingerprint}})
        write_table(observed, tmp_path / "table.json", folder)
        written.append(json.loads((tmp_path / "table.json").read_text()))
    assert [each["median_document"] for each in written] == [None, None, np.median(corpus.lengths)]
    assert written[2]["name"] == "sweep" and written[2]["corpus_sha256"] == corpus.fingerprint
    assert written[2]["recipe"] == {
        "data": {"corpus": "books"},
        "training": {"learning_rate": 0.002, "warmup_steps": 20, "tokens_per_step": 4096},
    }


@pytest.mark.parametrize("text", ["[]", '{"columns": [], "points": [[1]]}', '{"columns": [], "points": []}'])
def test_another_file_is_refused(tmp_path, text):
    (tmp_path / "table.json").write_text(text)
    with pytest.raises(DataError, match="no table of a sweep"):
        read_table(tmp_path / "table.json")


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("tokens", 0, "tokens is 0, but must be at least 1"),
        ("flops", float("inf"), "flops is null, but must be a number"),
        ("loss", True, "loss is true, but must be a number"),
        ("parameters", None, "parameters is null, but must be a whole number"),
        ("document_nats", [1.0], "document_nats is not of the documents"),
        ("size", "giant", "planned lacks size 'giant' at context"),
    ],
)
def test_a_damaged_table_is_refused(tmp_path, column, value, message):
    observed = read_observations(write_sweep(tmp_path / "sweep", drawn_points(count=4)), early=0.1)
    write_table(observed, tmp_path / "table.json", tmp_path / "sweep")
    values = json.loads((tmp_path / "table.json").read_text())
    values["points"][3][values["columns"].index(column)] = value
    (tmp_path / "table.json").write_text(json.dumps(values))
    with pytest.raises(DataError, match=message):
        read_table(tmp_path / "table.json")


def test_sizes_of_equal_parameters_have_no_law():
    points = [replace(point, parameters=400_000) for point in drawn_points(count=4)]
    with pytest.raises(DataError, match="two sizes of the sweep have 400,000 parameters, and a law of the size cannot"):
        check_enough(observations(points))


def test_a_plan_says_what_the_page_says_where_early_points_are_left_out(tmp_path):
    """The page draws all points of a sweep at a constant rate, the law is fitted to the later ones."""
    folder = write_sweep(tmp_path / "sweep", drawn_points(run_noise=0.003, count=8))
    observed = read_observations(folder, early=0.2)
    assert observed.left_out > 0
    page = Landscape(sweep_points(folder), "flops", observed.planned)
    assert observed.landscape().findings() == page.findings()


@pytest.mark.parametrize("read", [read_observations, sweep_points])
def test_a_run_of_another_corpus_is_refused(read, tmp_path):
    folder = write_sweep(tmp_path / "sweep", drawn_points(count=4))
    run = RunFolder(sorted((folder / "runs").iterdir())[3])
    run.write_summary(run_summary(corpus={"path": "other", "fingerprint": "1" * 64}))
    with pytest.raises(DataError, match=f"the run .*{run.path.name} was trained on another corpus than the sweep"):
        read(folder)
    run.write_summary(run_summary(corpus={"path": "books", "fingerprint": "0" * 64}))
    read(folder)
