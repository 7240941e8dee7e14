"""A page: sections of text, tables and plots in one HTML file, which opens from disk without a network.

Text, tables and commands are plain HTML and can be read without JavaScript; the plots are Plotly's, whose script (4.8 MB) is in
the file. All text is escaped, and the page forbids itself to load anything. A part of a section is a text (a paragraph), a
:class:`~contextwise.base.tables.Table`, a :class:`Plot`, or markup from one of the functions here.
"""

import html
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs
from rich.console import Group
from rich.padding import Padding

from contextwise.base.errors import ConfigError
from contextwise.base.estimates import Estimate, as_json
from contextwise.base.files import atomic_write, relative_to_here
from contextwise.base.tables import Table

DOCTYPE = "<!doctype html>"
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:"
SYMBOLS = ("circle", "diamond", "square", "triangle-up", "x", "cross")
NO_SCRIPT = "This figure needs JavaScript. The tables hold its results."


class Markup(str):
    """HTML that is inserted into a page without escaping."""

    def __html__(self) -> str:
        return self


@dataclass(frozen=True)
class Plot:
    """A Plotly figure."""

    id: str  # of its element, by which the page's script finds the figure
    figure: dict[str, Any]  # traces and layout, without colours: ``meta.series`` of a trace is the number of its colour
    label: str  # what it shows, for screen readers
    caption: str = ""  # text or markup below it
    fallback: str = NO_SCRIPT  # what to read without JavaScript
    controls: str = ""  # markup above it

    def __html__(self) -> str:
        caption = f"<figcaption>{shown(self.caption)}</figcaption>" if self.caption else ""
        label, fallback = html.escape(self.label), html.escape(self.fallback)
        return (
            f'{self.controls}<figure>\n<div class="plot" id="{self.id}" role="img" aria-label="{label}"></div>\n'
            f'<noscript><p class="missing">{fallback}</p></noscript>\n{caption}</figure>'
        )


Part = str | Table | Plot


@dataclass(frozen=True)
class Section:
    """A headline and the parts below it."""

    title: str
    parts: Sequence[Part]

    def __html__(self) -> str:
        return f"<section>\n<h2>{html.escape(self.title)}</h2>\n{joined(self.parts)}\n</section>"


@dataclass(frozen=True)
class Page:
    """A page."""

    title: str
    sections: Sequence[Section]  # those without parts are left out
    subtitle: str = ""
    result: Sequence[str] = ()  # paragraphs in the box at the top
    source: str = ""  # the module that makes the page; its own script and style sheet lie beside it under the same name
    data: Mapping[str, Any] = field(default_factory=dict)  # what the script reads besides the figures, by element id

    def write(self, path: Path) -> None:
        """Write the page, complete or not at all, without the names of the folders above the current one."""
        check_file(path)
        atomic_write(path, relative_to_here(self.render()), "the page")

    def render(self) -> str:
        """The HTML file."""
        from contextwise.base.machine import own_version

        sections = [section for section in self.sections if section.parts]
        parts = [part for section in sections for part in section.parts]
        figures = {part.id: part.figure for part in parts if isinstance(part, Plot)}
        title = html.escape(self.title)
        result = "".join(f"<p>{shown(paragraph)}</p>" for paragraph in self.result)
        lines = [
            f'{DOCTYPE}\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            f"<title>{title}</title>",
            f"<style>\n{asset('base.css')}{_beside(self.source, '.css')}</style>\n</head>\n<body>\n<main>",
            f"<header>\n<h1>{title}</h1>",
            f'<p class="subtitle">{html.escape(self.subtitle)}</p>' if self.subtitle else "",
            "</header>",
            f'<section class="verdict" aria-label="Result">{result}</section>' if result else "",
            *(section.__html__() for section in sections),
            f"<footer>contextwise {own_version()}</footer>\n</main>",
        ]
        if figures:
            for name, value in {"figures": figures, **self.data}.items():
                # Without "<" nothing in the JSON can end the element.
                text = json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
                lines.append(f'<script type="application/json" id="{name}">{text}</script>')
            own = _beside(self.source, ".js") or '"use strict";\nFigures.start();\n'
            lines += ['<script>window.PlotlyConfig = {MathJaxConfig: "local"};</script>']
            lines += [f"<script>{get_plotlyjs()}</script>", f"<script>\n{asset('figures.js')}{own}</script>"]
        return "\n".join([*filter(None, lines), "</body>\n</html>\n"])


def check_file(path: Path) -> None:
    """Refuse a folder, or a file that is no page and would be lost, as the page, with a ConfigError."""
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; give the name of a file for the page")
    if path.is_file() and path.suffix != ".html":
        with path.open("rb") as file:
            begin = file.read(len(DOCTYPE))
        if begin and begin.lower() != DOCTYPE.encode():
            raise ConfigError(f"{path} is no page, and would be lost; give another name for the page")


