"""The processes of a launch meet, or say in seconds why they cannot."""

import os
import signal
import time
from pathlib import Path

import pytest
import yaml

import contextwise as api
from command_line import Contextwise
from contextwise.base.errors import ConfigError
from contextwise.experiments.executors import ExecutorSettings
from contextwise.experiments.run_set import RunSet
from contextwise.training import launch
from fuzzing import _run
from processes import forked, free_port
from small import recipe_values

LAUNCH = {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("WORLD_SIZE", "abc", "WORLD_SIZE is 'abc', but must be a whole number"),
        ("RANK", "-1", "RANK is '-1', but must be a whole number"),
        ("RANK", "2", r"RANK is 2, but WORLD_SIZE is \d"),
        ("MASTER_PORT", "99999", "MASTER_PORT is '99999', but must be a whole number below 65,536"),
        ("MASTER_ADDR", "192.0.2.1", "MASTER_ADDR is '192.0.2.1', but a connection to it does not arrive"),
        ("MASTER_ADDR", "", "MASTER_ADDR is '', but a connection to it does not arrive"),
    ],
)
@pytest.mark.parametrize("size", ["2", pytest.param("1", marks=pytest.mark.long)])
def test_variables_with_which_processes_cannot_meet(
    corpus_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, why: str, size: str
) -> None:
    """A single process that a shell of a cluster started waited for minutes for itself."""
    monkeypatch.setattr(launch, "SECONDS", 0.2)
    for each, given in {**LAUNCH, "WORLD_SIZE": size, "MASTER_PORT": str(free_port()), name: value}.items():
        monkeypatch.setenv(each, given)
    with pytest.raises(ConfigError, match=why):
        api.train(recipe_values(corpus_folder, tmp_path / "run"))


def _wait(recipe: Path, port: int, errors: str) -> None:
    os.environ |= {**LAUNCH, "MASTER_PORT": str(port)}
    launch.SECONDS = 0.1
    _run(["train", str(recipe)], str(recipe.parent), os.devnull, errors)


def test_a_process_says_what_it_waits_for_and_can_be_stopped(corpus_folder: Path, tmp_path: Path) -> None:
    recipe, errors, port = tmp_path / "recipe.yaml", tmp_path / "errors", free_port()
    recipe.write_text(yaml.safe_dump(recipe_values(corpus_folder, tmp_path / "run")))
    errors.touch()
    process, limit = forked(_wait, recipe, port, str(errors)), time.monotonic() + 60
    said = f"process 0 of 2 waits for the others at 127.0.0.1:{port}"
    while said not in errors.read_text():
        assert process.is_alive() and time.monotonic() < limit, errors.read_text()
        time.sleep(0.05)
    os.kill(process.pid or 0, signal.SIGTERM)
    process.join(20)
    assert process.exitcode == 143, errors.read_text()
    assert "stopped by SIGTERM" in errors.read_text()


@pytest.mark.parametrize(
    "line", ["trial gpt2 pm --corpus c", "evaluate run --corpus c", "plan sweep stdlib-quick", "decide"]
)
def test_what_several_processes_do_not_share_is_refused(
    contextwise: Contextwise, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    """The second process of a trial waited for the first one's lock, and the first one for the second."""
    for each, given in LAUNCH.items():
        monkeypatch.setenv(each, given)
    name = " ".join(line.split()[: 1 + line.startswith("plan")])
    contextwise.refused(line, f"contextwise {name} works in one process, and this is one of 2 (WORLD_SIZE)")


def test_a_trial_and_runs_on_an_executor_are_refused_in_several_processes(
    corpus_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each, given in LAUNCH.items():
        monkeypatch.setenv(each, given)
    with pytest.raises(ConfigError, match="a trial works in one process, and this is one of 2"):
        api.trial(["gpt2", "pm"], corpus_folder, out=tmp_path / "trial")
    with pytest.raises(ConfigError, match="a set of runs works in one process"):
        RunSet(tmp_path, []).train_missing(ExecutorSettings(jobs=2))
    assert not (tmp_path / "trial").exists()
