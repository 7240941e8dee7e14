"""Runs as processes of their own on this machine."""

import os
import signal
import stat
import subprocess
import sys
import threading
import time

import pytest
import torch
import yaml

from contextwise.base.errors import TrainingError
from contextwise.base.files import is_held
from contextwise.base.runs import RunFolder
from contextwise.experiments import executors, scheduling
from contextwise.experiments.executors import ExecutorSettings, LocalExecutor, visible_gpus
from sweeping import long_enough, same_as_alone, wait_for_checkpoint


@pytest.mark.slow
def test_a_killed_run_resumes_with_the_same_result(settings, claimed, tmp_path, capfd):
    values = long_enough(settings)
    values["grid"]["data.context"] = [32]
    sweep = claimed(**values)
    run = sweep.plan[0].id
    executor = LocalExecutor(sweep, ExecutorSettings(jobs=2, threads=1))

    def kill():
        wait_for_checkpoint(sweep.run_folder(run).path)
        executor.processes[run][1].process.kill()

    threading.Thread(target=kill, daemon=True).start()
    with pytest.raises(TrainingError, match=r"1 of 1 runs failed \(killed by SIGKILL"):
        scheduling.schedule(sweep, executor)
    assert f"{run}: failed: killed by SIGKILL" in capfd.readouterr().err
    scheduling.schedule(sweep, LocalExecutor(sweep, ExecutorSettings(jobs=2, threads=1)))
    log = sweep.log_file(run).read_text()
    rate = sweep.runs[0].recipe().learning_rate
    assert f"from the start\n  learning rate {rate:g}\n" in log and "resuming from step " in log
    assert sweep.count()["finished"] == 1 and sweep.failure(run) is None
    assert same_as_alone(sweep, run, tmp_path)


@pytest.fixture
def fake(monkeypatch, tmp_path):
    """A program in the place of ``python -m contextwise train``; gives what it was started with."""
    program = tmp_path / "program"

    def make(script):
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(program.stat().st_mode | stat.S_IEXEC)
        monkeypatch.setattr(executors.sys, "executable", str(program))

    return make


@pytest.mark.parametrize(
    ("script", "status", "reason"),
    [
        ("echo 'error: the loss is nan'; echo later; exit 1", 1, "the loss is nan"),
        ("echo Traceback; echo 'KeyError: 3'; exit 1", 1, "KeyError: 3"),
        ("exit 3", 3, "exit status 3"),
        ("kill -9 $$", -9, "killed by SIGKILL; the machine may have run out of memory"),
        ("kill -15 $$", -15, "killed by SIGTERM"),
    ],
)
def test_a_failure_has_the_reason_that_its_log_ends_with(fake, tmp_path, script, status, reason):
    fake("echo 'error: of an earlier attempt'; exit 2")
    assert executors.RunProcess(tmp_path, "a", os.environ).wait().status == 2
    fake(script)
    assert executors.RunProcess(tmp_path, "a", os.environ).wait() == executors.Outcome(status, reason)


def test_threads_and_gpus_are_shared_out(fake, claimed, monkeypatch):
    sweep = claimed(grid={"data.context": [8, 16, 32], "training.steps": [12]})
    monkeypatch.setattr(executors, "visible_gpus", lambda: ["2", "5"])
    monkeypatch.setattr(executors, "cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    fake('echo "threads $OMP_NUM_THREADS gpu $CUDA_VISIBLE_DEVICES $@"; while true; do sleep 0.1; done')
    executor = LocalExecutor(sweep, ExecutorSettings(jobs=3))
    assert all(executor.start(run) for run in sweep.plan)
    assert not executor.has_room
    for run, gpu in zip(sweep.plan, ("2", "5", "2"), strict=True):
        recipe, folder = sweep.recipe_file(run.id), sweep.run_folder(run.id).path
        expected = f"threads 2 gpu {gpu} -m contextwise train {recipe} --out {folder}"
        deadline = time.monotonic() + 10
        while expected not in sweep.log_file(run.id).read_text() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert expected in sweep.log_file(run.id).read_text()
    executor.close()
    assert [outcome.reason for _, outcome in executor.poll()] == ["killed by SIGTERM"] * 3
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert LocalExecutor(sweep, ExecutorSettings(jobs=3))._environment("x")["OMP_NUM_THREADS"] == "5"
    assert LocalExecutor(sweep, ExecutorSettings(threads=7))._environment("x")["OMP_NUM_THREADS"] == "7"


def test_gpus_are_those_that_the_sweep_may_see(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_gpus() == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-abc")
    assert visible_gpus() == ["3", "GPU-abc"]


def test_a_run_that_is_being_trained_is_not_started(claimed):
    sweep = claimed()
    run = sweep.plan[0]
    with RunFolder(sweep.run_folder(run.id).path).locked():
        assert LocalExecutor(sweep, ExecutorSettings()).start(run) is False
    assert not sweep.log_file(run.id).exists()


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_stopped_sweep_saves_its_runs_and_resumes(settings, tmp_path, how):
    wanted = settings(**long_enough(settings, steps=1500))
    file = tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump(wanted.model_dump(mode="json")))
    command = [sys.executable, "-m", "contextwise", "plan", "sweep", str(file), "--jobs", "2"]
    begun = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    for name in wanted.recipes():
        wait_for_checkpoint(wanted.folder / "runs" / name)
    begun.send_signal(how)
    output, _ = begun.communicate(timeout=60)
    logs = [wanted.folder / "logs" / f"{name}.log" for name in wanted.recipes()]
    if how == signal.SIGKILL:
        assert begun.returncode == -9
        deadline = time.monotonic() + 30
        runs = [wanted.folder / "runs" / name for name in wanted.recipes()]
        while any(is_held(run, inside=True) for run in runs) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not any(is_held(run, inside=True) for run in runs)  # nobody goes on alone
    else:
        assert begun.returncode == 128 + how
        assert f"stopped by {how.name}: 0 of 2 runs are finished" in output and "error" not in output
        assert all("stopped by SIGTERM at step" in log.read_text() for log in logs)
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{wanted.folder}\n"
    assert all("resuming from step " in log.read_text() for log in logs)
