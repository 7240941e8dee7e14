"""The points of a sweep that a law is fitted to, from its folder or from its table, one small JSON file.

At a constant rate early points are left out: their loss depends on the start of the learning rate more than on scale, and it is
high, so that they would have the largest weight. The points of one model size, context and seed have their beginning in common:
they are one *run* here, whether they were measured along it or are the ends of branches.
"""

import contextlib
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from contextwise.base.files import atomic_write, read_json
from contextwise.base.schemas import Count, Number, matching
from contextwise.data import Corpus
from contextwise.report import counted
from contextwise.settings import CheckpointError, ConfigError, DataError
from contextwise.training.hyperparameters import in_steps
from contextwise_plan.optimum import Landscape
from contextwise_plan.scaling.forms import Array
from contextwise_plan.sweeps.points import COLUMNS, SweepPoint, run_points, sweep_folders
from contextwise_plan.sweeps.sweep import FEWEST_CONTEXTS, Sweep

EARLY = 0.05  # share of a run's tokens before which its points are left out
WARM_UPS = 2  # points before this multiple of the warm-up are left out
FEWEST_BUDGETS = 3
_SHOWN = 5
TABLE = "the table of a sweep"
OF_A_RUN = {"context", "steps", "tokens", "branches", "trunk"}  # settings in which the runs of a sweep differ


@dataclass(frozen=True)
class Observations:
    """Points as columns, n of them.

    The parameters are those of the size: the fewest among its runs, since learned positions add to them with the context but
    compute nothing.
    """

    run: NDArray[np.int64]  # (n,) index into ``runs``
    size: NDArray[np.int64]  # (n,) index into ``sizes``
    context: Array  # (n,), as those that follow
    parameters: Array
    tokens: Array
    flops: Array
    seconds: Array
    loss: Array
    runs: list[str]  # one for each size, context and seed, with the id of the longest
    sizes: list[str]  # by parameters
    points: tuple[SweepPoint, ...]  # the n points themselves
    shown: tuple[SweepPoint, ...]  # with the early ones that were left out, as the sweep's page shows them
    planned: dict[str, list[int]]  # all training contexts of each size, also unmeasured ones
    constant_rate: bool = False  # whether the points are readings at a constant learning rate

    def __len__(self) -> int:
        return len(self.run)

    def landscape(self, unit: str = "flops") -> Landscape:
        """The losses and optima over the budgets, as the page of the sweep shows them."""
        return Landscape(self.shown, unit, {size: self.planned[size] for size in self.sizes})

    def findings(self, unit: str = "flops") -> str:
        """What the points show without a law, to end a message with."""
        said = " ".join(self.landscape(unit).findings())
        return f". Measured, without a law: {said}" if said else ""

    @property
    def left_out(self) -> int:
        """How many early points."""
        return len(self.shown) - len(self.points)

    @property
    def size_parameters(self) -> Array:
        """(sizes,)"""
        return np.array([self.parameters[self.size == i][0] for i in range(len(self.sizes))])

    @property
    def centre(self) -> Array:
        """(3,) middle of ln l, ln N, ln D."""
        return np.array([np.log(x).mean() for x in (self.context, self.parameters, self.tokens)])


def read_observations(path: Path, early: float = EARLY, partial: bool = False) -> Observations:
    """The points of a sweep's folder that a law is fitted to; those of unfinished runs only with ``partial``.

    ``early``: share of a run's tokens before which its points are left out.
    """
    sweep = Sweep.open(path)
    states = {state.run.id: state.state for state in sweep.states()}
    missing = [f"{run}: {state}" for run, state in states.items() if state != "finished"]
    if missing and not partial:
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        raise CheckpointError(
            f"the sweep {path} is not finished: {len(missing)} of its {len(states)} runs "
            f"{'is' if len(missing) == 1 else 'are'} missing ({', '.join(missing[:_SHOWN])}{more}); run the sweep again, or "
            "plan from the finished part with --partial"
        )
    kept, every = list[SweepPoint](), list[SweepPoint]()
    constant = False
    for folder in sweep_folders(sweep):
        points, recipe = run_points(folder.path, ends=True), folder.recipe()
        schedule = recipe.get("training", {}).get("schedule")
        constant |= schedule == "constant"
        every += points
        bad = next((point for point in points if not 0 < point.loss < math.inf), None)
        if bad is not None:
            raise DataError(
                f"the run {folder.path} has a loss that is no positive number ({bad.loss}) at step {bad.step}: it diverged or "
                "its metrics.jsonl is damaged; remove the run and run the sweep again"
            )
        last = max((point.step for point in points), default=0)
        warmup = in_steps(recipe.get("training", {}).get("warmup_steps", 0), last)
        first = max(WARM_UPS * warmup, early * last) if schedule in ("constant", None) else 0
        kept += [point for point in points if point.step >= first]
    if not kept and every:
        raise DataError(
            f"all {len(every)} measurements of {path} are before {WARM_UPS} times the warm-up, where the loss does not depend "
            "on scale; train on more tokens, or with a shorter base.training.warmup_steps"
        )
    if not kept:
        raise DataError(f"the runs of {path} have measured no context curves yet; run the sweep first")
    return observations(kept, shown=tuple(every), constant_rate=constant, planned=sweep.contexts)


