"""Forgetting: how the loss on old documents changes while a model is trained on new ones.

Forgetting is the loss on held-out old documents after, minus the loss on the same documents before: nats per token, above
zero where something was forgotten (objectives, Section 6.2.7 and Exercise 6.2.4).
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from contextwise.base.errors import ConfigError
from contextwise.base.estimates import Estimate, as_json
from contextwise.base.files import write_json
from contextwise.base.runs import RunFolder
from contextwise.comparison.budgets import equal_budgets
from contextwise.comparison.compared_runs import evaluate_all, groups_of, open_compared
from contextwise.comparison.comparison import Comparison, Difference, Group, compare
from contextwise.data import Corpus
from contextwise.evaluation.kernel import is_result
from contextwise.evaluation.measures.loss import Evaluation

DEFINITION = "forgetting: loss on the old documents after, minus before; nats per token"


@dataclass(frozen=True)
class Point:
    """A validation while a group trained, mean over its seeds; nats per target of the objective.

    Attributes:
        tokens: trained on by then.
        new, old: losses on the validation splits of the new corpus and of the old one; None where that was not watched.
    """

    step: int
    tokens: int
    new: float
    old: float | None


@dataclass(frozen=True)
class Change:
    """Change of one group's losses by the continued training.

    Attributes:
        replay: share of old examples in its training; None for none.
        forgetting: loss on the old documents, after minus before.
        learning: loss on the new documents, after minus before: below zero where something was learned.
        during: its validations while it trained.
    """

    group: str
    replay: float | None
    forgetting: Estimate
    learning: Estimate
    during: list[Point]


@dataclass(frozen=True)
class Forgetting:
    """Result of :func:`measure_forgetting`.

    Attributes:
        before: name of the model that training continued from.
        old, new: all models on the old and on the new documents, every pair of them.
        notes: sentences that a reader of the figures has to know.
    """

    before: str
    old: Comparison
    new: Comparison
    changes: list[Change]
    notes: list[str]

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-ready values."""
        return {
            "definition": DEFINITION,
            "before": self.before,
            "changes": [as_json(change) for change in self.changes],
            "old": self.old.to_dict(),
            "new": self.new.to_dict(),
            "notes": self.notes,
        }

    def write(self, path: Path) -> None:
        """Write :meth:`to_dict` as JSON, complete or not at all."""
        write_json(path, self.to_dict(), "the report on forgetting")


def measure_forgetting(sources: list[str], old: Corpus, new: Corpus, **options: Any) -> Forgetting:
    """Compare models before and after continued training, on the held-out documents of both corpora.

    Args:
        sources: runs and models. The first one is the model before; others of its recipe with other seeds belong to it.
        old: documents as the model before was trained on.
        new: documents as the others were continued on.
        options: settings of the evaluations (:class:`~contextwise.evaluation.measures.loss.Loss`); by
            default all are scored with the smallest context that one of the runs was trained with.

    Raises:
        ConfigError: nothing to compare, or both corpora hold the same documents.
        CheckpointError, DataError: a model that cannot be evaluated on both corpora.
    """
    _check_input(sources, old, new)
    if options.get("context") is None:
        options["context"] = _common_context(sources)
    on_old, on_new = (_comparison(sources, evaluate_all(sources, corpus, **options)) for corpus in (old, new))
    if not on_old.differences:
        raise ConfigError(
            "all the given runs are of one recipe, so none of them is the model before the others; name that one first"
        )
    before = on_old.reference
    changes = [
        Change(
            group.name,
            _replay(group),
            _change(on_old, group.name).difference,
            _change(on_new, group.name).difference,
            _validations(group),
        )
        for group in on_old.groups
        if group.name != before
    ]
    notes = [*_notes_on_starts(on_old), *dict.fromkeys([*on_old.notes, *on_new.notes])]
    return Forgetting(before, on_old, on_new, changes, notes)


def is_run(source: str) -> bool:
    """Whether a source is the folder of a run."""
    return RunFolder(source).recipe_file.is_file()


def _check_input(sources: list[str], old: Corpus, new: Corpus) -> None:
    if len(sources) < 2:
        raise ConfigError("give the model before, then one or more runs that continued from it")
    for source in sources:
        if is_result(source):
            raise ConfigError(
                f"{source} is an evaluation on one corpus; name the run or the model, which is evaluated on both"
            )
    if old.fingerprint == new.fingerprint:
        raise ConfigError(f"{old.path} and {new.path} hold the same documents; name two corpora")


def _common_context(sources: list[str]) -> int | None:
    """The smallest training context of the runs, in which all losses compare; None without a run."""
    contexts = [RunFolder(s).recipe().get("data", {}).get("context") for s in sources if is_run(s)]
    return min((context for context in contexts if isinstance(context, int)), default=None)


def _comparison(sources: list[str], results: list[Evaluation]) -> Comparison:
    """All pairs on one corpus, without the views at equal budgets: these models were not trained side by side."""
    comparison = compare(sources, results=results, all_pairs=True)
    _, reasons = equal_budgets(groups_of(open_compared(sources, results=results)), comparison.reference)
    notes = [note for note in comparison.notes if note not in reasons]
    return dataclasses.replace(comparison, budgets=[], notes=notes)


def _change(comparison: Comparison, group: str) -> Difference:
    """A group minus the model before."""
    pair = group, comparison.reference
    return next(each for each in comparison.differences if (each.group, each.reference) == pair)


def _replay(group: Group) -> float | None:
    """Share of old examples that the recipe of a group's runs has."""
    source = group.sources[0]
    replay = RunFolder(source).recipe().get("data", {}).get("replay") if is_run(source) else None
    return replay["share"] if replay else None


def _validations(group: Group) -> list[Point]:
    """The validations at the steps that all seeds of a group have."""
    curves = [
        {row["step"]: row for row in RunFolder(source).metrics("validation")} for source in group.sources
    ]
    points = []
    for step in sorted(set.intersection(*(set(curve) for curve in curves))):
        rows = [curve[step] for curve in curves]
        old = [row.get("replay_loss") for row in rows]
        points.append(
            Point(
                step,
                rows[0]["tokens"],
                float(np.mean([row["loss"] for row in rows])),
                None if None in old else float(np.mean(old)),  # type: ignore[arg-type]
            )
        )
    return points


def _notes_on_starts(comparison: Comparison) -> list[str]:
    """Name the runs that did not continue from the model before, whose differences are not forgetting."""
    before, *others = comparison.groups
    starts = {_model_of(source) for source in before.sources}
    notes = []
    for group in others:
        for source in filter(is_run, group.sources):
            start = RunFolder(source).recipe().get("model", {}).get("pretrained")
            if start is None or _model_of(start) not in starts:
                began = "from scratch" if start is None else f"from {start}"
                notes.append(
                    f"{source} was trained {began}, not from {before.name}: its differences are not what that forgot."
                )
    return notes


def _model_of(source: str) -> Path:
    """The folder of a run, also for the model in it."""
    path = Path(source).resolve()
    return path.parent if path.name == "model" else path
