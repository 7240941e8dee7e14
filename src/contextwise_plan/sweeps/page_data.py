"""The data of a sweep's page: runs and their states, points and context curves."""

import itertools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from contextwise.base.config import read_yaml
from contextwise.base.errors import ConfigError, DataError
from contextwise.base.estimates import count
from contextwise.base.files import read_json
from contextwise.data.document_lengths import token_count
from contextwise.data.windows import join_short_end
from contextwise.evaluation.kernel import results_of
from contextwise.evaluation.measures.curve import Curve
from contextwise.experiments.folder import RunState
from contextwise_plan.optimum import Landscape
from contextwise_plan.scaling.observations import TABLE, read_table
from contextwise_plan.sweeps.points import SweepPoint, sweep_points
from contextwise_plan.sweeps.sweep import Sweep

UNITS = ("flops", "seconds", "tokens")


@dataclass
class CurveLine:
    """A context curve of one run, at the end of its training or as far as it was trained."""

    label: str
    group: str  # the box of its switch
    series: int  # colour number
    context: int
    bins: list[tuple[int, int]]  # (first, last) number of visible tokens of each bin
    losses: list[float]  # of each bin, nats per token
    intervals: list[tuple[float | None, float | None]] | None = None  # of each bin; None if measured while training


class SweepData:
    """A sweep, read from its folder, finished or not, or from its table.

    Args:
        path: the folder, or the file that ``contextwise plan budget --table`` wrote, which has the points alone.

    Attributes:
        states: of the runs; none from a table.
        points: measurements whose loss is a number.
        sizes: name -> parameters, in that order.
        planned: size -> all its training contexts.
        landscapes: one a kind of budget.
        recipe: the sweep's, as YAML; of a table what the runs share.
        corpus: path of the corpus, or its name.
        curves: context curves; none from a table.
        dropped: how many measurements had a loss that is no number.

    Raises:
        CheckpointError: there is no sweep.
        ConfigError: nothing was measured yet.
        DataError: a file is damaged, or no loss is a number.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.states: list[RunState] = []
        self.curves: list[CurveLine] = []
        points = self._read_table() if path.is_file() else self._read_folder()
        self.points = [point for point in points if math.isfinite(point.loss)]
        self.dropped = len(points) - len(self.points)
        if not self.points:
            raise DataError(
                f"no loss that the sweep {path} measured is a number: its runs diverged; lower their "
                "learning rate and sweep again, into another folder"
            )
        landscapes = (Landscape(self.points, unit, self.planned) for unit in UNITS)
        self.landscapes = [result for result in landscapes if len(result.budgets)]

    def _read_folder(self) -> list[SweepPoint]:
        """The points of the folder."""
        path = self.path
        sweep, points = Sweep.open(path), sweep_points(path)
        self.states = sweep.states()
        if not points:
            done = ", ".join(f"{count} {state}" for state, count in sweep.count().items() if count)
            raise ConfigError(
                f"no run of the sweep {path} has measured a context curve yet ({done}); resume it with contextwise plan sweep, "
                "then make the page again"
            )
        self.sizes, self.planned = sweep.sizes, sweep.contexts
        self.recipe, recipe = ((path / "sweep.yaml").read_text(encoding="utf-8"), read_yaml(path / "sweep.yaml"))
        self.name = str(recipe.get("name") or path.resolve().name)
        self.corpus = str(((recipe.get("base") or {}).get("data") or {}).get("corpus", ""))
        self.curves = _sweep_curves(sweep, self.states)
        return points

    def _read_table(self) -> list[SweepPoint]:
        """The points of the table."""
        observed, about = read_table(self.path), read_json(self.path, TABLE)
        self.sizes = dict(zip(observed.sizes, observed.size_parameters.astype(int).tolist(), strict=True))
        self.planned = {size: observed.planned[size] for size in observed.sizes}
        self.recipe, self.name = yaml.safe_dump(about["recipe"], sort_keys=False), about["name"]
        self.corpus = str(about["recipe"]["data"].get("corpus", ""))
        return list(observed.points)

    @property
    def runs(self) -> int:
        """How many runs the sweep has."""
        return len(self.states) or len({point.run for point in self.points})

    @property
    def contexts(self) -> list[int]:
        """All training contexts of the grid, ascending."""
        return sorted({context for some in self.planned.values() for context in some})


def _sweep_curves(sweep: Sweep, states: list[RunState]) -> list[CurveLine]:
    """The curves of every run: of its training, and those that ``contextwise curve`` measured since.

    The label of a run among those of its size: its context, and its tokens and seed where those differ.
    """
    lengths = {(s.run.size, s.run.tokens) for s in states}
    several_lengths = len(lengths) > len({size for size, _ in lengths})
    several_seeds = len({state.run.seed for state in states}) > 1
    curves = []
    for state in states:
        run, folder = state.run, sweep.run_folder(state.run.id)
        words = [token_count(run.context)]
        words += [count(run.tokens)] if several_lengths else []
        words += [f"seed {run.seed}"] if several_seeds else []
        label = ", ".join(words)
        about = {"group": run.size, "series": list(sweep.sizes).index(run.size), "context": run.context}
        curves += _training_curve(folder.metrics("curve"), label=label, **about)
        results = results_of(folder.evaluation, Curve.name)
        curves += [_measured_curve(about, result.summary, label) for result in results]
    return curves


def _training_curve(rows: list[dict[str, Any]], **about: Any) -> list[CurveLine]:
    """From the last ``curve`` row of a run whose losses are numbers, if there is one."""
    rows = [row for row in rows if np.isfinite(row["loss"]).all()]
    if not rows:
        return []
    last = max(rows, key=lambda row: row["step"])
    measured = np.array([*last["visible"], last["context"] + 1])
    edges, losses = join_short_end(measured), last["loss"]
    if len(edges) < len(measured):
        losses = [*losses[:-2], float(np.average(losses[-2:], weights=np.diff(measured)[-2:]))]
    bins = [(low, next_low - 1) for low, next_low in itertools.pairwise(edges.tolist())]
    return [CurveLine(bins=bins, losses=losses, **about)]


def _measured_curve(about: dict[str, Any], summary: dict[str, Any], label: str) -> CurveLine:
    """The line of a curve that ``contextwise curve`` measured."""
    settings, rows = summary["settings"], summary["bins"]
    words = [f"{label}, measured on {summary['label']}"]
    words += ["truncated"] if settings.get("mode") == "truncated" else []
    words += [f"rope {settings['rope']}"] if settings.get("rope", "none") != "none" else []
    return CurveLine(
        label=", ".join(words),
        bins=[(row["visible_from"], row["visible_to"]) for row in rows],
        losses=[row["loss"] for row in rows],
        intervals=[(row["low"], row["high"]) for row in rows],
        **about,
    )
