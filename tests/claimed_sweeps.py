"""Fixtures: the tiny sweep, as values and as a sweep that is claimed."""

import pytest

from contextwise.base.config import validate
from contextwise_plan.sweeps.recipe import SweepRecipe
from contextwise_plan.sweeps.sweep import Sweep
from sweeping import sweep_values


@pytest.fixture
def settings(corpus_folder, tmp_path):
    """Make settings of the tiny sweep: ``settings(measurements=2)``."""

    def make(output=None, **changes):
        values = sweep_values(corpus_folder, output or tmp_path / "sweep", **changes)
        return validate(SweepRecipe, values, "the sweep")

    return make


@pytest.fixture
def claimed(settings):
    """Make the tiny sweep on disk, with nothing trained yet."""

    def make(**changes):
        sweep = Sweep.planned(settings(**changes))
        sweep.write()
        return sweep

    return make
