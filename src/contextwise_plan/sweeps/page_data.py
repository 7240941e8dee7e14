"""The data of a sweep's page: runs and their states, points, context curves, and the corpus."""

import contextlib
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from contextwise.base.config import read_yaml
from contextwise.base.errors import ConfigError, ContextwiseError, DataError
from contextwise.base.estimates import count
from contextwise.base.files import read_json
from contextwise.data.corpus import Corpus
from contextwise.data.document_lengths import DocumentLengths, measure_lengths, token_count
from contextwise.data.windows import join_short_end
from contextwise.evaluation.kernel import Result, is_result, results_of
from contextwise.evaluation.measures.curve import Curve
from contextwise.experiments.folder import RunState
from contextwise.models.tokenizers import corpus_tokenizer_hash
from contextwise_plan.optimum import Landscape
from contextwise_plan.scaling.observations import TABLE, SweepTable, read_table
from contextwise_plan.sweeps.points import SweepPoint, sweep_points
from contextwise_plan.sweeps.sweep import Sweep

UNITS = ("flops", "seconds", "gpu_hours", "tokens")


@dataclass
class CurveLine:
    """A context curve of one run, at the end of its training or as far as it was trained.

    Attributes:
        label: its name; ``group`` is the box of its switch.
        series: colour number; None if it belongs to no size of the sweep.
        bins: (first, last) number of visible tokens of each bin.
        losses: of each bin; nats per token, or bits per byte (:func:`per_byte_where_needed`).
        intervals: (low, high) of each bin; None for curves that were measured while training.
    """

    label: str
    group: str
    series: int | None
    context: int | None
    bins: list[tuple[int, int]]
    losses: list[float]
    intervals: list[tuple[float | None, float | None]] | None = None
    tokenizer: str | None = None
    bytes_per_token: float | None = None


class SweepData:
    """A sweep, read from its folder, finished or not, or from its table.

    Args:
        path: the folder, or the file that ``contextwise plan budget --table`` wrote, which has the points alone.
        others: runs, or folders of measured curves, whose context curves are shown beside the sweep's.

    Attributes:
        states: of the runs; none from a table.
        points: measurements whose loss is a number.
        sizes: name -> parameters, in that order.
        planned: size -> all its training contexts.
        landscapes: one a kind of budget.
        recipe: the sweep's, as YAML; of a table what the runs share.
        corpus: path of the corpus, or its name.
        meter: of its training split; None if it cannot be reached, for the reason ``no_corpus``.
        curves, loss_unit: context curves in one unit, and its name.
        dropped: how many measurements had a loss that is no number.

    Raises:
        CheckpointError: there is no sweep.
        ConfigError: nothing was measured yet, or curves of different tokenizers cannot be compared.
        DataError: a file is damaged, or no loss is a number.
    """

    def __init__(self, path: Path, others: Sequence[Path] = ()) -> None:
        self.path = path
        beside = [curve for other in others for curve in _other_curves(other)]
        self.states: list[RunState] = []
        self.meter: DocumentLengths | None = None
        points, gpus, curves = self._read_table() if path.is_file() else self._read_folder()
        self.points = [point for point in points if math.isfinite(point.loss)]
        self.dropped = len(points) - len(self.points)
        if not self.points:
            raise DataError(
                f"no loss that the sweep {path} measured is a number: its runs diverged; lower their "
                "learning rate and sweep again, into another folder"
            )
        units = [unit for unit in UNITS if unit != "gpu_hours" or gpus]
        landscapes = (Landscape(self.points, unit, self.planned, gpus) for unit in units)
        self.landscapes = [result for result in landscapes if len(result.budgets)]
        self.curves, self.loss_unit = per_byte_where_needed([*curves, *beside])

    def _read_folder(self) -> tuple[list[SweepPoint], dict[str, int], list[CurveLine]]:
        """Points, GPUs of each measured run (empty if one had none, or their number is not known) and curves of the folder."""
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
        self.corpus, opened, self.no_corpus = _corpus(sweep, recipe)
        self.meter = measure_lengths(opened) if opened else None
        measured = {point.run for point in points if math.isfinite(point.loss)}
        gpus = {run: len(sweep.run_folder(run).environment().get("gpus", [])) for run in measured}
        curves = _sweep_curves(sweep, self.states)
        tokenizer = corpus_tokenizer_hash(opened.path) if opened and opened.manifest else None
        for curve in curves:
            curve.tokenizer, curve.bytes_per_token = tokenizer, _bytes_per_token(opened)
        return points, gpus if all(gpus.values()) else {}, curves

    def _read_table(self) -> tuple[list[SweepPoint], dict[str, int], list[CurveLine]]:
        """Points of the table, which knows neither GPUs nor curves."""
        observed, about = read_table(self.path), read_json(self.path, TABLE, SweepTable)
        self.sizes = dict(zip(observed.sizes, observed.size_parameters.astype(int).tolist(), strict=True))
        self.planned = {size: observed.planned[size] for size in observed.sizes}
        self.recipe, self.name = yaml.safe_dump(about["recipe"], sort_keys=False), about["name"]
        self.corpus = str(about["recipe"]["data"].get("corpus", ""))
        self.no_corpus = "this page is of the sweep's table, which has no texts"
        return list(observed.points), {}, []

    @property
    def runs(self) -> int:
        """How many runs the sweep has."""
        return len(self.states) or len({point.run for point in self.points})

    @property
    def contexts(self) -> list[int]:
        """All training contexts of the grid, ascending."""
        return sorted({context for some in self.planned.values() for context in some})


