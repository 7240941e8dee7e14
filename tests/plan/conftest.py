"""A sweep and its page."""

from pathlib import Path

import pytest
from sweep_pages import make_sweep

from claimed_sweeps import claimed, settings  # noqa: F401
from contextwise_plan.sweeps.page import write_sweep_page


@pytest.fixture(scope="session")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of :func:`sweep_pages.make_sweep`; only to be read."""
    return make_sweep(tmp_path_factory.mktemp("sweep"))


@pytest.fixture(scope="session")
def page(sweep: Path) -> Path:
    """Its page, with the tables beside it."""
    write_sweep_page(sweep, sweep.parent / "page.html", tables=sweep.parent / "tables")
    return sweep.parent / "page.html"
