"""Comparisons and evaluations as tables of a page.

They hold what the terminal's tables hold (:mod:`contextwise.evaluation.tables`), in the same numbers, with
more room.
"""

from typing import Any

from contextwise.base.estimates import Estimate
from contextwise.base.runs import RunFolder
from contextwise.comparison.compared_runs import COMPARABLE
from contextwise.comparison.comparison import Comparison, Group
from contextwise.comparison.tables import MID_SCHEDULE, difference_cell
from contextwise.evaluation.kernel import results_of
from contextwise.evaluation.tables import MEASURES, NOT_KNOWN, count, duration, interval, number
from contextwise.reports.words import lowest

Table = dict[str, Any]
"""``caption``, ``head`` (titles of columns), ``best`` (a row's number or None), and ``rows``: each with
``series`` (the number of a colour, or None) and ``cells``, which are pairs (text, small text below it)."""


def model_table(comparison: Comparison, series: dict[str, int]) -> Table:
    """One row a model: parameters, losses, what training took, what generation takes."""
    head = ["model", "parameters", "held-out loss", "perplexity", "bits per byte"]
    head += ["trained on", "training time", "training tokens/s", "ms per new token"]
    return {
        "caption": "Loss in nats per token of held-out documents, with 95% intervals. Lower is better.",
        "head": head,
        "rows": [{"series": series[group.name], "cells": _model_cells(group)} for group in comparison.groups],
        "best": comparison.groups.index(lowest(comparison)),
    }


def _model_cells(group: Group) -> list[tuple[str, str]]:
    seeds = f"{len(group.seeds)} seeds" if len(group.seeds) > 1 else ""
    per_byte = group.bits_per_byte
    return [
        (group.name, seeds),
        (f"{group.parameters:,}", ""),
        (f"{group.loss.value:.4f}", _ends(group.loss)),
        (number(group.perplexity.value), _ends(group.perplexity)),
        (f"{per_byte.value:.4f}", _ends(per_byte)) if per_byte else (NOT_KNOWN, ""),
        (NOT_KNOWN if group.training_tokens is None else f"{count(group.training_tokens)} tokens", ""),
        (NOT_KNOWN if group.training_seconds is None else duration(group.training_seconds), ""),
        (NOT_KNOWN if group.tokens_per_second is None else f"{group.tokens_per_second:,.0f}", ""),
        (NOT_KNOWN if group.ms_per_token is None else f"{group.ms_per_token:.2f}", ""),
    ]


def difference_table(comparison: Comparison) -> Table:
    """One row a pair: the difference, its interval, and on how many of the documents the first is better."""
    rows = []
    for found in comparison.differences:
        value = found.difference
        ends = "" if value.low is None or value.high is None else f"[{value.low:+.4f}, {value.high:+.4f}]"
        if value.low is None or value.high is None:
            meaning = "no interval"
        elif value.low <= 0 <= value.high:
            meaning = "not told apart"
        else:
            meaning = f"{found.group if value.value < 0 else found.reference} is better"
        cells = [
            f"{found.group} − {found.reference}",
            f"{value.value:+.4f}",
            ends,
            f"{found.documents_lower:.0%}",
            meaning,
        ]
        rows.append({"series": None, "cells": [(cell, "") for cell in cells]})
    return {
        "caption": f"Held-out loss, {comparison.unit}, first minus second on the same documents.",
        "head": ["pair", "difference", "95% interval", "documents with a lower loss", "result"],
        "rows": rows,
        "best": None,
    }


def budget_tables(comparison: Comparison, series: dict[str, int]) -> list[Table]:
    """Validation losses at equal training time, and at equal training tokens."""
    tables = []
    for budget in comparison.budgets:
        at = duration(budget.at) if budget.kind == "seconds" else f"{count(budget.at)} tokens"
        rows = []
        for row in budget.rows:
            loss = f"{row.loss:.4f}{'*' if row.mid_schedule else ''}"
            cells = [row.group, loss, difference_cell(row.difference) or NOT_KNOWN]
            rows.append({"series": series[row.group], "cells": [(cell, "") for cell in cells]})
        star = f" {MID_SCHEDULE}" if any(row.mid_schedule for row in budget.rows) else ""
        tables.append(
            {
                "caption": f"Validation loss after {at} of training.{star}",
                "head": ["model", "validation loss", f"minus {comparison.reference}"],
                "rows": rows,
                "best": None,
            }
        )
    return tables


def evaluation_tables(runs: list[RunFolder]) -> list[Table]:
    """The evaluations of each run, for a page without a comparison."""
    tables = []
    for run in runs:
        for summary in (r.summary for r in results_of(run.evaluation) if r.measure in COMPARABLE):
            measures = [
                (name, summary[key])
                for key, name in MEASURES.items()
                if summary[key] and summary[key]["value"] is not None
            ]
            rows = [
                [(name, ""), (number(measure["value"]), ""), (interval(measure["low"], measure["high"]), "")]
                for name, measure in measures
            ]
            tables.append(
                {
                    "caption": f"{run.path.name} on {summary['label']}: {summary['documents']:,} documents, "
                    f"{summary['tokens']:,} tokens, {_scored(summary)}.",
                    "head": ["measure", "value", "95% interval"],
                    "rows": [{"series": None, "cells": cells} for cells in rows],
                    "best": None,
                }
            )
    return tables


def _scored(summary: dict[str, Any]) -> str:
    """How an evaluation was made, in words."""
    if not summary.get("by_sentence"):
        return f"windows of {summary['context']:,}, stride {summary['stride']:,}"
    condition = summary.get("condition")
    return "each sentence on its own" + (f", with {condition}" if condition else "")


def _ends(estimate: Estimate) -> str:
    return "" if estimate.low is None else interval(estimate.low, estimate.high)


def text_table(caption: str, head: list[str], rows: list[list[str]]) -> Table:
    """A table of plain text."""
    cells = [{"series": None, "cells": [(cell, "") for cell in row]} for row in rows]
    return {"caption": caption, "head": head, "rows": cells, "best": None}


def environment_facts(environment: dict[str, Any]) -> dict[str, str]:
    """Hardware and versions as a page lists them: one text each, without what is not there."""
    facts = {**environment, **environment.get("versions", {})}
    facts.pop("versions", None)
    return {
        name: ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        for name, value in facts.items()
        if value not in (None, [])
    }
