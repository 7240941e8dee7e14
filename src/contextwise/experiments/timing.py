"""The time of a training step of several recipes, measured in alternation."""

import statistics

import torch

from contextwise.base.errors import ConfigError
from contextwise.base.progress import console
from contextwise.experiments.executors import ExecutorSettings, threads_of
from contextwise.training.recipe import Recipe


def seconds_per_step(
    recipes: dict[str, Recipe], rounds: int, executor: ExecutorSettings | None = None
) -> dict[str, float]:
    """Seconds of a training step of each recipe.

    Each round makes a dry run of every recipe, in turning order. The time of a recipe is the median over rounds of its ratio to
    the first recipe, times the first's median, so that a slow round counts for all recipes alike.

    Args:
        executor: of the runs that are planned, whose number of threads the steps get; None: they are trained in this process.

    Raises:
        ConfigError: a recipe needs more memory than there is.
    """
    threads, quiet = torch.get_num_threads(), console.quiet
    measured: dict[str, list[float]] = {name: [] for name in recipes}
    names = list(recipes)
    torch.set_num_threads(threads if executor is None else threads_of(executor))
    console.quiet = True  # the timed steps are no news
    try:
        for number in range(rounds):
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                measured[name].append(_step(name, recipes[name]))
    finally:
        console.quiet = quiet
        torch.set_num_threads(threads)
    first = measured[names[0]]
    base = statistics.median(first)
    return {
        name: base * statistics.median(a / b for a, b in zip(times, first, strict=True))
        for name, times in measured.items()
    }


def _step(name: str, recipe: Recipe) -> float:
    from contextwise.training.dry_run import dry_run

    seconds = dry_run(recipe).step_seconds
    if seconds is None:
        raise ConfigError(
            f"{name} needs more memory than this machine has; set training.micro_batch_tokens lower, or choose a smaller size"
        )
    return seconds
