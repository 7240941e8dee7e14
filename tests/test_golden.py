"""Training and measuring give the same to the last digit as when ``golden.json`` was written."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters

import golden
from contextwise.training import run
from contextwise.training.model import compile_for
from trained import trained

EXPECTED = json.loads(golden.FILE.read_text())


@pytest.mark.slow
@pytest.mark.skipif(golden.machine() != EXPECTED["machine"], reason="golden.json is of another processor or torch")
def test_the_same_to_the_last_digit(tmp_path):
    code = "import golden, json, pathlib, sys; print(json.dumps(golden.golden(pathlib.Path(sys.argv[1]))))"
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    process = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    result = json.loads(process.stdout.splitlines()[-1])
    changed = [
        name for part in ("runs", "measures") for name in EXPECTED[part] if result[part][name] != EXPECTED[part][name]
    ]
    assert not changed, {
        name: (EXPECTED[part][name], result[part][name])
        for part in ("runs", "measures")
        for name in changed
        if name in result[part]
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["causal", "contextlm", "multi-token", "prefix", "masked", "spans", "contrastive", "stages", "variant"]
)
def test_a_step_compiled_as_one_graph_has_the_losses_of_the_model(name, tmp_path, monkeypatch):
    """As a GPU compiles it: 20 steps with validation, in float32."""
    monkeypatch.setattr(run, "compile_for", lambda trained, whole: compile_for(trained, True))
    golden.write_inputs(tmp_path)
    losses = []
    for compiled in (False, True):
        torch.compiler.reset()
        counters.clear()
        values = golden.recipes(tmp_path)[name] | {"output": str(tmp_path / f"{name}-{compiled}")}
        done = trained(values | {"training": values["training"] | {"compile": compiled}})
        losses.append([row["loss"] for kind in ("train", "validation") for row in done.metrics(kind)])
        assert (counters["stats"]["unique_graphs"] > 0) is compiled and not counters["graph_break"]
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)
