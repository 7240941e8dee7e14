"""Budgets of a sweep: finished runs that branch off one trunk, and lengths of equal compute."""

import copy
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from safetensors.torch import load_file
from torch import equal

from contextwise.base.config import validate
from contextwise.base.errors import ConfigError, DivergedError, TrainingError
from contextwise.base.runs import RunFolder
from contextwise.experiments.executors import train_run
from contextwise.experiments.scheduling import schedule
from contextwise.training import load_recipe, train
from contextwise.training.trainer import PretrainingTrainer
from contextwise_plan.scaling.observations import read_observations
from contextwise_plan.sweeps.points import sweep_points
from contextwise_plan.sweeps.recipe import SweepRecipe
from contextwise_plan.sweeps.sweep import Sweep
from sweeping import InProcess, sweep_values, timeless

STEPS = {"data.context": [16, 32], "training.steps": [6, 12]}


@pytest.fixture
def decaying(corpus_folder, tmp_path):
    """Make settings of a sweep whose runs decay: ``decaying(grid={...}, warmup_steps=1)``."""

    def make(grid=STEPS, **training):
        values = sweep_values(corpus_folder, tmp_path / "sweep", grid=grid, measurements=None)
        values["base"]["training"] |= {"schedule": "wsd", "decay_steps": 0.5, "precision": "fp32"} | training
        return validate(SweepRecipe, copy.deepcopy(values), "the sweep")

    return make


def finished(settings, monkeypatch):
    """Train a sweep in this process; the sweep, and the ids in the order in which runs were started."""
    monkeypatch.setattr("contextwise.experiments.scheduling.POLL_SECONDS", 0.0)
    sweep = Sweep.planned(settings)
    sweep.write()
    executor = InProcess(sweep)
    schedule(sweep, executor)
    return sweep, executor.started


