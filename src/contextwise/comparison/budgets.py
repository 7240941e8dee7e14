"""Validation loss of several runs at the same training time, and at the same number of training tokens.

The losses are the validation losses that the runs logged while they trained, interpolated linearly between
two validations. A run that continued after that point is caught in the middle of its schedule, with a learning
rate that has not yet come down: its loss there is higher than that of a run planned to end there. So this
view favours the run that ends at the point; train with that budget from the start for a comparison without
this flaw.
"""

from dataclasses import dataclass

import numpy as np

from contextwise.base.estimates import Estimate
from contextwise.base.intervals import estimate_over_seeds
from contextwise.comparison.compared_runs import ComparedRun

BUDGETS = ("seconds", "tokens")


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
    """All groups at the smallest budget of any run; ``kind`` is ``seconds`` or ``tokens`` of training."""

    kind: str
    at: float
    rows: list[BudgetRow]


def equal_budgets(groups: dict[str, list[ComparedRun]], reference: str) -> tuple[list[Budget], list[str]]:
    """Compare the groups at equal training time and at equal training tokens.

    Returns:
        The views that the runs' logs allow, and a sentence for each reason why one is missing.
    """
    runs = [compared for group in groups.values() for compared in group]
    reason = _reason_against(runs)
    if reason:
        return [], [f"No comparison at equal training time or tokens: {reason}."]
    budgets = [_at_equal(kind, groups, reference) for kind in BUDGETS]
    available = [budget for budget in budgets if budget is not None]
    missing = [kind for kind, budget in zip(BUDGETS, budgets, strict=True) if budget is None]
    return available, [
        f"No comparison at equal training {kind}: one run ended before another validated for the first time."
        for kind in missing
    ]


def _reason_against(runs: list[ComparedRun]) -> str | None:
    for compared in runs:
        if compared.run is None:
            return f"{compared.name} is not a run of contextwise"
        if not compared.run.metrics("validation"):
            return f"{compared.source} logged no validation loss"
    measured, objectives = set(), set()
    for compared in runs:
        recipe = compared.run.recipe() if compared.run else {}
        objectives.add(recipe.get("objective", {}).get("name", "causal"))
        data, training = recipe.get("data", {}), recipe.get("training", {})
        measured.add(
            (
                compared.summary.get("corpus", {}).get("fingerprint"),
                data.get("validation_split"),
                data.get("context"),
                training.get("evaluation_tokens"),
            )
        )
    if len(objectives) > 1:
        return "the runs have different objectives (contextwise ledger puts those side by side)"
    return "the runs validated on different data, or with different contexts" if len(measured) > 1 else None


def _at_equal(kind: str, groups: dict[str, list[ComparedRun]], reference: str) -> Budget | None:
    curves = {name: [_curve(compared, kind) for compared in group] for name, group in groups.items()}
    ends = [curve[0][-1] for group in curves.values() for curve in group]
    at = min(ends)
    if any(curve[0][0] > at for group in curves.values() for curve in group):
        return None
    losses = {name: np.array([np.interp(at, *curve) for curve in group]) for name, group in curves.items()}
    rows = []
    for name, group in groups.items():
        same_seeds = [each.seed for each in group] == [each.seed for each in groups[reference]]
        difference = (
            None if name == reference else estimate_over_seeds(losses[name], losses[reference], same_seeds)
        )
        mid_schedule = any(curve[0][-1] > at for curve in curves[name])
        rows.append(
            BudgetRow(name, float(losses[name].mean()), losses[name].tolist(), mid_schedule, difference)
        )
    return Budget(kind, float(at), rows)


def _curve(compared: ComparedRun, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """(budget spent, loss) at each validation of a run, in the order of the steps."""
    assert compared.run is not None
    rows = compared.run.metrics("validation")
    return np.array([row[kind] for row in rows], dtype=float), np.array(
        [row["loss"] for row in rows], dtype=float
    )
