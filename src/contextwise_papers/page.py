"""The page of a reproduction: our figures and the document's, the verdict on each claim, runs and environment."""

from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import yaml

from contextwise.base.estimates import Estimate, count, duration
from contextwise.base.files import without_folders
from contextwise.base.tables import Column, Table
from contextwise.reports import page
from contextwise.reports.page import Page, Part, Plot, Section
from contextwise_papers.claims import VERDICTS
from contextwise_papers.tables import printed_table

MOST_MARKED = 50
"""Points of a line that are marked, at most."""


def write_reproduction_page(outcome: dict[str, Any], path: Path, command: str) -> None:
    """Write the page of an outcome, as :meth:`contextwise_papers.item.Outcome.write` wrote it, and its command."""
    claim_line = "<strong>{verdict}:</strong> {text} <small>{evidence}</small>"
    result = [
        page.markup(claim_line, **{**claim, "verdict": VERDICTS[claim["holds"]].capitalize()})
        for claim in outcome["claims"]
    ]
    if outcome["supports"]:
        result.append(page.markup("What this scale can support: {supports}", supports=outcome["supports"]))
    tables = [Table.from_dict(table) for table in outcome["tables"]]
    fallback = "This figure needs JavaScript. The JSON file beside this page holds its numbers."
    sections = [
        *(Section(table.title, [Table("", table.columns, table.rows, table.notes)]) for table in tables),
        *(
            Section(plot["title"], [Plot(f"plot-{i}", plot_figure(plot), plot["title"], fallback=fallback)])
            for i, plot in enumerate(outcome["plots"])
        ),
        Section("What the document prints", _printed(outcome["printed"], outcome["inferred"])),
        Section("How it was made", _making(outcome, command)),
    ]
    took = f", in {duration(outcome['seconds'])}" if outcome.get("seconds") else ""
    subtitle = f"{outcome['source']}; scale {outcome['scale']}, {outcome['date']}{took}"
    Page(outcome["title"], sections, subtitle, result, __file__).write(path)


def _printed(printed: dict[str, Any], inferred: list[str]) -> list[Part]:
    """The document's own figures, as a table where possible, and what it leaves open."""
    parts: list[Part] = []
    rest, table = dict(printed), printed_table(printed)
    if table is not None:
        parts.append(table)
        del rest["columns"], rest["rows"]
    if rest:
        parts.append(page.code(yaml.safe_dump(rest, sort_keys=False, allow_unicode=True, width=100)))
    if inferred:
        parts += ["Not stated there, and chosen here:", page.bullets(inferred)]
    return parts


def _making(outcome: dict[str, Any], command: str) -> list[Part]:
    wrapped = command.replace(" --set=", " \\\n  --set=").replace(" '--set=", " \\\n  '--set=")
    rows = []
    for run in outcome["runs"]:
        corpus, counts = run["corpus"], (count(run["parameters"]), count(run["tokens"]))
        about = f"{run['seconds']:,.0f} s", without_folders(corpus["path"]), corpus["fingerprint"][:12]
        rows.append([run["name"], run["seed"], *counts, *about])
    seed = Column("seed", "integer", "d")
    columns: list[Column | str] = ["run", seed, "parameters", "tokens", "trained in", "corpus", "its hash"]
    table = Table("The training runs behind these figures.", columns, rows)
    environment = page.details("Environment", page.facts(page.environment_facts(outcome["environment"])))
    return [page.commands([wrapped]), *([table] if rows else []), environment]


def plot_figure(plot: dict[str, Any]) -> dict[str, Any]:
    """Plotly's form of a plot."""
    series, levels = enumerate(plot["series"].items()), plot["levels"]
    beside = {"xref": "paper", "x": 1, "xanchor": "right", "yanchor": "bottom", "showarrow": False}

    def axis(name: str) -> dict[str, Any]:
        return {"title": page.plain(plot[name]), "type": "log" if name in plot["logarithmic"] else None}

    return page.figure(
        [_trace(name, number, points, plot["kind"]) for number, (name, points) in series],
        xaxis=axis("x"),
        yaxis=axis("y"),
        height=420,
        shapes=[page.level(y) for y in levels.values()],
        annotations=[{**beside, "y": y, "text": page.plain(name)} for name, y in levels.items()],
    )


def _trace(name: str, series: int, points: list[dict[str, Any]], kind: str) -> Any:
    x, y, texts = ([point.get(key) for point in points] for key in ("x", "y", "text"))
    style: dict[str, Any] = {"name": page.plain(name), "kind": go.Bar}
    if kind != "bars":
        mode = "markers" if kind != "lines" else "lines+markers" if len(points) <= MOST_MARKED else "lines"
        style |= {"kind": go.Scatter, "mode": mode}
    if any("low" in p for p in points):
        estimates = [Estimate(p["y"], p.get("low", p["y"]), p.get("high", p["y"])) for p in points]
        style["error_y"] = page.error_bars(estimates)
    hover = "%{fullData.name}<br>%{x}, %{y}"
    if any(texts):
        style["text"] = [page.plain(str(text or "")) for text in texts]
        hover = "%{fullData.name}<br>%{text}<br>%{x}, %{y}"
    return page.scatter(x, y, series, hover, **style)
