"""Fixtures of the tests of run sets."""

from collections.abc import Iterator

import pytest

from claimed_sweeps import claimed, settings  # noqa: F401
from contextwise.experiments import cost
from contextwise.experiments.trial.arms import Arms


@pytest.fixture(scope="module")
def untimed() -> Iterator[pytest.MonkeyPatch]:
    """Trials that time no steps, and whose arms are not checked for leaks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cost, "seconds_per_step", lambda recipes, *_: dict.fromkeys(recipes, 1.0))
        patch.setattr(Arms, "check_causality", lambda self: None)
        yield patch


@pytest.fixture(scope="module")
def unscored(untimed: pytest.MonkeyPatch) -> None:
    """The same, and no time is planned for scoring."""
    untimed.setattr(Arms, "scored_tokens", 0)
