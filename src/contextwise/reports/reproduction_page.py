"""The page of a reproduction: our figures beside the document's, the verdict on each claim, and what they were made with."""

from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from contextwise.base.errors import ConfigError
from contextwise.base.files import atomic_write
from contextwise.models.sizes import readable_count
from contextwise.reports.rendering import plain, render
from contextwise.reports.tables import environment_facts, text_table

VERDICTS = {True: "Holds", False: "Does not hold", None: "Undecided"}


def write_reproduction_page(outcome: dict[str, Any], path: Path, command: str) -> None:
    """Write the page of an outcome.

    Args:
        outcome: what :meth:`contextwise.reproductions.item.Outcome.write` wrote.
        command: what made it, to be shown.

    Raises:
        ConfigError: ``path`` is a folder.
        DataError: the file cannot be written.
    """
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; give the name of a file for the page")
    printed = outcome["printed"]
    tabular = {"columns", "rows"} <= set(printed)
    rest = {name: value for name, value in printed.items() if not (tabular and name in ("columns", "rows"))}
    plots = {f"plot-{i}": plot for i, plot in enumerate(outcome["plots"])}
    content = {
        "title": outcome["title"],
        "subtitle": f"{outcome['source']}; scale {outcome['scale']}, {outcome['date']}",
        "claims": [{**claim, "verdict": VERDICTS[claim["holds"]]} for claim in outcome["claims"]],
        "supports": outcome["supports"],
        "tables": [_titled(one) for one in outcome["tables"]],
        "plots": [{"id": name, "title": plot["title"]} for name, plot in plots.items()],
        "printed_table": _printed_table(printed) if tabular else None,
        "printed_text": yaml.safe_dump(rest, sort_keys=False, allow_unicode=True, width=100) if rest else "",
        "inferred": outcome["inferred"],
        "command": command,
        "runs": _runs_table(outcome["runs"]),
        "environment": environment_facts(outcome["environment"]),
        "version": metadata.version("contextwise"),
    }
    figures = {name: plot_figure(plot) for name, plot in plots.items()}
    atomic_write(path, render("reproduction", content, figures), "the page")


def _titled(table: dict[str, Any]) -> dict[str, Any]:
    return {"title": table["title"], **text_table("", table["columns"], table["rows"])}


def _printed_table(printed: dict[str, Any]) -> dict[str, Any]:
    rows = [[name, *map(str, values)] for name, values in printed["rows"].items()]
    return text_table("", printed["columns"], rows)


def _runs_table(runs: list[dict[str, Any]]) -> dict[str, Any] | None:
    if not runs:
        return None
    rows = [
        [
            run["name"],
            str(run["seed"]),
            readable_count(run["parameters"]),
            readable_count(run["tokens"]),
            f"{run['seconds']:,.0f} s",
            run["corpus"]["path"],
            run["corpus"]["fingerprint"][:12],
        ]
        for run in runs
    ]
    head = ["run", "seed", "parameters", "tokens", "trained in", "corpus", "its hash"]
    return text_table("The training runs behind these figures.", head, rows)


def plot_figure(plot: dict[str, Any]) -> dict[str, Any]:
    """Plotly's form of a plot."""
    traces = [
        _trace(name, i, points, plot["kind"]) for i, (name, points) in enumerate(plot["series"].items())
    ]
    shapes = [
        {
            "type": "line",
            "xref": "paper",
            "x0": 0,
            "x1": 1,
            "y0": y,
            "y1": y,
            "line": {"dash": "dot", "width": 1},
        }
        for y in plot["levels"].values()
    ]
    notes = [
        {
            "xref": "paper",
            "x": 1,
            "xanchor": "right",
            "y": y,
            "yanchor": "bottom",
            "text": plain(name),
            "showarrow": False,
        }
        for name, y in plot["levels"].items()
    ]
    layout = {
        "xaxis": {"title": {"text": plain(plot["x"])}, "type": "log" if "x" in plot["logarithmic"] else None},
        "yaxis": {"title": {"text": plain(plot["y"])}, "type": "log" if "y" in plot["logarithmic"] else None},
        "shapes": shapes,
        "annotations": notes,
        "height": 420,
    }
    return {"data": traces, "layout": layout}


def _trace(name: str, series: int, points: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    trace: dict[str, Any] = {
        "name": plain(name),
        "x": [point["x"] for point in points],
        "y": [point["y"] for point in points],
        "type": "bar" if kind == "bars" else "scatter",
        "meta": {"series": series},
    }
    if kind != "bars":
        trace["mode"] = "lines+markers" if kind == "lines" else "markers"
    if any("low" in point for point in points):
        trace["error_y"] = {
            "type": "data",
            "symmetric": False,
            "array": [point.get("high", point["y"]) - point["y"] for point in points],
            "arrayminus": [point["y"] - point.get("low", point["y"]) for point in points],
        }
    if any("text" in point for point in points):
        trace["text"] = [plain(str(point.get("text", ""))) for point in points]
        trace["hovertemplate"] = "%{text}<br>%{x}, %{y}<extra>%{fullData.name}</extra>"
    return trace
