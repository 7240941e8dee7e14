"""Forgetting: how the loss on old documents changes while a model is trained on new ones.

Forgetting is the loss on held-out old documents after, minus the loss on the same documents before: nats per token, above
zero where something was forgotten (objectives, Section 6.2.7 and Exercise 6.2.4).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import RenderableType

from contextwise.base.errors import ConfigError
from contextwise.base.estimates import Estimate, as_json, counted
from contextwise.base.runs import RunFolder
from contextwise.base.tables import Cell, Column, Table, terminal
from contextwise.comparison.budgets import number_of_seeds
from contextwise.comparison.compared_runs import evaluate_all
from contextwise.comparison.comparison import compare
from contextwise.comparison.result import Comparison, Group
from contextwise.data import Corpus
from contextwise.evaluation.kernel import is_result

DEFINITION = "forgetting: loss on the old documents after, minus before; nats per token"
VALIDATIONS = 6
"""Validations of a run that the table shows; the JSON has all."""


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


class Forgetting:
    """Models before and after continued training, compared on the held-out documents of both corpora.

    Args:
        sources: runs and models. The first one is the model before; others of its recipe with other seeds belong to it.
        old: documents as the model before was trained on.
        new: documents as the others were continued on.
        options: settings of the evaluations (:class:`~contextwise.evaluation.measures.loss.Loss`); by
            default all are scored with the smallest context that one of the runs was trained with.

    Attributes:
        definition: of what is measured.
        before: name of the model that training continued from.
        old, new: all models on the old and on the new documents, every pair of them.
        notes: sentences that a reader of the figures has to know.
    """

    definition: str
    before: str
    changes: list[Change]
    old: Comparison
    new: Comparison
    notes: list[str]

    def __init__(self, sources: list[str], old: Corpus, new: Corpus, **options: Any) -> None:
        if len(sources) < 2:
            raise ConfigError("give the model before, then one or more runs that continued from it")
        for source in filter(is_result, sources):
            raise ConfigError(
                f"{source} is an evaluation on one corpus; name the run or the model, which is evaluated on both"
            )
        if old.fingerprint == new.fingerprint:
            raise ConfigError(f"{old.path} and {new.path} hold the same documents; name two corpora")
        if options.get("context") is None:
            contexts = [_data(source).get("context") for source in sources]
            options["context"] = min((size for size in contexts if isinstance(size, int)), default=None)
        # Without the comparison at equal budgets: these models were trained one after the other.
        on_old, on_new = (
            compare(sources, results=evaluate_all(sources, corpus, **options), all_pairs=True, budgets=False)
            for corpus in (old, new)
        )
        if not on_old.differences:
            raise ConfigError(
                "all the given runs are of one recipe, so none of them is the model before the others; name that one first"
            )
        forgotten, learned = map(_since_before, (on_old, on_new))
        self.definition, self.changes = DEFINITION, []
        for group in on_old.groups:
            if group.name != on_old.reference:
                replay = _data(group.sources[0]).get("replay")
                share, during = (replay or {}).get("share") or None, _validations(group)
                self.changes.append(Change(group.name, share, forgotten[group.name], learned[group.name], during))
        self.before, self.old, self.new = on_old.reference, on_old, on_new
        self.notes = [*_notes_on_starts(on_old), *dict.fromkeys([*on_old.notes, *on_new.notes])]

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-ready values."""
        return as_json(vars(self))


def _data(source: str) -> dict[str, Any]:
    """The data section of a run's recipe; empty for a model that is no run."""
    run = RunFolder(source)
    return run.recipe().get("data", {}) if run.exists else {}


def _since_before(comparison: Comparison) -> dict[str, Estimate]:
    """Each group minus the model before."""
    reference = comparison.reference
    return {each.group: each.difference for each in comparison.differences if each.reference == reference}


def _validations(group: Group) -> list[Point]:
    """The validations at the steps that all seeds of a group have."""
    curves = [{row["step"]: row for row in RunFolder(each).metrics("validation")} for each in group.sources]
    points = []
    for step in sorted(set.intersection(*map(set, curves))):
        rows = [curve[step] for curve in curves]
        watched = [loss for row in rows if (loss := row.get("replay_loss")) is not None]
        old = float(np.mean(watched)) if len(watched) == len(rows) else None
        points.append(Point(step, rows[0]["tokens"], float(np.mean([row["loss"] for row in rows])), old))
    return points


def _notes_on_starts(comparison: Comparison) -> list[str]:
    """Name the runs that did not continue from the model before, whose differences are not forgetting."""
    before, *others = comparison.groups
    starts = {_model_of(source) for source in before.sources}
    notes = []
    for group in others:
        for run in (run for run in map(RunFolder, group.sources) if run.exists):
            start = run.recipe().get("model", {}).get("pretrained")
            if start is None or _model_of(start) not in starts:
                began = "from scratch" if start is None else f"from {start}"
                notes.append(
                    f"{run.path} was trained {began}, not from {before.name}: its differences are not what that forgot."
                )
    return notes


def _model_of(source: str) -> Path:
    """The folder of a run, given the run or its ``model`` folder."""
    path = Path(source).resolve()
    return path.parent if path.name == "model" else path


def forgetting_tables(forgetting: Forgetting) -> RenderableType:
    """Losses before and after on both corpora, with what is significant; losses during training; notes."""
    parts: list[Any] = []
    for comparison, name, meaning in ((forgetting.old, "old", "forgetting"), (forgetting.new, "new", "change")):
        parts += [_domain_table(comparison, name, meaning, forgetting.changes)]
        parts += [*(f"{difference.verdict}." for difference in comparison.differences), ""]
    during = [change for change in forgetting.changes if change.during]
    if during:
        parts.append(_during_table(during))
    return terminal(*parts, *(f"Note: {note}" for note in forgetting.notes))


def _domain_table(comparison: Comparison, name: str, meaning: str, changes: Sequence[Change]) -> Table:
    kinds = {c.group: "no replay" if c.replay is None else f"{c.replay:.3g} replayed" for c in changes}
    kinds[comparison.reference] = "before"
    since = _since_before(comparison)
    rows = [
        [(each.name, kinds[each.name] + number_of_seeds(each.seeds)), each.loss, since.get(each.name)]
        for each in comparison.groups
    ]
    columns = [
        Column("model", width=16),
        Column("loss\n(nats/token)", "estimate"),
        Column(f"{meaning}\n(after − before)", "difference", missing=""),
    ]
    counts = f"{counted(comparison.documents, 'document')}, {comparison.tokens:,} tokens"
    title = f"{name}: {comparison.corpus['path']}, {comparison.corpus['split']}; {counts}; 95% intervals"
    return Table(title, columns, rows)


def _during_table(changes: Sequence[Change]) -> Table:
    rows: list[list[Cell]] = []
    for change in changes:
        last = len(change.during) - 1
        count = min(VALIDATIONS, last + 1)  # the first, the last and some between
        for i in range(count):
            point = change.during[round(i * last / max(1, count - 1))]
            rows.append([change.group if i == 0 else "", point.step, point.tokens, point.old, point.new])
    columns = [
        Column("model"),
        Column("step", "integer", "d"),
        Column("trained on", "count"),
        Column("old", "estimate"),
        Column("new", "estimate"),
    ]
    return Table("validation losses while training", columns, rows)