def observations(points: list[SweepPoint], **about: Any) -> Observations:
    """Points as columns; ``about``: further fields, by default of these points and their contexts."""
    fewest: dict[str, int] = {}
    for point in points:
        fewest[point.size] = min(point.parameters, fewest.get(point.size, point.parameters))
    sizes = sorted(fewest, key=lambda size: fewest[size])
    longest: dict[tuple[str, int, int], SweepPoint] = {}
    for point in points:
        if point.tokens >= longest.setdefault(point.cell, point).tokens:
            longest[point.cell] = point
    runs = sorted(point.run for point in longest.values())
    columns: dict[str, Any] = {
        name: np.array([getattr(point, name) for point in points], dtype=np.float64)
        for name in ("context", "tokens", "flops", "seconds", "loss")
    }
    columns["parameters"] = np.array([fewest[point.size] for point in points], dtype=np.float64)
    run = np.array([runs.index(longest[point.cell].run) for point in points])
    size = np.array([sizes.index(point.size) for point in points])
    planned = {size: sorted({point.context for point in points if point.size == size}) for size in sizes}
    columns |= {"points": tuple(points), "shown": tuple(points), "planned": planned}
    return Observations(run, size, runs=runs, sizes=sizes, **columns | about)


def check_enough(observed: Observations) -> None:
    """Refuse points of too few contexts or budgets, to which no law can be fitted."""
    contexts = np.unique(observed.context)
    if len(contexts) < FEWEST_CONTEXTS:
        named = ", ".join(f"{context:.0f}" for context in contexts)
        raise DataError(
            f"the sweep has {counted(len(contexts), 'training context')} ({named}), and the law of the "
            f"context needs {FEWEST_CONTEXTS} at least; add contexts to the sweep"
        )
    sizes = [observed.parameters[observed.size == i][0] for i in range(len(observed.sizes))]
    for i, parameters in enumerate(sizes):
        if parameters in sizes[:i]:
            raise DataError(
                f"two sizes of the sweep have {parameters:,.0f} parameters, and a law of the size cannot tell them apart; plan "
                "from a sweep with one of them"
            )
    budgets = [len(np.unique(observed.tokens[observed.run == run])) for run in range(len(observed.runs))]
    if np.median(budgets) < FEWEST_BUDGETS:
        raise DataError(
            f"the number of budgets that a run measured after its first steps is {np.median(budgets):.0f} (the median), and "
            f"{FEWEST_BUDGETS} at least are needed to separate data from context; give every size and context more budgets, or "
            "at a constant rate measure more often"
        )


class SweepTable(BaseModel):
    """What :func:`write_table` writes."""

    name: str
    recipe: dict[str, dict[str, Any]]  # what those of all runs share
    corpus_sha256: str
    median_document: Number | None
    planned: dict[str, list[Count]]
    constant_rate: bool
    documents: dict[str, dict[str, list[Count]]]  # of each context: their ids and targets
    columns: list[str]
    points: list[list[Any]]
    early: list[list[Any]]


def write_table(observed: Observations, path: Path, folder: Path) -> None:
    """Write the points of the sweep in a folder, with the settings that their runs share and what they were trained on."""
    if path.exists():
        try:
            read_table(path)
        except DataError:
            raise ConfigError(f"{path} is no table of a sweep, and would be lost; give another name") from None
    sweep = Sweep.open(folder)
    recipe = sweep.run_folder(observed.points[0].run).recipe()
    shared = {
        part: {name: value for name, value in recipe.get(part, {}).items() if name not in OF_A_RUN}
        for part in ("data", "training")
    }
    corpus = Path(recipe["data"].get("corpus", ""))
    shared["data"]["corpus"] = corpus.name
    median = None
    with contextlib.suppress(DataError):  # the corpus is elsewhere
        texts = Corpus.open(corpus)
        median = float(np.median(texts.lengths)) if texts.fingerprint == sweep.corpus else None
    fitted = set(observed.points)
    early = [point for point in observed.shown if point not in fitted]
    points = [*early, *observed.points]
    documents = {p.context: {"ids": p.document_ids, "targets": p.document_targets} for p in points}
    values = {
        "name": folder.resolve().name,
        "recipe": shared,
        "corpus_sha256": sweep.corpus,
        "median_document": median,
        "planned": observed.planned,
        "constant_rate": observed.constant_rate,
        "documents": documents,
        "columns": [*COLUMNS, "document_nats"],
    }
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in values.items()]
    lines += [f'"points": {_rows(observed.points)}', f'"early": {_rows(early)}']
    atomic_write(path, "{" + ",\n".join(lines) + "}\n", TABLE)


def _rows(points: Iterable[SweepPoint]) -> str:
    """Points as JSON, a line each."""
    rows = [[*(getattr(p, name) for name in COLUMNS), [round(nats, 2) for nats in p.document_nats]] for p in points]
    return "[\n" + ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows) + "\n]"


def read_table(path: Path) -> Observations:
    """Read what :func:`write_table` wrote; a :class:`DataError` for another file."""
    values = read_json(path, TABLE)
    try:
        matching(SweepTable, values)
        points, early = ([_point(values, row) for row in values[name]] for name in ("points", "early"))
        if not points:
            raise ValueError("it has no points")
        about = {name: values[name] for name in ("planned", "constant_rate")}
        return observations(points, shown=(*points, *early), **about)
    except ValueError as error:
        raise DataError(
            f"{path} is no table of a sweep ({error}); give a file that contextwise plan budget --table wrote"
        ) from None


def _point(values: dict[str, Any], row: list[Any]) -> SweepPoint:
    """A row as a point; a ValueError if it is none."""
    known = dict(zip(values["columns"], row, strict=True))
    documents = values["documents"].get(str(known.get("context")), {})
    if not {"ids", "targets"} <= {*documents}:
        raise ValueError(f"documents lacks those of the context {known.get('context')}")
    known |= {"document_ids": documents["ids"], "document_targets": documents["targets"]}
    point = matching(SweepPoint, known)
    if len(point.document_nats) not in (0, len(point.document_targets)):
        raise ValueError("document_nats is not of the documents")
    if point.context not in values["planned"].get(point.size, []):
        raise ValueError(f"planned lacks size {point.size!r} at context {point.context}")
    return point
