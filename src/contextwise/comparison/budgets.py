"""Validation losses of runs at the same training time or tokens.

The losses are those that the runs logged while they trained, interpolated linearly between two validations. A run that
continued after that point was in the middle of its schedule there, with a learning rate that had not yet decayed: its loss
is higher than that of a run planned to end there. So this view favours the run that ends at the point; train with that
budget from the start for a comparison without this flaw.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from contextwise.base.estimates import Estimate, counted
from contextwise.base.intervals import estimate_over_seeds
from contextwise.base.runs import RunFolder, measured_on
from contextwise.comparison.compared_runs import ComparedRun
from contextwise.training.recipe import AnyData
from contextwise.training.settings import CorpusData

_DATA: TypeAdapter[Any] = TypeAdapter(AnyData)


@dataclass(frozen=True)
class BudgetRow:
    """One group at the budget.

    Attributes:
        losses: nats per token on the validation split, one for each seed.
        mid_schedule: whether a run of the group continued to train after this point.
        difference: to the reference, with a t-interval over seeds; None for the reference itself.
    """

    group: str
    loss: float
    losses: list[float]
    mid_schedule: bool
    difference: Estimate | None


@dataclass(frozen=True)
class Budget:
    """All groups at the smallest budget of any run.

    Attributes:
        kind: ``seconds`` or ``tokens`` of training.
        measured_on: the examples of each validation, in words.
    """

    kind: str
    at: float
    rows: list[BudgetRow]
    measured_on: str


def equal_budgets(groups: dict[str, list[ComparedRun]], reference: str) -> tuple[list[Budget], list[str]]:
    """Compare the groups at equal training time and at equal training tokens.

    Returns:
        The views that the runs' logs allow, and a sentence for each reason why one is missing.
    """
    reason = _reason_against([compared for group in groups.values() for compared in group])
    if reason:
        return [], [f"No comparison at equal training time or tokens: {reason}."]
    budgets = {kind: _at_equal(kind, groups, reference) for kind in ("seconds", "tokens")}
    missing = [
        f"No comparison at equal training {kind}: one run ended before another validated for the first time."
        for kind, budget in budgets.items()
        if budget is None
    ]
    return [budget for budget in budgets.values() if budget is not None], missing


def _reason_against(runs: list[ComparedRun]) -> str | None:
    measured, objectives = set(), set()
    for compared in runs:
        if compared.run is None:
            return f"{compared.name} is not a run of contextwise"
        recipe = compared.run.recipe()
        if not compared.run.metrics("validation"):
            return f"{compared.source} logged no validation loss"
        objectives.add(json.dumps(recipe.get("objective", {"name": "causal"}), sort_keys=True))
        data = recipe.get("data", {})
        targets = recipe.get("training", {}).get("evaluation_tokens")
        fingerprint = compared.summary.get("corpus", {}).get("fingerprint")
        examples = compared.run.metrics("validation")[-1].get("examples")
        measured.add((fingerprint, data.get("validation_split"), data.get("context"), targets, examples, _cut(data)))
    if len(objectives) > 1:
        return "the runs have different objectives, whose losses are not comparable"
    return "the runs validated on different data, or with different contexts or windows" if len(measured) > 1 else None


def _cut(data: dict[str, Any]) -> tuple[Any, ...]:
    """What decides, beside the context, which windows of a corpus a recipe's ``data`` has; empty for other data."""
    try:
        read = _DATA.validate_python(data)
    except ValueError:  # of a kind that is not installed
        return ()
    if not isinstance(read, CorpusData):
        return ()
    cutting = [(name, *each.read) for name, each in read.sections.items() if each.cut(read.own_cut) != read.own_cut]
    return (read.cut.cross_documents, read.cut.start_at_documents, *cutting)


def _at_equal(kind: str, groups: dict[str, list[ComparedRun]], reference: str) -> Budget | None:
    curves = {name: [validation_curve(each.run, kind) for each in group if each.run] for name, group in groups.items()}
    every = [spent for group in curves.values() for spent, _ in group]
    at = min(spent[-1] for spent in every)
    if any(spent[0] > at for spent in every):
        return None
    losses = {name: np.array([np.interp(at, *curve) for curve in group]) for name, group in curves.items()}
    rows = []
    for name, group in groups.items():
        difference = None
        if name != reference:
            same_seeds = [each.seed for each in group] == [each.seed for each in groups[reference]]
            difference = estimate_over_seeds(losses[name], losses[reference], same_seeds)
        mid_schedule = any(spent[-1] > at for spent, _ in curves[name])
        rows.append(BudgetRow(name, float(losses[name].mean()), losses[name].tolist(), mid_schedule, difference))
    return Budget(kind, float(at), rows, validated_on([each.run for each in groups[reference] if each.run]))


def validated_on(runs: Sequence[RunFolder]) -> str:
    """The examples of the runs' validations, in words; empty if they differ."""
    words = {measured_on(run.recipe(), run.metrics("validation")[-1].get("examples")) for run in runs}
    return words.pop() if len(words) == 1 else ""


def validation_curve(run: RunFolder, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """(budget spent, loss) at each validation of a run whose budget is known, in the order of the steps.

    A run that stops early exports the weights of its lowest loss, so its loss is the lowest so far.
    """
    known = [(row[kind], row["loss"]) for row in run.metrics("validation") if kind in row]
    spent, losses = np.array(known, dtype=float).reshape(-1, 2).T
    if run.recipe().get("training", {}).get("patience") is not None:
        losses = np.minimum.accumulate(losses)
    return spent, losses


def number_of_seeds(seeds: Sequence[int | None]) -> str:
    """``, 3 seeds`` of a recipe's runs; empty for a model that is no run."""
    return "" if list(seeds) == [None] else f", {counted(len(seeds), 'seed')}"
