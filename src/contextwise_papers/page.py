"""The page of a reproduction: our figures and the document's, the verdict on each claim, runs and environment."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import yaml

from contextwise.base.files import without_folders
from contextwise.report import Column, Page, Section, Table, as_json, count, duration
from contextwise.reports import page
from contextwise.reports.page import NO_SCRIPT, Part
from contextwise.stats import Estimate
from contextwise_papers.claims import VERDICTS
from contextwise_papers.item import Outcome
from contextwise_papers.tables import Plot, printed_table

MOST_MARKED = 50
"""Points of a line that are marked, at most."""


def write_reproduction_page(outcome: Outcome, about: dict[str, Any], path: Path, command: str) -> None:
    """Write the page of an outcome; ``about`` is what its file holds, ``command`` the one that made it."""
    claim_line = "<strong>{verdict}:</strong> {text} <small>{evidence}</small>"
    result = [
        page.markup(claim_line, verdict=VERDICTS[claim.holds].capitalize(), text=claim.text, evidence=claim.evidence)
        for claim in outcome.claims
    ]
    if about["supports"]:
        result.append(page.markup("What this scale can support: {supports}", supports=about["supports"]))
    fallback = "This figure needs JavaScript. The JSON file beside this page holds its numbers."
    sections = [
        *sections_of(outcome.tables, outcome.plots, fallback),
        Section("What the document prints", _printed(about["printed"], about["inferred"])),
        Section("How it was made", _making(about, command)),
    ]
    took = f", in {duration(outcome.seconds)}" if outcome.seconds else ""
    subtitle = f"{about['source']}; scale {about['scale']}, {about['date']}{took}"
    Page(about["title"], sections, subtitle, result, __file__).write(path)


def sections_of(
    tables: Iterable[Table], plots: Iterable[Plot], fallback: str = NO_SCRIPT, first: int = 0
) -> list[Section]:
    """A section for each table and each plot; ``first`` is the number of the first plot on its page."""
    drawn = [page.Plot(f"plot-{i}", plot_figure(p), p.title, fallback=fallback) for i, p in enumerate(plots, first)]
    of_tables = [Section(table.title, [replace(table, title="")]) for table in tables]
    return [*of_tables, *(Section(plot.label, [plot]) for plot in drawn)]


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


def plot_figure(drawn: Plot) -> dict[str, Any]:
    """Plotly's form of a plot."""
    plot = as_json(drawn)
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
