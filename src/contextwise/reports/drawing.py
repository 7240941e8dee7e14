"""A figure as SVG, for places without JavaScript such as a notebook that is opened again: points, lines, intervals, axes.

It reads the values that Plotly reads (:func:`contextwise.reports.page.figure`), and draws what the pages of results use.
"""

import html
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from contextwise.reports.page import Markup, asset

WIDTH, LEFT, RIGHT, TOP, BOTTOM, LINE = 640, 64, 12, 10, 48, 17
TICKS = 6


class Axis:
    """A horizontal or vertical axis: its scale, ticks and title; ``pixels`` are those of its two ends."""

    def __init__(self, layout: dict[str, Any], values: Sequence[float], pixels: tuple[float, float]) -> None:
        self.log, self.pixels = layout.get("type") == "log", pixels
        self.shown = layout.get("visible", True)
        title = layout.get("title") or ""
        self.title: str = title["text"] if isinstance(title, dict) else title
        if layout.get("range"):
            self.low, self.high = layout["range"]
        else:
            known = [self._scaled(each) for each in values if math.isfinite(each) and (each > 0 or not self.log)] or [
                0.0
            ]
            room = 0.05 * (max(known) - min(known)) or 0.5
            self.low, self.high = min(known) - room, max(known) + room
        at = layout.get("tickvals")
        self.ticks = [*at] if at else self._ticks()
        self.labels = [*(layout.get("ticktext") or (f"{each:.6g}" for each in self.ticks))]

    def at(self, value: float) -> float:
        """The pixel of a value."""
        first, last = self.pixels
        return round(first + (self._scaled(value) - self.low) / (self.high - self.low) * (last - first), 1)

    def marked(self) -> Iterator[tuple[float, str]]:
        """Pixel and text of each tick in the range."""
        for value, text in zip(self.ticks, self.labels, strict=True):
            if self.low <= self._scaled(value) <= self.high:
                yield self.at(value), str(text)

    def _scaled(self, value: float) -> float:
        return math.log10(value) if self.log else value

    def _ticks(self) -> list[float]:
        if self.log:
            return [10.0**power for power in range(math.floor(self.low), math.ceil(self.high) + 1)]
        rough = (self.high - self.low) / TICKS
        size = 10.0 ** math.floor(math.log10(rough))
        step = next(size * digit for digit in (1, 2, 5, 10) if size * digit >= rough)
        return [round(each * step, 12) for each in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]


def drawn(figure: dict[str, Any], label: str) -> Markup:
    """The SVG of a figure; ``label`` says what it shows, for screen readers."""
    layout, height = figure["layout"], min(figure["layout"].get("height") or 440, 320)
    traces = [trace for trace in figure["data"] if trace.get("x")]
    named = {
        trace["name"]: _colour(trace) for trace in traces if trace.get("name") and trace.get("showlegend") is not False
    }
    named = {} if layout.get("showlegend") is False else named
    top = TOP + LINE * len(named)
    height += top - TOP
    shapes, notes = layout.get("shapes") or [], layout.get("annotations") or []
    x = Axis(layout.get("xaxis") or {}, [*_reach(traces, "x")], (LEFT, WIDTH - RIGHT))
    upright = [each for each in shapes if each.get("yref") == "y domain"]
    levels = [each["y0"] for each in shapes if each not in upright]
    y = Axis(layout.get("yaxis") or {}, [*_reach(traces, "y"), *levels], (height - BOTTOM, top))
    parts = [*_axes(x, y)]
    for each in shapes:
        across = f"M{LEFT} {y.at(each['y0'])}H{WIDTH - RIGHT}"
        line = f"M{x.at(each['x0'])} {top}V{height - BOTTOM}" if each in upright else across
        dash = "" if each["line"].get("dash") == "solid" else ' stroke-dasharray="3 3"'
        parts.append(f'<path d="{line}" stroke="currentColor" opacity=".5"{dash}/>')
    if (layout.get("xaxis") or {}).get("zeroline") and x.low <= 0 <= x.high:
        parts.append(f'<path d="M{x.at(0)} {top}V{height - BOTTOM}" stroke="currentColor" opacity=".5"/>')
    for trace in traces:
        parts += _trace(trace, x, y)
    for each in notes:
        parts.append(f'<text x="8" y="{y.at(each["y"])}">{_text(each["text"])}</text>')
    for number, (name, colour) in enumerate(named.items()):
        parts.append(f'<text x="{LEFT}" y="{TOP + 12 + LINE * number}" fill="{colour}">{_text(name)}</text>')
    style = 'style="max-width:100%;height:auto;font:13px system-ui,sans-serif" fill="currentColor" stroke="none"'
    head = f'<svg role="img" aria-label="{html.escape(label)}" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" {style}>'
    return Markup("\n".join([head, *parts, "</svg>"]))


