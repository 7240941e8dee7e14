"""A trial whose process is killed in each of its phases, and started again each time."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

RECIPE = {
    "data": {"context": 16},
    "model": {"layers": 1, "width": 16, "heads": 2},
    "training": {"tokens_per_step": 64, "learning_rate": 3e-3, "save_every": 2},
}
PHASES = ("plan.json", "runs/rates-gpt2*/metrics.jsonl", "runs/gpt2-s0-*/checkpoints/*", "result.json")
"""Files that appear when a phase has begun: the plan, the search, the first seed, after its look."""


def started(file: Path) -> subprocess.Popen:
    command = [sys.executable, "-m", "contextwise", "trial", str(file), "--json"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


@pytest.mark.slow
def test_a_trial_that_is_killed_in_every_phase_ends_like_one_that_is_not(corpus_folder, tmp_path):
    files = {}
    for name in ("killed", "whole"):
        values: dict[str, Any] = {"corpus": str(corpus_folder), "recipe": RECIPE, "tokens": 512, "seeds": 3}
        values |= {"arms": {"gpt2": None, "slower": ["training.learning_rate=1e-4"]}, "output": str(tmp_path / name)}
        values["rates"] = {"factors": [1.0, 2.0], "widenings": 0}
        files[name] = tmp_path / f"{name}.yaml"
        files[name].write_text(yaml.safe_dump(values))
    killed = 0
    for phase in PHASES:
        process = started(files["killed"])
        while process.poll() is None and not list((tmp_path / "killed").glob(phase)):
            time.sleep(0.01)
        killed += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.communicate()
    results = {}
    for name, file in files.items():
        process = started(file)
        printed, _ = process.communicate()
        assert process.returncode == 0
        results[name] = json.loads(printed)
    assert killed == len(PHASES)
    for part in ("losses", "comparisons", "rates"):
        assert results["killed"][part] == results["whole"][part]
    assert (tmp_path / "killed/report.html").is_file()
