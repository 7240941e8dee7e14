"""The run folder: all files of a training run.

``recipe.yaml`` (resolved) · ``environment.json`` · ``metrics.jsonl`` · ``checkpoints/step-N/`` · ``model/`` (Hugging Face
export with tokenizer) · ``summary.json`` (written last: a run that has one is finished) · ``diverged.json`` (where its loss was
not finite; removed when it is trained again) · ``evaluation/`` · ``report.html``
"""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, Strict

from contextwise.base.config import read_yaml
from contextwise.base.errors import CheckpointError, ConfigError, ContextwiseError, DataError
from contextwise.base.files import (
    atomic_write,
    disk_errors,
    exclusive,
    expanded,
    make_folder,
    read_sealed_json,
    still_at,
    write_sealed_json,
)
from contextwise.base.schemas import Count, Number, matching, parse_json
from contextwise.base.views import Viewed

_EXECUTION = {
    "training.compile",
    "training.device",
    "training.fsdp",
    "training.gradient_checkpointing",
    "training.micro_batch_tokens",
    "output",
    "model.variant.file",
    "training.save_every",
    "training.keep_checkpoints",
    "training.trackers",
    "training.trunk",
    "training.branches",
    "training.workers",
}
"""Settings that say how a run executes, and change its result by rounding at most."""


class Row(BaseModel):
    """What every row of ``metrics.jsonl`` has: its kind, its step, and what the run has cost until then."""

    kind: str
    step: Count
    tokens: Count
    seconds: Number
    flops: Number = 0


class LossRow(Row):
    """A row of kind ``train`` or ``validation``; a validation counts its examples, and has losses of further corpora."""

    loss: Number
    examples: Count | None = None
    grad_norm: Number = 0


class CurveRow(Row):
    """A row of kind ``curve``: the loss at each number of visible tokens, and in the last tenth of the context by document."""

    flops: Number
    parameters: Count
    context: Count
    visible: list[Count]
    loss: list[Number | None]
    best_context_loss: Number | None
    standard_error: Number | None
    document_ids: list[Count] = []
    document_nats: list[Number] = []
    document_targets: list[Count] = []


ROWS: dict[str, type[Row]] = {"train": LossRow, "validation": LossRow, "curve": CurveRow}
"""Kind of a row -> its type."""


class RecipeOfRun(BaseModel):
    """The form of a resolved recipe, which a person may have changed."""

    name: str = ""
    seed: Annotated[int, Strict()] = 0
    data: dict[str, Any] = {}
    model: dict[str, Any] = {}
    objective: dict[str, Any] | str = ""
    training: dict[str, Any] = {}