def shown(part: Any) -> str:
    """The HTML of markup, a table or a plot; a text is escaped."""
    return part.__html__() if hasattr(part, "__html__") else html.escape(str(part))


def joined(parts: Iterable[Part]) -> Markup:
    """Parts below each other."""
    paragraphs = (shown(part) if hasattr(part, "__html__") else f"<p>{shown(part)}</p>" for part in parts)
    return Markup("\n".join(paragraphs))


def markup(template: str, **values: Any) -> Markup:
    """A template with ``{names}``, whose values are escaped unless they are markup."""
    return Markup(template.format(**{name: shown(value) for name, value in values.items()}))


def printed(shown: Any) -> Iterator[str | Table]:
    """The sentences and tables of what a measure prints on the terminal, as parts of a section."""
    if isinstance(shown, Group):
        for part in shown.renderables:
            yield from printed(part)
    elif isinstance(shown, Padding):
        yield from printed(shown.renderable)
    elif isinstance(shown, Table):
        yield shown
    elif text := str(getattr(shown, "plain", shown)).strip():
        yield text


def missing(text: str, attributes: str = "") -> Markup:
    """A note in place of missing content."""
    return markup('<p{attributes} class="missing">{text}</p>', text=text, attributes=Markup(attributes))


def bullets(sentences: Sequence[str]) -> Markup:
    """A list of sentences."""
    return Markup(f"<ul>{''.join(f'<li>{shown(sentence)}</li>' for sentence in sentences)}</ul>")


def code(text: str, style: str = "") -> Markup:
    """Preformatted text."""
    opening = f'<pre class="{style}">' if style else "<pre>"
    return Markup(f"{opening}{shown(text)}</pre>")


def commands(lines: Sequence[str]) -> Markup:
    """Commands, one a line."""
    return code("\n".join(lines), "commands")


def details(summary: str, *parts: Part) -> Markup:
    """Parts that a reader can unfold below a line."""
    return Markup(f"<details>\n<summary>{shown(summary)}</summary>\n{joined(parts)}\n</details>")


def facts(values: Mapping[str, Any]) -> Markup:
    """Names and their values."""
    pairs = "".join(f"<dt>{shown(name)}</dt><dd>{shown(value)}</dd>" for name, value in values.items())
    return Markup(f"<dl>{pairs}</dl>")


def environment_facts(environment: Mapping[str, Any]) -> dict[str, str]:
    """Hardware and versions as a page lists them: one text each, without what is not known."""
    values = {**environment, **environment.get("versions", {})}
    return {
        name: ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        for name, value in values.items()
        if value not in (None, []) and name != "versions"
    }


def choices(label: str, id: str = "") -> Markup:
    """A row of buttons, which the page's script fills in."""
    identity = Markup(f' id="{id}"' if id else "")
    row = '<div class="axes"{identity} role="group" aria-label="{label}" hidden></div>\n'
    return markup(row, identity=identity, label=label)


def plain(text: str) -> str:
    """Escape a text for Plotly, which interprets some HTML tags."""
    return html.escape(text, quote=False)


def asset(name: str) -> str:
    """A file beside this module."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _beside(source: str, suffix: str) -> str:
    """The file with the name of a module and this suffix; empty if there is none."""
    file = Path(source or __file__).with_suffix(suffix)
    return file.read_text(encoding="utf-8") if file.is_file() else ""


def figure(traces: Sequence[Any] = (), **layout: Any) -> dict[str, Any]:
    """A figure as plain values, with the margins and the legend that all figures share; a page's script may fill it in."""
    shared = {
        "height": 440,
        "margin": {"l": 56, "r": 12, "t": 8, "b": 52},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "hovermode": "closest",
    }
    return go.Figure(traces, {**shared, **layout}).to_plotly_json()


def scatter(x: Any, y: Any, series: int | None, hover: str = "", kind: Any = go.Scatter, **style: Any) -> Any:
    """Points or lines (or bars: ``kind``) in the colour of a series; ``hover``: what the pointer shows, nothing if empty."""
    shown = {"hovertemplate": f"{hover}<extra></extra>"} if hover else {"hoverinfo": "skip"}
    return kind(x=as_json(x), y=as_json(y), meta={"series": series}, **shown, **style)


