"""The ledger of runs with different objectives: tokens read, targets, FLOPs and losses.

A nat per target under one objective is not a nat under another: a masked token is predicted from both sides, a suffix from
what stands before it. The ledger therefore gives no differences; it says what each objective asked of the same text, at what
cost, and how far its own loss has come at the same budget.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from contextwise.base.errors import DataError
from contextwise.base.files import write_json
from contextwise.base.runs import RunFolder

BUDGETS = ("tokens", "flops")


@dataclass(frozen=True)
class LedgerRow:
    """One recipe; means over its seeds.

    Attributes:
        input_tokens, target_tokens, flops: for each step: tokens read (padding left out; an encoder-decoder's targets
            included), tokens that counted in the loss, operations.
        loss: of the tokens, nats per target on the validation split, at the end.
        at: the same where each budget ("tokens" of text, "flops") ends for the run that took least; None where the run had
            not validated yet.
    """

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
    at: dict[str, float | None]


@dataclass(frozen=True)
class Ledger:
    """Rows in the order given; ``budgets``: the budgets at which they are put side by side."""

    rows: list[LedgerRow]
    budgets: dict[str, float]

    def write(self, path: Path) -> None:
        """Write it as JSON, complete or not at all."""
        write_json(path, dataclasses.asdict(self), "the ledger")


def ledger(sources: list[str]) -> Ledger:
    """Read finished runs.

    Raises:
        CheckpointError: one of them is no run, or has not finished.
        DataError: one of them was not validated.
    """
    runs: dict[str, list[RunFolder]] = {}
    for source in sources:
        run = RunFolder.open(source)
        if run.summary()["validation_loss"] is None:
            raise DataError(f"{source} has no validation loss; train on a corpus with a validation split")
        runs.setdefault(str(run.summary()["name"]), []).append(run)
    ends = {kind: min(run.summary()[kind] for group in runs.values() for run in group) for kind in BUDGETS}
    return Ledger([_row(name, group, ends) for name, group in runs.items()], ends)


def _row(name: str, runs: list[RunFolder], budgets: dict[str, float]) -> LedgerRow:
    summaries = [run.summary() for run in runs]

    def mean(key: str, per_step: bool = False) -> float:
        return float(np.mean([s[key] / (s["steps"] if per_step else 1) for s in summaries]))

    recipe = runs[0].recipe()
    return LedgerRow(
        name=name,
        objective=summaries[0]["objective"],
        family=recipe["model"].get("pretrained") or recipe["model"].get("family", "cue"),
        parameters=summaries[0]["parameters"],
        seeds=[s["seed"] for s in summaries],
        steps=round(mean("steps")),
        input_tokens=mean("input_tokens", True),
        target_tokens=mean("target_tokens", True),
        flops=mean("flops", True),
        loss=mean("validation_loss"),
        at={kind: _loss_at(runs, kind, at) for kind, at in budgets.items()},
    )


def _loss_at(runs: list[RunFolder], kind: str, at: float) -> float | None:
    """Validation loss at a budget, between the two validations around it; None before the first."""
    losses_at: list[Any] = []
    for run in runs:
        rows = run.metrics("validation")
        spent, losses = [row[kind] for row in rows], [row["loss"] for row in rows]
        losses_at.append(np.interp(at, spent, losses) if spent[0] <= at else None)
    return None if None in losses_at else float(np.mean(losses_at))