class RunFolder(Viewed):
    """The folder of a run. The constructor reads and writes nothing."""

    recipe_file = property(lambda self: self.path / "recipe.yaml")
    environment_file = property(lambda self: self.path / "environment.json")
    metrics_file = property(lambda self: self.path / "metrics.jsonl")
    summary_file = property(lambda self: self.path / "summary.json")
    divergence_file = property(lambda self: self.path / "diverged.json")
    checkpoints = property(lambda self: self.path / "checkpoints")
    model = property(lambda self: self.path / "model")
    evaluation = property(lambda self: self.path / "evaluation")

    def __init__(self, path: str | Path) -> None:
        self._places = Path(path), Path(path).absolute()

    @property
    def path(self) -> Path:
        """As it was given; absolute when the process has changed its folder since."""
        return still_at(*self._places)

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r}): {self.answer}"

    __str__ = __repr__  # a verb prints no more of a run

    @property
    def answer(self) -> str:
        """Name, length and validation loss, or how far the run is."""
        state = "no run yet"
        with contextlib.suppress(ContextwiseError):
            if self.exists:
                state = f"{self.recipe().get('name')}, {'diverged' if self.diverged else 'not finished'}"
            if self.finished:
                known = self.summary()
                loss, recipe, examples = known.get("validation_loss"), self.recipe(), known.get("validation_examples")
                state = f"{known['name']}, seed {known['seed']}, {known['tokens']:,} tokens"
                if loss is not None:
                    state += f", validation loss {loss:.4f}{measured_on(recipe, examples)}"
        return state

    @classmethod
    def open(cls, path: str | Path) -> "RunFolder":
        """Open an existing run; a :class:`CheckpointError` if the folder does not exist or contains no run."""
        run = cls(expanded(path))
        if not run.recipe_file.exists():
            raise CheckpointError(f"{path} is not a run: it has no recipe.yaml")
        return run

    @property
    def exists(self) -> bool:
        """Whether the folder holds a run, finished or not."""
        return self.recipe_file.is_file()

    @property
    def finished(self) -> bool:
        """Whether the run has a summary that is intact: the last step of a run writes it."""
        try:
            read_sealed_json(self.summary_file, "the run's summary")
        except DataError:
            return False
        return True

    @property
    def diverged(self) -> bool:
        """Whether the newest training ended with a loss that is not finite."""
        return self.divergence_file.exists() and not self.finished

    def recipe(self) -> dict[str, Any]:
        """The resolved recipe, as a dictionary; a :class:`CheckpointError` if there is no run, a :class:`DataError` if it is
        damaged."""
        if not self.exists:
            raise self.unfinished()
        values = read_yaml(self.recipe_file)
        try:
            matching(RecipeOfRun, values)
        except ValueError as error:
            raise DataError(f"the recipe of the run {self.recipe_file} is damaged: {error}") from None
        return values

    def environment(self) -> dict[str, Any]:
        """Hardware and versions with which the run was begun; empty if they were not written."""
        if not self.environment_file.exists():
            return {}
        return read_sealed_json(self.environment_file, "the environment of the run")

    def summary(self) -> dict[str, Any]:
        """The summary of a finished run; a :class:`CheckpointError` if it is not finished."""
        if not self.summary_file.exists():
            raise self.unfinished()
        try:
            return read_sealed_json(self.summary_file, "the run's summary")
        except DataError as error:
            raise CheckpointError(f"{error}; run the command that started it again") from None

    def unfinished(self) -> CheckpointError:
        """The error of a run that has no result: there is none, it diverged, or is not finished."""
        if not self.exists:
            return CheckpointError(f"there is no run at {self.path}")
        if self.divergence_file.exists():
            reason = read_sealed_json(self.divergence_file, "the reason")["reason"]
            return CheckpointError(f"the run {self.path} diverged and has no model: {reason}")
        return CheckpointError(f"the run {self.path} is not finished; run the command that started it again")

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write the summary, the last step of a run, after the rows that it takes for granted."""
        self.sync_metrics()
        write_sealed_json(self.summary_file, summary, "the summary")

    def metrics(self, kind: str | None = None, until: int | None = None) -> list[dict[str, Any]]:
        """Rows of ``metrics.jsonl``, of one kind (``train``, ``validation``) or of all; those up to the step ``until``.

        The last line may be incomplete, in a run that was killed. Lines after the rows up to ``until`` may be damaged.

        Raises:
            CheckpointError: the file cannot be read, or another line is damaged.
        """
        if not self.metrics_file.exists():
            return []
        try:
            lines = self.metrics_file.read_bytes().split(b"\n")
        except OSError as error:
            raise CheckpointError(
                f"the metrics {self.metrics_file} cannot be read: {error.strerror}; restore the file, or remove it"
            ) from None
        rows, damage, lost = list[dict[str, Any]](), "", until is None
        for number, line in enumerate(lines, start=1):
            try:
                row = parse_json(line)
                matching(ROWS.get(str(row.get("kind")), Row) if isinstance(row, dict) else Row, row)
            except ValueError as error:
                if line and number < len(lines):
                    why = "it is not JSON" if isinstance(error, json.JSONDecodeError | UnicodeError) else str(error)
                    damage = damage or f"line {number} of {self.metrics_file} is damaged: {why}"
                continue
            if until is None or row["step"] <= until:
                lost = lost or bool(damage)
                rows.append(row)
        if damage and lost:
            raise CheckpointError(f"{damage}; restore the file, or remove the line")
        return [row for row in rows if kind in (None, row["kind"])]

    def append_metrics(self, row: dict[str, Any]) -> None:
        """Append one row, in one write."""
        with disk_errors("metrics", self.metrics_file), self.metrics_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, allow_nan=False) + "\n")

    def sync_metrics(self) -> None:
        """Sync the rows to disk, before something is written that takes them for granted."""
        if self.metrics_file.exists():
            with disk_errors("metrics", self.metrics_file), self.metrics_file.open("rb") as file:
                os.fsync(file.fileno())

    def rewind_metrics(self, step: int, trunk: "RunFolder | None" = None) -> None:
        """Remove the rows after ``step``, whose steps will be repeated; with a trunk, start with its rows up to ``step``."""
        rows = (trunk or self).metrics(until=step)
        atomic_write(self.metrics_file, "".join(json.dumps(row) + "\n" for row in rows), "metrics")

    def write_recipe(self, recipe: dict[str, Any]) -> None:
        """Write the recipe to the folder, unless the folder already contains this run. Requires :meth:`locked`.

        Another run, or other files, are a :class:`ConfigError`.
        """
        self.check_free(recipe)
        if not self.recipe_file.exists():
            self._write_recipe(recipe)

    def renew_recipe(self, recipe: dict[str, Any], anew: bool) -> None:
        """Write the recipe again. Requires :meth:`locked`, and inputs with the contents that the run is trained on.

        Unless the run begins ``anew``, only its sections ``data`` and ``model``, which may name other paths to the same inputs.
        """
        before = self.recipe()
        renewed = recipe if anew else before | {name: recipe[name] for name in ("data", "model")}
        if renewed != before:
            self._write_recipe(renewed)

    def _write_recipe(self, recipe: dict[str, Any]) -> None:
        atomic_write(self.recipe_file, yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True), "the recipe")

    def check_free(self, recipe: dict[str, Any]) -> None:
        """Raise the errors of :meth:`write_recipe` for this folder, without writing."""
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(f"{self.path} is a file; choose another run folder")
        # List the files before checking for the recipe, which another process may be writing as the first file.
        files = self.path.iterdir() if self.path.exists() else []
        holds_files = any(not file.name.startswith(".") for file in files)
        if self.recipe_file.exists():
            if different := differing_settings(self.recipe(), recipe):
                raise ConfigError(
                    f"{self.path} contains another run (its recipe differs in {', '.join(sorted(different)[:5])}); "
                    "choose another run folder, or remove that one"
                )
        elif holds_files:
            raise ConfigError(f"{self.path} is not empty and contains no run; choose another run folder")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the run folder for a ``with`` block; a :class:`ConfigError` if another process is using it."""
        try:
            make_folder(self.path)
        except OSError as error:
            why = f"cannot be created ({error.strerror})"
            raise ConfigError(f"the run folder {self.path} {why}; choose another one") from error
        with exclusive(self.path, "the run folder", inside=True):
            yield


