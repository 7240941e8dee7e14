"""Run folders written by hand."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from written_runs import write_run


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Any]:
    """Writes a run into the test's own folder; the arguments of :func:`write_run`."""
    return lambda name="GPT-2", **settings: write_run(tmp_path, name, **settings)
