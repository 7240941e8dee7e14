"""Results of the harness as rows and as a table of 80 columns."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from contextwise.base.estimates import number
from contextwise.base.tables import Column, Row, Table, terminal

ACCURACY_TASKS: tuple[str, ...] = ("lambada_openai", "arc_easy", "lambada_standard", "arc_challenge")
ACCURACY_TASKS += ("winogrande", "piqa", "hellaswag", "sciq", "race")
"""The nine tasks of the ContextLM paper's Tables 3 and 12; its average is the plain mean of their ``acc``."""
PERPLEXITIES = ("word_perplexity", "perplexity")


def table_rows(
    results: Mapping[int, Mapping[str, Any]], planned: Sequence[Any], cut: Mapping[int, Mapping[str, int]]
) -> dict[str, Any]:
    """Build JSON-ready ``rows`` (per task and number of shots), ``averages`` (per number of shots) and ``notes``.

    ``results`` are the harness's, by shots; ``cut`` counts the documents whose beginning was truncated, by shots and task.
    """
    rows, averages, notes = [], [], []
    for plan in planned:
        truncated = cut[plan.shots].get(plan.name, 0)
        rows.append({**_row(plan.name, plan.shots, results[plan.shots]), "cut": truncated, "content": plan.content})
    for shots in results:
        measured = [row for row in rows if row["shots"] == shots]
        shortened = [f"{row['task']} {row['cut']:,} of {row['documents']:,}" for row in measured if row["cut"]]
        if shortened:
            notes.append(
                f"with {shots} shots, some documents were longer than the model's positions, and their beginning was left out: "
                f"{', '.join(shortened)}"
            )
        accuracies = {row["task"]: row["measures"]["acc"]["value"] for row in measured if "acc" in row["measures"]}
        if accuracies:
            averages.append(
                {
                    "shots": shots,
                    "acc": sum(accuracies.values()) / len(accuracies),
                    "tasks": list(accuracies),
                    "as_the_paper": set(accuracies) == set(ACCURACY_TASKS),
                }
            )
    return {"rows": rows, "averages": averages, "notes": notes}


def _row(task: str, shots: int, result: Mapping[str, Any]) -> dict[str, Any]:
    """Build the row of a task from the harness's figures; of several filters, the first is used."""
    figures: dict[str, float | None] = {}
    for key, value in result["results"][task].items():
        name, comma, _ = key.partition(",")
        if comma and isinstance(value, int | float):
            figures.setdefault(name, float(value) if math.isfinite(value) else None)
    return {
        "task": task,
        "shots": shots,
        "shots_used": result["n-shot"].get(task, shots),
        "documents": result["n-samples"][task]["effective"],
        "measures": {
            name: {"value": value, "stderr": figures.get(f"{name}_stderr")}
            for name, value in figures.items()
            if not name.endswith("_stderr")
        },
    }


def tasks_table(summary: dict[str, Any]) -> RenderableType:
    """Build the table: a row per task and number of shots, the average of each number of shots, and notes."""
    settings = summary["settings"]
    limit = "" if settings["limit"] is None else f", the first {settings['limit']:,} documents of each"
    measured = {name for row in summary["rows"] for name in row["measures"]}
    ppl = "; ppl of words for wikitext, of last words for lambada" if measured & set(PERPLEXITIES) else ""
    heading = (
        f"{summary['model']}, {summary['parameters']:,} parameters, {summary['positions']:,} positions{limit}; "
        f"± one standard error{ppl}"
    )
    averages = {average["shots"]: average for average in summary["averages"]}
    rows: list[Row] = []
    for shots in settings["num_fewshot"]:
        rows += [Row(_cells(row)) for row in summary["rows"] if row["shots"] == shots]
        if shots in averages:
            average = averages[shots]
            name = f"Avg of {len(average['tasks'])}"
            rows.append(Row([name, shots, "", f"{100 * average['acc']:.2f}", "", ""], bold=True, last=True))
    counts = Column("shots", "integer"), Column("docs", "integer")
    columns: list[Column | str] = ["task", *counts, "acc %", "acc_norm %", "ppl"]
    notes = [f"Note: {note}." for note in summary["notes"]]
    return terminal(Text(heading), Table("", columns, rows), *notes)


def _cells(row: dict[str, Any]) -> list[Any]:
    measures = row["measures"]
    ppl = next((measures[name] for name in PERPLEXITIES if name in measures), None)
    accuracies = _percent(measures.get("acc")), _percent(measures.get("acc_norm"))
    return [row["task"], row["shots_used"], row["documents"], *accuracies, _figure(ppl)]


def _percent(measure: dict[str, Any] | None) -> str:
    if measure is None or measure["value"] is None:
        return ""
    error = measure["stderr"]
    return f"{100 * measure['value']:.2f}" + ("" if error is None else f" ± {100 * error:.2f}")


def _figure(measure: dict[str, Any] | None) -> str:
    if measure is None:
        return ""
    if measure["value"] is None:
        return "not finite"
    value, error = measure["value"], measure["stderr"]
    if value >= 1e5:
        return f"{value:.1e}" + ("" if error is None else f" ± {error:.0e}")
    return number(value) + ("" if error is None else f" ± {error:.2g}")
