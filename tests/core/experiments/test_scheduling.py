"""Scheduling of runs: starts, skips, failures and counts; the runs train in this process."""

import threading

import pytest

from contextwise.base import progress
from contextwise.base.errors import ConfigError, Interrupted, TrainingError
from contextwise.base.files import exclusive
from contextwise.base.progress import interruption
from contextwise.experiments import scheduling
from contextwise_plan.sweeps.sweep import Sweep, run_sweep
from sweeping import InProcess


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    monkeypatch.setattr(scheduling, "POLL_SECONDS", 0.0)


def go(sweep, before=None):
    """Drive the sweep; gives the ids in the order in which they were started."""
    executor = InProcess(sweep, before)
    scheduling.schedule(sweep, executor)
    return executor.started


@pytest.mark.long
def test_expensive_runs_come_first_and_finished_ones_are_left_alone(claimed):
    sweep = claimed()
    small, large = (run.id for run in sweep.plan)
    assert go(sweep) == [large, small]
    files = [file for file in sweep.path.rglob("*") if file.is_file()]
    before = {file: file.stat().st_mtime_ns for file in files}
    assert go(sweep) == []
    assert {file: file.stat().st_mtime_ns for file in files} == before
    assert sweep.count()["finished"] == 2


@pytest.mark.long
def test_a_failed_run_is_listed_and_tried_again_by_the_next_call(claimed, capsys):
    sweep = claimed()
    small, large = (run.id for run in sweep.plan)

    def unlucky(run, attempt):
        if run.id == large:
            raise TrainingError("lightning struck")

    failed = r"1 of 2 runs failed \(lightning struck\); contextwise plan sweep --status "
    with pytest.raises(TrainingError, match=failed):
        go(sweep, unlucky)
    states = {state.run.id: state for state in sweep.states()}
    assert (states[small].state, states[large].state) == ("finished", "failed")
    assert states[large].loss is None
    assert states[large].failure == "lightning struck" and capsys.readouterr().err.count("lightning struck") == 1
    assert go(sweep) == [large]  # and it alone
    assert sweep.failure(large) is None
    assert sweep.count()["finished"] == 2


def test_a_failed_run_counts_in_the_progress(claimed, monkeypatch, capsys):
    sweep = claimed()

    def refuse(run, attempt):
        raise ConfigError("the disk is read-only")

    monkeypatch.setattr(scheduling, "REFRESH_SECONDS", 0.0)
    monkeypatch.setattr(progress, "LINE_EVERY_SECONDS", 0.0)
    with pytest.raises(TrainingError, match="2 of 2 runs failed"):
        go(sweep, refuse)
    lines = [line for line in capsys.readouterr().err.splitlines() if "of the FLOPs" in line]
    assert lines[0] == "runs: 0 of 100 % of the FLOPs, 1 failed of 2 runs"


def test_a_loss_that_is_not_finite_fails_its_run(settings, claimed):
    base = settings().base
    base["training"] |= {"learning_rate": 1e30, "clip": 0.0, "warmup_steps": 0}
    sweep = claimed(base=base, learning_rate="fixed")
    with pytest.raises(TrainingError, match="2 of 2 runs failed"):
        go(sweep)
    for state in sweep.states():
        assert state.state == "failed" and "is nan at step" in state.failure


def test_a_request_to_stop_starts_nothing_more(claimed, monkeypatch):
    sweep = claimed()

    def ask(run, attempt):
        monkeypatch.setattr(interruption, "signal", "SIGTERM")
        raise Interrupted("stopped by SIGTERM at step 0")

    with pytest.raises(Interrupted, match="stopped by SIGTERM: 0 of 2 runs are finished"):
        go(sweep, ask)
    assert [state.state for state in sweep.states()] == ["missing", "missing"]  # stopped is not failed


@pytest.mark.long
def test_a_run_of_another_process_is_waited_for(claimed, capsys):
    sweep = claimed()
    executor = InProcess(sweep)
    start, refused = executor.start, []

    def busy(run):
        if len(refused) < 5:
            refused.append(run.id)
            return False
        return start(run)

    executor.start = busy
    scheduling.schedule(sweep, executor)
    assert len(refused) == 5 and sweep.count()["finished"] == 2
    assert capsys.readouterr().err.count("another process is training it") == 2  # once for each run


@pytest.mark.long
def test_the_whole_sweep_from_its_settings(settings, capsys):
    sweep = run_sweep(settings())
    assert Sweep.open(sweep.path).count()["finished"] == 2
    assert "tiny: 2 of 2 runs to do" in capsys.readouterr().err
    run_sweep(settings())
    assert "runs are finished already: nothing to train" in capsys.readouterr().err


@pytest.mark.long
def test_a_second_start_in_the_same_folder_waits_and_reports_it(settings, claimed, capsys):
    sweep = claimed()
    go(sweep)
    second = threading.Thread(target=run_sweep, args=[settings()], daemon=True)
    with exclusive(sweep.path, "the runs", inside=True):
        second.start()
        second.join(1.0)
        assert second.is_alive()
    second.join(60)
    assert not second.is_alive()
    errors = capsys.readouterr().err
    assert f"another process is writing the runs {sweep.path}; waiting" in " ".join(errors.split())
    assert "runs are finished already: nothing to train" in errors
