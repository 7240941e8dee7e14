"""The points of a sweep, from its run folders."""

import pytest
import yaml

from contextwise.base.config import validate
from contextwise.base.errors import CheckpointError
from contextwise.experiments.grid import size_name
from contextwise_plan.sweeps.points import SweepPoint, run_points, sweep_points
from contextwise_plan.sweeps.recipe import SweepRecipe
from contextwise_plan.sweeps.sweep import Sweep
from small import run_summary
from sweeping import sweep_values


def row(step, loss, **changes):
    return {
        "kind": "curve",
        "step": step,
        "tokens": step * 128,
        "flops": step * 1e6,
        "seconds": step / 2,
        "parameters": 5000,
        "context": 8,
        "visible": [1],
        "loss": [loss],
        "best_context_loss": loss,
        "standard_error": 0.01,
    } | changes


@pytest.fixture
def sweep(corpus_folder, tmp_path):
    """Three runs: one finished, one failed after a measurement, one not begun."""
    grid = {"data.context": [8, 16, 32], "training.steps": [12], "seed": [4]}
    wanted = validate(SweepRecipe, sweep_values(corpus_folder, tmp_path / "sweep", grid=grid), "the sweep")
    sweep = Sweep.planned(wanted)
    sweep.write()
    first, second, _ = sweep.plan
    for run in (first, second):
        sweep.run_folder(run.id).write_recipe(yaml.safe_load(sweep.recipe_file(run.id).read_text()))
    for values in (row(12, 4.0), row(6, 5.0), row(6, 9.0) | {"kind": "train", "loss": 9.0}, row(12, 4.25)):
        sweep.run_folder(first.id).append_metrics(values)
    sweep.run_folder(first.id).summary_file.write_text("{}")
    sweep.run_folder(second.id).append_metrics(row(3, 6.5, standard_error=None))
    sweep.note_failure(second.id, "the loss is nan at step 4")
    return sweep


def test_points_of_all_runs_that_measured_any(sweep):
    first, second, _ = sweep.plan
    points = sweep_points(sweep.path)
    size = "nano-layers1-width16-heads2"
    assert points == [
        SweepPoint(first.id, size, 5000, 8, 4, 6, 768, 6e6, 3.0, 5.0, 0.01),
        # Measured twice: the newer row
        SweepPoint(first.id, size, 5000, 8, 4, 12, 1536, 12e6, 6.0, 4.25, 0.01),
        SweepPoint(second.id, size, 5000, 16, 4, 3, 384, 3e6, 1.5, 6.5, None),
    ]
    assert {(one.run.id, one.state) for one in sweep.states()} >= {(second.id, "failed")}
    assert run_points(sweep.run_folder(first.id).path) == points[:2]


def test_a_damaged_measurement_is_named(sweep):
    folder = sweep.run_folder(sweep.plan[0].id)
    folder.append_metrics(row(9, 4.5) | {"flops": None})
    with pytest.raises(CheckpointError, match="line 5 of .*metrics.jsonl is damaged: flops is null, but must"):
        sweep_points(sweep.path)


def test_a_run_whose_learning_rate_fell_has_no_end_without_its_last_row(sweep):
    """An earlier row would seem to be the end."""
    folder = sweep.run_folder(sweep.plan[0].id)
    recipe = folder.recipe_file.read_text()
    folder.recipe_file.write_text(recipe.replace("schedule: constant", "schedule: cosine"))
    folder.write_summary(run_summary())
    assert [point.loss for point in run_points(folder.path, ends=True)] == [4.25]
    folder.append_metrics(row(12, 4.3) | {"best_context_loss": "x"})
    with pytest.raises(
        CheckpointError, match='line 5 of .*metrics.jsonl is damaged: best_context_loss is "x", but must'
    ):
        run_points(folder.path, ends=True)


def test_a_plain_folder_is_no_sweep(tmp_path):
    with pytest.raises(CheckpointError, match=r"is not a sweep: it has no plan.json"):
        sweep_points(tmp_path)


def test_a_size_is_named_by_what_differs_from_it():
    assert size_name({"size": "nano", "layers": None, "width": None}) == "nano"
    assert size_name({"size": "nano", "layers": 6, "width": None, "heads": 2}) == "nano-layers6-heads2"
