"""Training and measuring give the same to the last digit as when ``golden.json`` was written."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import golden

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
