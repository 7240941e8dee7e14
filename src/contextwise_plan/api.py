"""The verbs of planning as functions."""

from pathlib import Path
from typing import TYPE_CHECKING

from contextwise.api import output, plain_values

if TYPE_CHECKING:
    from contextwise.api import Changes
    from contextwise_plan.sweeps.sweep import Sweep


def sweep(
    recipe: str | Path, changes: "Changes | None" = None, out: str | Path | None = None, *, verbose: bool = False
) -> "Sweep":
    """Train a grid of sizes and contexts, or resume it, as ``contextwise plan sweep`` does.

    Args:
        recipe: a sweep file, or the name of a sweep of the package.
        changes: settings in place of the file's, such as ``{"base.seed": 1}``.
        out: the sweep's folder.
    """
    from contextwise_plan.sweeps.recipe import load_sweep
    from contextwise_plan.sweeps.sweep import run_sweep

    loaded = load_sweep(recipe, plain_values(changes), out)
    with output(verbose):
        return run_sweep(loaded)
