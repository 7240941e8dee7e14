"""Verbs and runs that work in one process, refused in several."""

from pathlib import Path

import pytest

import contextwise as api
from command_line import Contextwise
from contextwise.base.errors import ConfigError
from contextwise.experiments.executors import ExecutorSettings
from contextwise.experiments.run_set import RunSet

LAUNCH = {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}


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
