"""Validation losses of runs at the same training time, tokens or FLOPs: of one objective, and in a ledger of several.

The losses are those that the runs logged while they trained, interpolated linearly between two validations. A run that
continued after that point was in the middle of its schedule there, with a learning rate that had not yet decayed: its loss
is higher than that of a run planned to end there. So this view favours the run that ends at the point; train with that
budget from the start for a comparison without this flaw.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np

from contextwise.base.errors import DataError
from contextwise.base.estimates import Estimate, count
from contextwise.base.intervals import estimate_over_seeds
from contextwise.base.runs import FEWEST_EXAMPLES, RunFolder, measured_on
from contextwise.base.tables import Column, Table
from contextwise.comparison.compared_runs import ComparedRun, SeededRun, groups_of


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
        if not compared.run.validations():
            return f"{compared.source} {_why_no_validation(compared.run, recipe)}"
        objectives.add(recipe.get("objective", {}).get("name", "causal"))
        data = recipe.get("data", {})
        targets = recipe.get("training", {}).get("evaluation_tokens")
        fingerprint = compared.summary.get("corpus", {}).get("fingerprint")
        measured.add((fingerprint, data.get("validation_split"), data.get("context"), targets))
    if len(objectives) > 1:
        return "the runs have different objectives (contextwise ledger puts those side by side)"
    return "the runs validated on different data, or with different contexts" if len(measured) > 1 else None


def _why_no_validation(run: RunFolder, recipe: dict[str, Any]) -> str:
    """Why a run has no validation loss that can be compared."""
    rows = run.metrics("validation")
    if not rows:
        return "logged no validation loss"
    on = measured_on(recipe, rows[-1].get("examples"))
    return f"was validated{on} while it trained, and fewer than {FEWEST_EXAMPLES} show nothing"


def _at_equal(kind: str, groups: dict[str, list[ComparedRun]], reference: str) -> Budget | None:
    curves = {name: [_curve(each.run, kind) for each in group if each.run] for name, group in groups.items()}
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
    return Budget(kind, float(at), rows, _measured_on([each.run for each in groups[reference] if each.run]))


def _measured_on(runs: Sequence[RunFolder]) -> str:
    """The examples of the runs' validations, in words; empty if they differ."""
    words = {measured_on(run.recipe(), run.validations()[-1].get("examples")) for run in runs}
    return words.pop() if len(words) == 1 else ""


def _curve(run: RunFolder, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """(budget spent, loss) at each validation of a run, in the order of the steps."""
    spent, losses = np.array([(row[kind], row["loss"]) for row in run.validations()], dtype=float).T
    return spent, losses


class LedgerRow(TypedDict):
    """A recipe's means over its seeds; its keys are described at :func:`_ledger_row`."""

    name: str
    objective: str
    family: str
    parameters: int
    seeds: list[int]
    steps: int
    input_tokens: float
    target_tokens: float
    flops: float
    loss: float
    validated_on: str
    at: dict[str, float | None]


class LedgerJson(TypedDict):
    """Objectives side by side, and the budgets at which their losses are read."""

    rows: list[LedgerRow]
    budgets: dict[str, float]


def ledger(sources: list[str]) -> LedgerJson:
    """Put finished runs with different objectives side by side: tokens read, targets, FLOPs and losses.

    A nat per target under one objective is not a nat under another: a masked token is predicted from both sides, a suffix from
    the text before it. The ledger therefore has no differences, but what each objective predicted of the same text, at what
    cost, and its own loss at the same budget.

    Returns:
        ``budgets``: where the run that took least ``tokens`` of text, or ``flops``, ends; and ``rows``, one for each recipe,
        means over its seeds (:func:`_ledger_row`).

    Raises:
        CheckpointError: one of them is no run, or has not finished.
        ConfigError: two of them are the same recipe with the same seed.
        DataError: one of them was not validated.
    """
    opened = {source: RunFolder.open(source) for source in sources}
    for source, run in opened.items():
        if run.summary()["validation_loss"] is None or not run.validations():
            fix = "train on a corpus with a validation split, and with training.evaluation_tokens"
            raise DataError(f"{source} {_why_no_validation(run, run.recipe())}; {fix}")
    groups = groups_of([SeededRun.of(source, opened[source]) for source in sources])
    runs = {name: [opened[each.source] for each in group] for name, group in groups.items()}
    every = [run.summary() for run in opened.values()]
    budgets = {kind: min(summary[kind] for summary in every) for kind in ("tokens", "flops")}
    return {"rows": [_ledger_row(name, group, budgets) for name, group in runs.items()], "budgets": budgets}


def _ledger_row(name: str, runs: list[RunFolder], budgets: dict[str, float]) -> LedgerRow:
    """A recipe's means over seeds: of each step the tokens read (padding left out; an encoder-decoder's targets included), the
    tokens that counted in the loss, and operations; the loss at the end, nats per target on the validation split, the examples
    of that, and the loss ``at`` each budget; None where the run had not validated yet.
    """
    summaries, recipe = [run.summary() for run in runs], runs[0].recipe()
    at: dict[str, float | None] = {}
    for kind, budget in budgets.items():
        curves = [_curve(run, kind) for run in runs]
        validated = all(spent[0] <= budget for spent, _ in curves)
        at[kind] = float(np.mean([np.interp(budget, *curve) for curve in curves])) if validated else None

    def per_step(key: str) -> float:
        return float(np.mean([s[key] / s["steps"] for s in summaries]))

    return {
        "name": name,
        "objective": summaries[0]["objective"],
        "family": recipe["model"].get("pretrained") or recipe["model"].get("family", "cue"),
        "parameters": summaries[0]["parameters"],
        "seeds": [s["seed"] for s in summaries],
        "steps": round(float(np.mean([s["steps"] for s in summaries]))),
        "input_tokens": per_step("input_tokens"),
        "target_tokens": per_step("target_tokens"),
        "flops": per_step("flops"),
        "loss": float(np.mean([s["validation_loss"] for s in summaries])),
        "validated_on": _measured_on(runs).strip(),
        "at": at,
    }


def ledger_table(ledger: LedgerJson) -> Table:
    """What each objective read, predicted, spent and reached."""
    columns = {
        "input_tokens": Column("read", "integer", ",.0f"),
        "target_tokens": Column("asked", "integer", ",.0f"),
        "flops": Column("FLOPs", "estimate", ".2e"),
        "loss": Column("nats/\ntarget", "estimate", ".4f"),
    }
    at = {
        "tokens": Column(f"at\n{count(ledger['budgets']['tokens'])}", "estimate", ".4f"),
        "flops": Column(f"at {ledger['budgets']['flops']:.1e}\nFLOPs", "estimate", ".4f"),
    }
    rows = []
    row: Any
    for row in ledger["rows"]:
        name = row["name"], count(row["parameters"]) + number_of_seeds(row["seeds"])
        rows.append([name, *(row[key] for key in columns), *(row["at"][kind] for kind in at)])
    note = "Note: nats per target of different objectives are not comparable: each predicts other tokens from other tokens."
    head = [Column("run,\nparameters", width=14), *columns.values(), *at.values()]
    measured = "; ".join(f"{row['name']} {row['validated_on']}" for row in ledger["rows"] if row["validated_on"])
    notes = [f"Losses are those of the validations while training: {measured}."] if measured else []
    return Table("for each training step", head, rows, [*notes, note])


def number_of_seeds(seeds: Sequence[int | None]) -> str:
    """``, 3 seeds`` of a recipe's runs; empty for a model that is no run."""
    return "" if list(seeds) == [None] else f", {len(seeds)} seed{'s' * (len(seeds) != 1)}"
