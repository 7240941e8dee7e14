"""The data of a sweep's page: its runs and their states, and its points."""

import math
from pathlib import Path

import yaml

from contextwise.base.config import read_yaml
from contextwise.base.errors import ConfigError, DataError
from contextwise.base.files import read_json
from contextwise.experiments.folder import RunState
from contextwise_plan.optimum import Landscape
from contextwise_plan.scaling.observations import TABLE, read_table
from contextwise_plan.sweeps.points import SweepPoint, sweep_points
from contextwise_plan.sweeps.sweep import Sweep

UNITS = ("flops", "seconds", "tokens")


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
        dropped: how many measurements had a loss that is no number.

    Raises:
        CheckpointError: there is no sweep.
        ConfigError: nothing was measured yet.
        DataError: a file is damaged, or no loss is a number.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.states: list[RunState] = []
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
        return points

    def _read_table(self) -> list[SweepPoint]:
        """The points of the table."""
        observed, about = read_table(self.path), read_json(self.path, TABLE)
        self.sizes = dict(zip(observed.sizes, observed.size_parameters.astype(int).tolist(), strict=True))
        self.planned = {size: observed.planned[size] for size in observed.sizes}
        self.recipe, self.name = yaml.safe_dump(about["recipe"], sort_keys=False), about["name"]
        self.corpus = str(about["recipe"].get("data", {}).get("corpus", ""))
        return list(observed.points)

    @property
    def runs(self) -> int:
        """How many runs the sweep has."""
        return len(self.states) or len({point.run for point in self.points})

    @property
    def contexts(self) -> list[int]:
        """All training contexts of the grid, ascending."""
        return sorted({context for some in self.planned.values() for context in some})
