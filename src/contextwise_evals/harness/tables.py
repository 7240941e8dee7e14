"""Results of the harness as rows and as a table."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from contextwise.base.tables import Column, Row, Table, terminal

ACCURACY_TASKS: tuple[str, ...] = ("lambada_openai", "arc_easy", "lambada_standard", "arc_challenge")
ACCURACY_TASKS += ("winogrande", "piqa", "hellaswag", "sciq", "race")
"""The nine tasks of the ContextLM paper's Tables 3 and 12; its average is the plain mean of their ``acc``."""
PERPLEXITIES = ("word_perplexity", "perplexity")


def summary_of(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """JSON-ready ``rows``, their ``averages`` and ``notes``, for each number of shots and each context."""
    averages, notes = [], []
    contexts = {row["context"] for row in rows}
    for shots, context in dict.fromkeys((row["shots"], row["context"]) for row in rows):
        measured = [row for row in rows if (row["shots"], row["context"]) == (shots, context)]
        shortened = [f"{row['task']} {row['cut']:,} of {row['documents']:,}" for row in measured if row["cut"]]
        if shortened:
            room = f"a context of {context:,}" if len(contexts) > 1 else "the model's positions"
            notes.append(
                f"with {shots} shots, some documents were longer than {room}, and their beginning was left out: "
                f"{', '.join(shortened)}"
            )
        accuracies = {row["task"]: row["measures"]["acc"]["value"] for row in measured if "acc" in row["measures"]}
        if accuracies:
            averages.append(
                {
                    "shots": shots,
                    "context": context,
                    "acc": sum(accuracies.values()) / len(accuracies),
                    "tasks": list(accuracies),
                    "as_the_paper": set(accuracies) == set(ACCURACY_TASKS),
                }
            )
    return {"rows": list(rows), "averages": averages, "notes": notes}


def task_row(task: str, shots: int, result: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a task among the harness's results; of several filters, the first is used."""
    figures: dict[str, float | None] = {}
    for key, value in result["results"][task].items():
        name, comma, _ = key.partition(",")
        if comma and isinstance(value, int | float):
            figures.setdefault(name, float(value) if math.isfinite(value) else None)
    return {
        "shots_used": result["n-shot"].get(task, shots),
        "documents": result["n-samples"][task]["effective"],
        "measures": {
            name: {"value": value, "stderr": figures.get(f"{name}_stderr")}
            for name, value in figures.items()
            if not name.endswith("_stderr")
        },
    }


def tasks_table(summary: dict[str, Any]) -> RenderableType:
    """A row per task, number of shots, context and measure, the average accuracies, and notes."""
    settings = summary["settings"]
    limit = "" if settings["limit"] is None else f", the first {settings['limit']:,} documents of each"
    extended = (
        "" if summary["rope_factor"] is None else f", extended by {settings['rope']} {summary['rope_factor']:.3g}"
    )
    heading = (
        f"{summary['model']}, {summary['parameters']:,} parameters, {summary['positions']:,} positions{extended}{limit}"
    )
    rows: list[Row] = []
    for row in summary["rows"]:
        for name, measured in row["measures"].items():
            figures = (measured["value"], measured["stderr"])
            rows.append(Row([row["task"], row["shots_used"], row["context"], row["documents"], name, *figures]))
    for average in summary["averages"]:
        name = f"Avg of {len(average['tasks'])}"
        rows.append(Row([name, average["shots"], average["context"], "", "acc", average["acc"], ""], bold=True))
    counts = (Column(name, "integer") for name in ("shots", "context", "docs"))
    figures = (Column("value", "estimate", ".4g", missing="not finite"), Column("stderr", "estimate", ".2g"))
    columns: list[Column | str] = ["task", *counts, Column("measure", align="left"), *figures]
    notes = [f"Note: {note}." for note in summary["notes"]]
    return terminal(Text(heading), Table("", columns, rows), *notes)