def colours() -> list[str]:
    """The colours of series on a light ground."""
    return re.findall(r"--series-\d: (#\w+)", asset("base.css"))[:6]


def _axes(x: Axis, y: Axis) -> Iterator[str]:
    base, top = y.pixels
    yield f'<path d="M{LEFT} {top}V{base}H{WIDTH - RIGHT}" stroke="currentColor" fill="none"/>' if y.shown else ""
    for at, text in x.marked():
        yield f'<path d="M{at} {base}v5" stroke="currentColor"/>'
        yield f'<text x="{at}" y="{base + 18}" text-anchor="middle">{_text(text)}</text>'
    for at, text in y.marked() if y.shown else ():
        yield f'<path d="M{LEFT} {at}h-5" stroke="currentColor"/>'
        yield f'<text x="{LEFT - 8}" y="{at + 4}" text-anchor="end">{_text(text)}</text>'
    yield f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{base + 38}" text-anchor="middle">{_text(x.title)}</text>'
    if y.shown:
        middle = f"14 {(top + base) / 2}"
        yield f'<text transform="rotate(-90 {middle}) translate({middle})" text-anchor="middle">{_text(y.title)}</text>'


def _trace(trace: dict[str, Any], x: Axis, y: Axis) -> Iterator[str]:
    colour, mode = _colour(trace), trace.get("mode") or "markers"
    opacity = f' opacity="{trace["opacity"]}"' if trace.get("opacity") else ""
    points = [(x.at(a), y.at(b)) for a, b in zip(trace["x"], trace["y"], strict=True) if b is not None]
    if "lines" in mode:
        yield f'<path d="M{"L".join(f"{a} {b}" for a, b in points)}" fill="none" stroke="{colour}" stroke-width="2"{opacity}/>'
    for name, axis in (("error_x", x), ("error_y", y)):
        bars = trace.get(name) or {}
        for i, (up, down) in enumerate(zip(bars.get("array") or (), bars.get("arrayminus") or (), strict=True)):
            value, (a, b) = trace["xy"[name == "error_y"]][i], points[i]
            low, high = axis.at(value - down), axis.at(value + up)
            line = f"M{low} {b}H{high}" if axis is x else f"M{a} {low}V{high}"
            yield f'<path d="{line}" stroke="{colour}" stroke-width="2"/>'
    for a, b in points if "markers" in mode else ():
        yield f'<circle cx="{a}" cy="{b}" r="{"3.5" if len(points) < 200 else "1.5"}" fill="{colour}"{opacity}/>'


def _reach(traces: Sequence[dict[str, Any]], name: str) -> Iterator[float]:
    """The values of an axis with the ends of their intervals."""
    for trace in traces:
        values, bars = (
            np.array([each for each in trace[name] if each is not None], dtype=float),
            trace.get(f"error_{name}"),
        )
        yield from values.tolist()
        if bars:
            yield from (values + bars["array"]).tolist()
            yield from (values - bars["arrayminus"]).tolist()


def _colour(trace: dict[str, Any]) -> str:
    series, known = (trace.get("meta") or {}).get("series"), colours()
    return "currentColor" if series is None else known[series % len(known)]


def _words(text: str) -> str:
    """A text of Plotly, with lines and marks, as one line of words."""
    return html.unescape(re.sub(r"<[^>]*>", "; ", text))


def _text(text: str) -> str:
    return html.escape(_words(text))
