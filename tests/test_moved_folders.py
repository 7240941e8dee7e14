"""Folders that are moved or removed while a command works in them, and afterwards."""

import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from golden import weights_hash
from processes import forked, type_command
from small import EXACT, recipe_values

STEPS = {"steps": 6, "save_every": 2, "evaluate_every": 3, **EXACT}


@pytest.fixture
def workplace(corpus_folder: Path, tmp_path: Path) -> Path:
    """A folder ``project`` with a corpus, and recipes of a run, a trial and a sweep that name it by a relative path."""
    folder = tmp_path / "project"
    shutil.copytree(corpus_folder, folder / "corpus")
    values = recipe_values(Path("corpus"), Path("unused"), **STEPS)
    (folder / "recipe.yaml").write_text(yaml.safe_dump({name: values[name] for name in ("data", "model", "training")}))
    small = {"data": {"context": 16}, "model": {"layers": 1, "width": 16, "heads": 2}}
    steps = {"tokens_per_step": 64, "warmup_steps": 0, "evaluation_tokens": 16}
    trial = {
        "corpus": "corpus",
        "arms": ["gpt2", "pm"],
        "recipe": small | {"training": steps},
        "tokens": 128,
        "seeds": 2,
    }
    (folder / "trial.yaml").write_text(yaml.safe_dump(trial | {"rates": "fixed", "equal": "tokens", "limit": 6}))
    base = small | {"training": steps, "data": {"corpus": "corpus"}}
    sweep = {"name": "moved", "base": base, "grid": {"data.context": [16, 32], "training.tokens": [512]}}
    (folder / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    return folder


@pytest.mark.long
@pytest.mark.parametrize("absolute", [False, True])
def test_a_run_resumes_where_it_was_moved(
    contextwise: Callable, workplace: Path, stop_at: Callable, absolute: bool
) -> None:
    """Alone, or with the corpus and all around it."""
    assert contextwise("train recipe.yaml --out whole")[0] == 0
    stop_at(4)
    out = workplace / "run" if absolute else Path("run")
    status, _, errors = contextwise(f"train recipe.yaml --out {out}")
    assert "stopped by a signal at step" in errors and status, errors
    stop_at(0)
    (workplace / "run").rename(workplace / "elsewhere")
    contextwise.folder = workplace.rename(workplace.with_name("renamed"))
    status, _, errors = contextwise("train recipe.yaml --out elsewhere")
    assert status == 0 and "resuming from step" in errors, errors
    assert weights_hash(contextwise.folder / "elsewhere/model") == weights_hash(contextwise.folder / "whole/model")
    status, _, errors = contextwise("model verify elsewhere")
    assert status == 0, errors


@pytest.mark.long
@pytest.mark.parametrize("verb", ["trial", pytest.param("plan sweep", marks=pytest.mark.slow)])
def test_a_set_of_runs_is_found_again_where_it_was_moved(contextwise: Callable, workplace: Path, verb: str) -> None:
    kind = verb.split()[-1]
    status, _, errors = contextwise(f"{verb} {kind}.yaml --out out")
    assert status == 0, errors
    contextwise.folder = workplace.rename(workplace.with_name("renamed"))
    trained = {file: file.stat().st_mtime_ns for file in contextwise.folder.rglob("model.safetensors")}
    option = "--corpus corpus" if kind == "trial" else "--set base.data.corpus=corpus"
    for command in (f"{verb} {kind}.yaml --out out", f"{verb} out/{kind}.yaml {option}"):
        status, _, errors = contextwise(command)
        assert status == 0, errors
    assert trained and trained == {
        file: file.stat().st_mtime_ns for file in contextwise.folder.rglob("model.safetensors")
    }


LONG = "train ../recipe.yaml --set data.corpus=../corpus --set training.steps=100000 --out ../runs/run"
"""A long training, in a folder beside its corpus."""
MOVES = {
    "the run": ("runs/run", "cannot be written to .*No such file"),
    "what it is in": ("runs", "cannot be written to .*No such file"),
    "the corpus": ("corpus", "stopped by SIGINT at step"),
}
"""What is moved while a run is trained, and a pattern of what the command says then."""


@pytest.mark.long
@pytest.mark.parametrize("moved", MOVES)
def test_a_folder_that_is_moved_during_a_training(workplace: Path, tmp_path: Path, moved: str) -> None:
    path, message = MOVES[moved]
    (workplace / "here").mkdir()
    log = tmp_path / "log"
    process = forked(type_command, workplace / "here", LONG.split(), log)
    limit = time.monotonic() + 120
    while not list(workplace.glob("runs/run/checkpoints/step-*")):
        assert process.is_alive() and time.monotonic() < limit, log.read_text()
        time.sleep(0.02)
    (workplace / path).rename(workplace / "away")
    if moved == "the corpus":  # it is open
        time.sleep(0.5)
        os.kill(process.pid or 0, signal.SIGINT)
    process.join(120)
    text = log.read_text()
    assert process.exitcode == (130 if moved == "the corpus" else 2), text
    word = "stopped by " if moved == "the corpus" else "error: "
    ends = [line for line in text.splitlines() if line.startswith(word)]
    assert len(ends) == 1 and "Traceback" not in text, text
    assert re.search(message, ends[0])