def measured_on(recipe: dict[str, Any], examples: int | None) -> str:
    """What a validation loss was measured on, `` on 256 windows of 256 tokens``; empty where there are no ``examples``."""
    if examples is None:
        return ""
    context = recipe.get("data", {}).get("context")
    objective = recipe.get("objective") or "causal"
    name = objective.get("name") if isinstance(objective, dict) else objective
    causal = isinstance(context, int) and name == "causal"
    what = f"window{'s' * (examples != 1)} of {context:,} tokens" if causal else f"example{'s' * (examples != 1)}"
    return f" on {examples:,} {what}"


def comparable(recipe: dict[str, Any], *left_out: str) -> dict[str, Any]:
    """The settings of a recipe that change the result of its run, without the dotted keys ``left_out``.

    Corpora are compared by their hash, so the settings ``corpus`` in ``data`` and its sections do not count.
    """
    kept = without(recipe, _EXECUTION | set(left_out))
    if isinstance(data := kept.get("data"), dict):
        kept["data"] = _without_paths(data)
    return kept


def differing_settings(a: dict[str, Any], b: dict[str, Any]) -> set[str]:
    """Dotted names of the settings in which two recipes differ, of those that change a result (:func:`comparable`)."""
    return differing_keys(comparable(a), comparable(b))


def _without_paths(section: dict[str, Any]) -> dict[str, Any]:
    own = {name: value for name, value in section.items() if name != "corpus"}
    return {name: _without_paths(value) if isinstance(value, dict) else value for name, value in own.items()}


def differing_keys(a: dict[str, Any], b: dict[str, Any], prefix: str = "") -> set[str]:
    """Dotted names of the keys whose values differ."""
    different = set()
    for key in a.keys() | b.keys():
        x, y, name = a.get(key), b.get(key), f"{prefix}{key}"
        if isinstance(x, dict) and isinstance(y, dict):
            different |= differing_keys(x, y, f"{name}.")
        elif x != y:
            different.add(name)
    return different


def without(settings: dict[str, Any], keys: set[str], prefix: str = "") -> dict[str, Any]:
    """A copy of nested settings without some dotted keys."""
    kept = {}
    for key, value in settings.items():
        name = f"{prefix}{key}"
        if name not in keys:
            kept[key] = without(value, keys, f"{name}.") if isinstance(value, dict) else value
    return kept
