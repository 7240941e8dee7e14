"""The types of the public API, as editors show them."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_pyright_finds_no_error_in_the_files_of_the_public_api() -> None:
    command = shutil.which("pyright")
    if command is None:
        pytest.skip("pyright is not installed: pip install 'pyright[nodejs]'")
    done = subprocess.run([command, "--pythonpath", sys.executable], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "0 errors" in done.stdout, done.stdout