def powers_of_two(title: str, most: int) -> dict[str, Any]:
    """A logarithmic axis of counts of tokens up to ``most``, with ticks that a reader knows: 1, 2, 4, …, 1k; eight at most."""
    powers = range(most.bit_length() + 1)
    shown = powers[:: -(-len(powers) // 8)]
    ticks = {"tickvals": [2**power for power in shown], "ticktext": [_binary(2**power) for power in shown]}
    return {"title": title, "type": "log", **ticks}


def _binary(value: int) -> str:
    """A power of two as it is spoken: 512, 1k, 64k, 1M."""
    for size, letter in ((2**30, "G"), (2**20, "M"), (2**10, "k")):
        if value >= size:
            return f"{value // size}{letter}"
    return str(value)


def level(value: float, dash: str = "dash", axis: str = "y") -> dict[str, Any]:
    """A line across a figure at a value of an axis, for the ``shapes`` of its layout."""
    along = "x" if axis == "y" else "y"
    across = {f"{along}ref": f"{along} domain", f"{along}0": 0, f"{along}1": 1, f"{axis}0": value, f"{axis}1": value}
    return {"type": "line", **across, "line": {"color": "rgba(128, 128, 128, 0.7)", "width": 1, "dash": dash}}


def error_bars(values: Sequence[Estimate]) -> dict[str, Any]:
    """The intervals of estimates, for ``error_x`` or ``error_y`` of a trace."""
    up, down = zip(*((e.limits[1] - e.value, e.value - e.limits[0]) for e in values), strict=True)
    return {"array": list(up), "arrayminus": list(down)}


def visible_points(
    name: str, series: int, bins: Sequence[tuple[int, int]], values: Sequence[float], bars: Sequence[Estimate]
) -> Any:
    """A line of values over bins of visible tokens (first and last), with the intervals of ``bars`` where all have one."""
    whiskers = {"error_y": error_bars(bars)} if bars and all(each.has_interval for each in bars) else {}
    style = {"mode": "lines+markers", **({"name": plain(name)} if name else {}), **whiskers}
    at = [(first * last) ** 0.5 for first, last in bins]
    return scatter(at, values, series, f"{plain(name)} %{{x:.0f}} visible: %{{y:.4f}}", **style)


@dataclass(frozen=True)
class IntervalRow:
    """A row of :func:`interval_rows`: its name, value, the values of single seeds by seed, and the number of its colour."""

    name: str
    estimate: Estimate
    seeds: Mapping[Any, float]
    series: int


def interval_rows(rows: Sequence[IntervalRow], title: str, lines: Sequence[float] = ()) -> dict[str, Any]:
    """A figure with a value and its interval in each row, and below it those of the seeds as small points if there are several.

    ``lines``: dashed, at these values beside zero.
    """
    traces, labels, shown = [], [], [0.0, *lines]
    for y, row in zip(range(len(rows), 0, -1), rows, strict=True):
        estimate, hover, interval, whiskers = row.estimate, f"{plain(row.name)}<br>", "", None
        if estimate.has_interval:
            interval = f"<br>{estimate.confidence:.0%} interval {estimate.interval('+.4f')}"
            whiskers = {**error_bars([estimate]), "thickness": 2.5, "width": 7}
        marker = {"size": 11, "symbol": SYMBOLS[row.series % len(SYMBOLS)]}
        style: dict[str, Any] = {"mode": "markers", "marker": marker, "error_x": whiskers}
        traces.append(scatter([estimate.value], [y], row.series, f"{hover}%{{x:+.4f}}{interval}", **style))
        if len(row.seeds) > 1:
            style = {"mode": "markers", "marker": {"size": 7, "symbol": "circle-open"}}
            own = scatter(list(row.seeds.values()), [y - 0.22] * len(row.seeds), row.series, **style)
            hovers = [f"{hover}seed {seed}: %{{x:+.4f}}<extra></extra>" for seed in row.seeds]
            traces.append(own.update(hoverinfo=None, hovertemplate=hovers))
        shown += [v for v in (estimate.value, estimate.low, estimate.high, *row.seeds.values()) if v is not None]
        # Above the interval, not at an axis: on a phone the names of two models leave no room beside them.
        where = {"x": 0, "xref": "paper", "xanchor": "left", "y": y + 0.33, "yanchor": "middle"}
        labels.append({"text": plain(row.name), "showarrow": False, **where})
    room = 0.08 * (max(shown) - min(shown)) or 0.01
    axis = {"title": title, "zeroline": True, "zerolinewidth": 2, "tickformat": "~g", "nticks": 7}
    xaxis = {**axis, "range": [min(shown) - room, max(shown) + room]}
    yaxis = {"visible": False, "range": [0.5, len(rows) + 0.62], "fixedrange": True}
    layout = {"height": 74 + 62 * len(rows), "margin": {"l": 12, "r": 12, "t": 4, "b": 56}, "showlegend": False}
    shapes = [level(value, "dash", "x") for value in lines]
    return figure(traces, annotations=labels, xaxis=xaxis, yaxis=yaxis, shapes=shapes, **layout)
