"""The time of a training step of each arm, measured in alternation."""

import itertools
import statistics
import tempfile
from pathlib import Path

import torch

from contextwise.base.config import validate
from contextwise.base.progress import console
from contextwise.experiments.executors import ExecutorSettings, cores
from contextwise.training.recipe import Recipe

STEPS, WARMUP = 6, 2
"""Steps of a timed run, and those at its start that do not count."""


def seconds_per_step(recipes: dict[str, Recipe], rounds: int, executor: ExecutorSettings) -> dict[str, float]:
    """Seconds of a training step of each recipe.

    Each round trains every recipe for a few steps, as a run is trained, in turning order. The time of a recipe is the median
    over rounds of its ratio to the first recipe, times the first's median, so that a slow round counts for all recipes alike.

    Args:
        executor: of the runs that are planned; the steps are timed with as many threads.
    """
    threads = torch.get_num_threads()
    wanted = executor.threads or (threads if executor.jobs == 1 else max(1, cores() // executor.jobs))
    measured: dict[str, list[float]] = {name: [] for name in recipes}
    names = list(recipes)
    quiet = console.quiet
    torch.set_num_threads(wanted)
    console.quiet = True  # the timed runs are no news
    try:
        with tempfile.TemporaryDirectory(prefix="contextwise-timing-") as folder:
            for number in range(rounds):
                turn = number % len(names)
                for name in names[turn:] + names[:turn]:
                    measured[name].append(
                        _timed(recipes[name], Path(folder) / f"{number}-{names.index(name)}")
                    )
    finally:
        console.quiet = quiet
        torch.set_num_threads(threads)
    first = measured[names[0]]
    base = statistics.median(first)
    return {
        name: base * statistics.median(a / b for a, b in zip(times, first, strict=True))
        for name, times in measured.items()
    }


def _timed(recipe: Recipe, folder: Path) -> float:
    """Median seconds of a step in a run of a few steps."""
    from contextwise.training.run import train

    values = recipe.model_dump(mode="json")
    values["training"] |= {
        "steps": STEPS,
        "tokens": None,
        "epochs": None,
        "warmup_steps": 0,
        "decay_steps": 0.2,
        "log_every": 1,
        "rampup_batch_size": None,
        "evaluate_every": 0,
        "evaluation_tokens": 1,
        "curve_every": 0,
        "patience": None,
        "save_every": STEPS + 1,
        "trackers": [],
    }
    values["data"]["verify"] = False
    values["output"] = str(folder)
    rows = train(validate(Recipe, values, "the timed run")).metrics("train")
    times = [b["seconds"] - a["seconds"] for a, b in itertools.pairwise(rows)]
    return statistics.median(times[WARMUP - 1 :])