def _corpus(sweep: Sweep, recipe: dict[str, Any]) -> tuple[str, Corpus | None, str]:
    """Path of the corpus, the corpus if it is the one that the sweep was trained on, and why not."""
    settings = (recipe.get("base") or {}).get("data") or {}
    path = str(settings.get("corpus", ""))
    try:
        corpus = Corpus.open(path, settings.get("split", "train"))
    except ContextwiseError as error:
        where = "" if Path(path).is_absolute() else " (seen from the folder in which the sweep was started)"
        return path, None, f"{error}{where}"
    if corpus.fingerprint != sweep.corpus:
        return (path, None, f"{path} is not the corpus that the sweep was trained on (its content hash differs)")
    return path, corpus, ""


def _bytes_per_token(corpus: Corpus | None) -> float | None:
    """Bytes that a token holds on average; None if the corpus is absent, has no texts, or its tokens do not hold all text."""
    if corpus is None or corpus.bytes is None or corpus.lost is None or corpus.lost.any():
        return None
    return float(corpus.bytes.sum()) / corpus.tokens


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


def _other_curves(path: Path) -> list[CurveLine]:
    """The measured curves of a run outside of the sweep, or the one in a folder."""
    if not path.is_dir():
        raise ConfigError(f"there is no folder {path}; give a run, or the folder of a measured context curve")
    if (path / "sweep.yaml").is_file():
        raise ConfigError(f"{path} is a sweep, and a page is of one; make a page for each")
    single = is_result(path)
    results = [Result.open(path, Curve.name)] if single else results_of(path / "evaluation", Curve.name)
    curves = []
    for summary in (result.summary for result in results):
        about = {"group": "other runs", "series": None, "context": summary.get("trained_context")}
        name = path.parent.parent.name if single and path.parent.name == "evaluation" else path.name
        curve = _measured_curve(about, summary, name)
        corpus = summary["corpus"]
        curve.tokenizer = corpus.get("tokenizer_hash")
        with contextlib.suppress(ContextwiseError):
            curve.bytes_per_token = _bytes_per_token(Corpus.open(corpus["path"], corpus["split"]))
        curves.append(curve)
    if not curves:
        advice = f"measure one with contextwise curve {path} --corpus CORPUS"
        raise ConfigError(f"{path} has no context curve to show beside the sweep; {advice}")
    return curves


def per_byte_where_needed(curves: list[CurveLine]) -> tuple[list[CurveLine], str]:
    """The curves in one unit that can be compared, and its name: nats per token, or bits per byte.

    Raises:
        ConfigError: they are of different tokenizers, and the bytes of a token are not known for all.
    """
    inside = {curve.tokenizer for curve in curves if curve.group != "other runs"}
    outside = {curve.tokenizer for curve in curves if curve.group == "other runs"}
    if not outside or (len(inside | outside) == 1 and None not in inside):
        return curves, "nats per token"
    unknown = [curve.label for curve in curves if not curve.bytes_per_token]
    if unknown:
        raise ConfigError(
            "the runs have different tokenizers, whose nats per token are not comparable, and for bits per byte the corpus of "
            f"{unknown[0]} must be where it was, with a tokenizer that loses no text; bring it back, or leave that run out"
        )
    for curve in curves:
        factor = 1 / (math.log(2) * (curve.bytes_per_token or math.nan))
        curve.losses = [loss * factor for loss in curve.losses]
        if curve.intervals is not None:
            curve.intervals = [
                (None if low is None else low * factor, None if high is None else high * factor)
                for low, high in curve.intervals
            ]
    return curves, "bits per byte"
