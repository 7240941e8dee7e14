"""Runs of different objectives side by side: tokens read and predicted, FLOPs, and each objective's own losses."""

from typing import Any, TypedDict

import numpy as np

from contextwise.base.errors import DataError
from contextwise.base.estimates import count
from contextwise.base.runs import RunFolder
from contextwise.base.tables import Column, Table
from contextwise.comparison.budgets import number_of_seeds, validated_on, validation_curve
from contextwise.comparison.compared_runs import SeededRun, groups_of


class LedgerRow(TypedDict):
    """A recipe's means over its seeds; its keys are described at :func:`_row`."""

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


class ObjectivesJson(TypedDict):
    """Objectives side by side, and the budgets at which their losses are read."""

    rows: list[LedgerRow]
    budgets: dict[str, float]


def side_by_side(sources: list[str]) -> ObjectivesJson:
    """Put finished runs with different objectives side by side: tokens read, targets, FLOPs and losses.

    A nat per target under one objective is not a nat under another: a masked token is predicted from both sides, a suffix from
    the text before it. The list therefore has no differences, but what each objective predicted of the same text, at what
    cost, and its own loss at the same budget.

    Returns:
        ``budgets``: where the run that took least ``tokens`` of text, or ``flops``, ends; and ``rows``, one for each recipe,
        means over its seeds (:func:`_row`).
    """
    opened = {source: RunFolder.open(source) for source in sources}
    for source, run in opened.items():
        if run.summary()["validation_loss"] is None or not run.metrics("validation"):
            fix = "train on a corpus with a validation split, and with training.evaluation_tokens"
            raise DataError(f"{source} logged no validation loss; {fix}")
    groups = groups_of([SeededRun.of(source, opened[source]) for source in sources])
    runs = {name: [opened[each.source] for each in group] for name, group in groups.items()}
    every = [run.summary() for run in opened.values()]
    budgets = {kind: min(summary[kind] for summary in every) for kind in ("tokens", "flops")}
    return {"rows": [_row(name, group, budgets) for name, group in runs.items()], "budgets": budgets}


def _row(name: str, runs: list[RunFolder], budgets: dict[str, float]) -> LedgerRow:
    """A recipe's means over seeds: of each step the tokens read (padding left out; an encoder-decoder's targets included), the
    tokens that counted in the loss, and operations; the loss at the end, nats per target on the validation split, the examples
    of that, and the loss ``at`` each budget; None where the run had not validated yet.
    """
    summaries, recipe = [run.summary() for run in runs], runs[0].recipe()
    at: dict[str, float | None] = {}
    for kind, budget in budgets.items():
        curves = [validation_curve(run, kind) for run in runs]
        validated = all(len(spent) and spent[0] <= budget for spent, _ in curves)
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
        "validated_on": validated_on(runs).strip(),
        "at": at,
    }


def side_by_side_table(values: ObjectivesJson) -> Table:
    """What each objective read, predicted, spent and reached."""
    columns = {
        "input_tokens": Column("read", "integer", ",.0f"),
        "target_tokens": Column("asked", "integer", ",.0f"),
        "flops": Column("FLOPs", "estimate", ".2e"),
        "loss": Column("nats/\ntarget", "estimate", ".4f"),
    }
    at = {
        "tokens": Column(f"at\n{count(values['budgets']['tokens'])}", "estimate", ".4f"),
        "flops": Column(f"at {values['budgets']['flops']:.1e}\nFLOPs", "estimate", ".4f"),
    }
    rows = []
    row: Any
    for row in values["rows"]:
        name = row["name"], count(row["parameters"]) + number_of_seeds(row["seeds"])
        rows.append([name, *(row[key] for key in columns), *(row["at"][kind] for kind in at)])
    note = "Note: nats per target of different objectives are not comparable: each predicts other tokens from other tokens."
    head = [Column("run,\nparameters", width=14), *columns.values(), *at.values()]
    measured = "; ".join(f"{row['name']} {row['validated_on']}" for row in values["rows"] if row["validated_on"])
    notes = [f"Losses are those of the validations while training: {measured}."] if measured else []
    return Table("for each training step", head, rows, [*notes, note])