@pytest.mark.long
def test_every_budget_is_a_finished_run_that_shares_its_beginning(decaying, tmp_path, monkeypatch):
    sweep, started = finished(decaying(), monkeypatch)
    assert [(run.context, run.steps, run.trunk_tokens // 128) for run in sweep.plan] == [
        (16, 6, 3),
        (16, 12, 0),
        (32, 6, 3),
        (32, 12, 0),
    ]
    assert {run.id for run in sweep.plan if run.trunk_tokens == 0} == set(started[:2])
    recipes = {run.id: run.recipe() for run in sweep.runs}
    for run in sweep.plan:
        folder = sweep.run_folder(run.id)
        assert folder.summary().get("trunk", {"tokens": 0})["tokens"] == run.trunk_tokens
        assert folder.summary()["flops"] == pytest.approx(run.flops, rel=1e-12)
        if run.trunk_tokens:  # bit for bit a run of its own
            alone = train(load_recipe(recipes[run.id], {"training.trunk": None}, tmp_path / "alone" / run.id))
            a, b = (load_file(each.path / "model/model.safetensors") for each in (alone, folder))
            assert all(equal(a[name], b[name]) for name in a)
            assert timeless(alone.metrics("curve")) == timeless(folder.metrics("curve"))
    # The trunks' 12 steps, and the 3 of their branches' decays.
    assert sweep.tokens == 128 * 2 * (12 + 3)
    assert sweep.flops == pytest.approx(sum(run.own_flops for run in sweep.plan), rel=1e-12)
    assert sum(run.own_flops / run.flops * run.steps for run in sweep.plan) == pytest.approx(2 * (12 + 3))
    assert all(state.share == 1 for state in sweep.states())

    points = sweep_points(sweep.path)
    assert [(point.context, point.step) for point in points] == [(16, 6), (16, 12), (32, 6), (32, 12)]
    observed = read_observations(sweep.path)
    assert len(observed.runs) == 2 and observed.left_out == 0 and not observed.constant_rate

    # A budget that comes later is trained whole: the trunk has no checkpoint where it begins to decay.
    grown = Sweep.planned(decaying({**STEPS, "training.steps": [6, 9, 12]}))
    assert [run.trunk_tokens // 128 for run in grown.plan] == [3, 0, 0, 3, 0, 0]
    # The trunk of before was trained whole, though the longer budget would be a trunk of it; so would its branch, without it.
    grown = Sweep.planned(decaying({**STEPS, "training.steps": [6, 12, 24]}))
    assert grown.tokens == 128 * 2 * (12 + 3 + 24) and [run.trunk_tokens // 128 for run in grown.plan[:3]] == [3, 0, 0]
    for run in sweep.runs:
        shutil.rmtree(RunFolder(run.folder).checkpoints)
    assert Sweep.planned(decaying()).plan == sweep.plan
    # One that has begun shares what its folder says.
    begun = sweep.run_folder(sweep.plan[2].id)
    summary = begun.summary()
    begun.summary_file.unlink()
    assert Sweep.planned(decaying()).plan == sweep.plan
    begun.write_summary(summary)
    # A branch that has not finished is no point.
    sweep.run_folder(sweep.plan[0].id).summary_file.unlink()
    assert [(point.context, point.step) for point in sweep_points(sweep.path)] == [(16, 12), (32, 6), (32, 12)]


SHORT_AND_LONG = {"data.context": [16], "training.steps": [6, 12]}


def diverging(monkeypatch, steps, at):
    """Make runs of ``steps`` steps diverge at the step ``at``."""
    check = PretrainingTrainer.check_step

    def checked(trainer):
        if trainer.recipe.total_steps == steps and trainer.state.global_step + 1 == at:
            raise DivergedError(f"the loss is nan at step {at}")
        check(trainer)

    monkeypatch.setattr(PretrainingTrainer, "check_step", checked)


@pytest.mark.parametrize(("at", "short_state"), [(9, "finished"), (2, "missing")])
def test_a_trunk_that_diverges_keeps_only_later_branches_from_starting(decaying, monkeypatch, at, short_state):
    diverging(monkeypatch, 12, at)
    with pytest.raises(TrainingError, match="1 of 2 runs failed") as error:
        finished(decaying(SHORT_AND_LONG, keep_checkpoints=1), monkeypatch)
    assert ("1 other cannot start without them" in str(error.value)) == (short_state == "missing")
    assert "again to retry" not in str(error.value)  # it would diverge again
    states = Sweep.planned(decaying(SHORT_AND_LONG, keep_checkpoints=1)).states()
    assert [state.state for state in states] == [short_state, "failed"]


def test_a_sweep_that_waited_for_another_plans_from_what_that_one_left(decaying, monkeypatch):
    """It adds a budget; the trunk passed the step where that begins, after it was planned as a branch."""
    later = Sweep.planned(decaying({**SHORT_AND_LONG, "training.steps": [6, 9, 12]}))
    assert [run.trunk_tokens // 128 for run in later.plan] == [3, 4, 0]
    finished(decaying(SHORT_AND_LONG), monkeypatch)
    with later.claimed():
        assert [run.trunk_tokens // 128 for run in later.plan] == [3, 0, 0]
        whole = load_recipe(later.recipe_file(later.plan[1].id))
        assert whole.total_steps == 9 and whole.training.trunk is None and not later.beginnings[later.plan[1].id]


@pytest.mark.long
def test_a_branch_is_trained_beside_its_trunk(decaying, tmp_path, monkeypatch):
    """The trunk is being trained at step 9 until the branch, which begins at step 3, has finished."""

    class Beside(InProcess):
        polls = 0

        @property
        def busy(self):
            return self.polls > 0 or super().busy

        def start(self, run):
            started = super().start(run)
            if run.steps == 12 and not self.polls:
                ((self.trunk, _),), self.polls = super().poll(), 1
            return started

        def poll(self):
            ended = super().poll()
            self.polls += bool(self.polls)
            if any(run.steps == 6 for run, _ in ended) or self.polls > 4:
                monkeypatch.undo()
                super().start(self.trunk)
                self.polls = 0
            return ended

    diverging(monkeypatch, 12, 9)
    sweep = Sweep.planned(decaying(SHORT_AND_LONG))
    sweep.write()
    executor = Beside(sweep)
    schedule(sweep, executor)
    short, long = (run.id for run in sweep.plan)
    assert executor.started == [long, short, long] and sweep.count()["finished"] == 2
    recipe = next(run for run in sweep.runs if run.id == short).recipe()
    alone = train(load_recipe(recipe, {"training.trunk": None}, tmp_path / "alone"))
    folder = sweep.run_folder(short)
    a, b = (load_file(each.path / "model/model.safetensors") for each in (alone, folder))
    assert all(equal(a[name], b[name]) for name in a)
    for kind in ("curve", "validation"):
        assert timeless(alone.metrics(kind)) == timeless(folder.metrics(kind))


def test_the_guides_example_for_slurm_starts_trunks_before_their_branches(decaying, tmp_path, monkeypatch):
    started = []

    class AutoExecutor:
        def __init__(self, folder):
            self.update_parameters = dict

        def map_array(self, function, folders, runs):
            assert function is train_run and folders == [str(tmp_path / "sweep")] * len(runs)
            started.append(list(runs))
            return []

    monkeypatch.setitem(sys.modules, "submitit", SimpleNamespace(AutoExecutor=AutoExecutor))
    settings = decaying()
    (tmp_path / "SWEEP.yaml").write_text(yaml.safe_dump(settings.resolved()))
    guide = (Path(__file__).parents[2] / "docs" / "plan.md").read_text()
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", guide, re.DOTALL) if "submitit" in block)
    exec(code.replace("SWEEP.yaml", str(tmp_path / "SWEEP.yaml")).replace("/shared/sweep", str(tmp_path / "sweep")), {})
    (short, long, other_short, other_long) = settings.recipes()
    assert started == [[long, other_long], [short, other_short]]


def test_all_cells_have_the_same_flops_to_half_a_step(decaying):
    budgets = [1e8, 2e8]
    grid = {"model.width": [16, 32], "data.context": [16, 64], "training.flops": budgets}
    sweep = Sweep.planned(decaying(grid, warmup_steps=1))
    assert len(sweep.plan) == 8
    for run, budget in zip(sweep.plan, 4 * budgets, strict=True):
        assert abs(run.flops - budget) <= run.flops / run.steps / 2 * (1 + 1e-9)
    assert {run.steps for run in sweep.plan if run.size.endswith("width32-heads2")} != {
        run.steps for run in sweep.plan if run.size.endswith("width16-heads2")
    }
    assert any("differ from their budget by up to" in note for note in sweep.notes)


def test_a_length_that_is_not_known_yet_refuses_no_warm_up(decaying):
    """One that is longer than 500 steps, of a run of thousands."""
    grid = {"data.context": [16], "training.flops": [1e10]}
    (run,) = Sweep.planned(decaying(grid, warmup_steps=600)).plan
    assert run.flops == pytest.approx(1e10, rel=1e-3) and run.tokens > 200_000


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("axis", "same"), [("steps", [20, 20.0, "20", "2e1"]), ("tokens", [100_000, 1.0e5, "100000"])])
def test_a_length_may_be_written_in_any_way_that_yaml_reads(decaying, axis, same):
    runs = [decaying({"data.context": [16], f"training.{axis}": [value]}).recipes() for value in same]
    assert runs == [runs[0]] * len(same)


@pytest.mark.parametrize(
    ("grid", "training", "message"),
    [
        (
            {"data.context": [16], "training.flops": [1e4]},
            {},
            "grid.training.flops has 10000, with which nano-layers1-width16-heads2-c16 trains 1 step, too few for one "
            "decay: its warm-up takes 2 and its decay 1; give it more",
        ),
        ({"data.context": [16], "training.steps": [3, 12]}, {}, "grid.training.steps has 3, with which"),
        ({"data.context": [16], "training.flops": ["much"]}, {}, "grid.training.flops has 'much', which is no positive number"),
        ({"data.context": [16], "training.flops": [1e30]}, {}, "grid.training.flops has 1e+30, with which"),
        ({"data.context": [16], "training.steps": [1e30]}, {}, "grid.training.steps has 1e+30, with which"),
        ({"data.context": [16], "training.tokens": [256.0]}, {}, "grid.training.tokens has 256, with which"),
        ({"data.context": [16], "training.tokens": [None]}, {}, "tokens has None, which is no positive whole number"),
        ({"data.context": [16], "training.tokens": ["abc"]}, {}, "tokens has 'abc', which is no positive whole number"),
        ({"data.context": [16], "training.steps": [[1, 2]]}, {}, "steps has [1, 2], which is no positive whole number"),
        ({"data.context": [16], "training.steps": [20.5]}, {}, "grid.training.steps has 20.5, which is no positive"),
        ({"data.context": [16], "training.flops": [1e8], "training.tokens": [640]}, {}, "they set the same length"),
        (
            {"data.context": [16], "training.steps": [6, 12]},
            {"warmup_steps": 0.1},
            "base.training.warmup_steps is 0.1, a share of each run, but the runs of a cell begin with the same steps; give a "
            "number of steps",
        ),
        ({"data.context": [16], "training.steps": [6, 12]}, {"schedule": "constant"}, "keep the longest alone"),
        ({"data.context": [16], "training.flops": [1e8, 2e8]}, {"schedule": "constant"}, "c16 has several lengths"),
        ({"data.context": [16], "training.steps": [12]}, {"trunk": "runs/x"}, "training.trunk is given, but the sweep sets it"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("error")
def test_budgets_that_do_not_fit_are_refused_before_training(decaying, grid, training, message):
    with pytest.raises(ConfigError) as error:
        Sweep.planned(decaying(grid, **training))
    assert message in str(error.value)
