"""A sweep and its page."""

from pathlib import Path

import pytest

from claimed_sweeps import claimed, settings  # noqa: F401
from contextwise_plan.sweeps.page import write_sweep_page
from synthetic_sweep import write_sweep


@pytest.fixture(scope="session")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three sizes, five contexts, two seeds, noise; only to be read."""
    folder = tmp_path_factory.mktemp("sweep") / "sweep"
    return write_sweep(folder, seeds=(0, 1), measurements=12, noise=0.01).path


@pytest.fixture(scope="session")
def page(sweep: Path) -> Path:
    """Its page."""
    write_sweep_page(sweep, sweep.parent / "page.html")
    return sweep.parent / "page.html"
