"""The figures of a sweep's page, as Plotly figures without colours.

Those that a control changes are laid out here and filled by the page's script, from the numbers that :func:`landscape_json` and
:func:`curves_json` give it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from contextwise.analysis.optimum import Landscape
from contextwise.data.document_lengths import DocumentLengths, token_count
from contextwise.reports.figures import SYMBOLS, figure, scatter
from contextwise.reports.page import plain
from contextwise.reports.sweep_data import CurveLine
from contextwise.reports.sweep_findings import UNIT_NAMES, budget_words, sentences_at, window_words

APART = 0.06
"""Distance, in doublings, between lines at the same context, so that none hides another."""
DECADES = 2.0
"""Of a budget's axis; a longer one has ticks at the powers of ten alone, which a phone has room for."""
MOST_TICKS = 10
SHORTEST_SHOWN = 16
"""Visible tokens: the steep start of the curves does not set the vertical axis."""


def loss_figure(contexts: Sequence[int]) -> dict[str, Any]:
    """Best-context loss against training context; the traces come from the script."""
    axis = _context_axis(contexts, "training context, tokens")
    return figure(xaxis=axis, yaxis={"title": "best-context loss, nats per token", "nticks": 7})


def curves_figure(curves: Sequence[CurveLine], unit: str) -> dict[str, Any]:
    """Context curves; the traces come from the script."""
    longest = max(curve.bins[-1][1] for curve in curves)
    doublings = range(3, longest.bit_length() + 1)
    powers = [2**power for power in doublings[:: 1 if len(doublings) <= MOST_TICKS else 2]] or [longest]
    axis = _context_axis(powers, "visible tokens", high=longest)
    left, right = np.log10(min(SHORTEST_SHOWN / 2, longest / 8)), axis["range"][1]
    axis["range"] = [left, right + 0.08 * (right - left)]
    return figure(xaxis=axis, yaxis={"title": f"loss, {unit}", "nticks": 7}, showlegend=False)


def context_figure(landscape: Landscape, series: dict[str, int]) -> dict[str, Any]:
    """Optimal context against the budget: a smoothed line for each size, and the unsmoothed optima, faint.

    A triangle is an optimum at the end of the grid.
    """
    symbols = {"": SYMBOLS[0], "longest": "triangle-up", "shortest": "triangle-down"}
    traces: list[go.Scatter] = []
    for size, number in series.items():
        shift = 2.0 ** (APART * (number - (len(series) - 1) / 2))
        shared = {"name": plain(size), "legendgroup": size}
        smoothed = landscape.contexts[size]
        y = [None if context is None else context * shift for context in smoothed]
        line, words = {"width": 2.5, "shape": "hvh"}, _words(landscape, smoothed)
        hover = "%{fullData.name}<br>%{customdata}"
        traces.append(
            scatter(landscape.budgets, y, number, hover, mode="lines", line=line, customdata=words, **shared)
        )
        optima = [some.get(size) for some in landscape.optima]
        decided = {step: best for step, best in enumerate(optima) if best is not None and best.decided}
        words = _words(landscape, [best.cell.context if best else None for best in optima])
        x, y = landscape.budgets[list(decided)], [best.cell.context * shift for best in decided.values()]
        marker = {"size": 6, "symbol": [symbols[best.edge] for best in decided.values()]}
        style = {"mode": "markers", "marker": marker, "opacity": 0.45, "showlegend": False, **shared}
        hover, words = "%{fullData.name}, not smoothed<br>%{customdata}", [words[step] for step in decided]
        traces.append(scatter(x, y, number, hover, customdata=words, **style))
    axis = _context_axis(_measured_contexts(landscape), "optimal context, tokens")
    return figure(traces, xaxis=_budget_axis(landscape), yaxis=axis)


def pair_figure(landscape: Landscape, series: dict[str, int]) -> dict[str, Any]:
    """The optimal pair against the budget: the height is its context, the colour and the symbol its size."""
    budgets, pairs = landscape.budgets, landscape.pairs
    style: dict[str, Any] = {"mode": "lines", "line": {"width": 1, "shape": "hvh"}, "showlegend": False}
    traces = [scatter(budgets, [pair and pair[1] for pair in pairs], None, **style)]
    for size, number in series.items():
        own = [pair[1] if pair is not None and pair[0] == size else None for pair in pairs]
        marker = {"size": 6, "symbol": SYMBOLS[number % len(SYMBOLS)]}
        style = {"mode": "lines+markers", "line": {"width": 3, "shape": "hvh"}, "marker": marker}
        style |= {"customdata": _words(landscape, own), "name": plain(size), "showlegend": True}
        traces.append(scatter(budgets, own, number, "%{fullData.name}<br>%{customdata}", **style))
    axis = _context_axis(_measured_contexts(landscape), "context of the optimal pair, tokens")
    return figure(traces, xaxis=_budget_axis(landscape), yaxis=axis, height=380)


def lengths_figure(meter: DocumentLengths) -> dict[str, Any]:
    """Shares of documents and tokens by length, and the share of tokens with at least this many before them."""
    rows = [row for row in meter.bins() if row.shortest >= SHORTEST_SHOWN or row.documents]
    names = [token_count(row.shortest) for row in rows]
    spans = [f"{token_count(row.shortest)} to {token_count(row.longest + 1)}" for row in rows]
    traces: list[Any] = [
        go.Bar(
            x=names,
            y=[getattr(row, kind) / total for row in rows],
            customdata=spans,
            name=f"{kind} of l to 2l",
            opacity=0.55,
            hovertemplate="%{customdata} tokens: %{y:.1%} of the " + kind + "<extra></extra>",
            meta={"series": number},
        )
        for number, (kind, total) in enumerate({"documents": meter.documents, "tokens": meter.tokens}.items())
    ]
    hover, preceded = "%{y:.1%} of the tokens have %{x} or more before them", [row.preceded for row in rows]
    style = {"name": "tokens with l before them", "mode": "lines+markers"}
    traces.append(scatter(names, preceded, 2, hover, **style))
    xaxis, yaxis = {"type": "category", "title": "length l, tokens"}, {"title": "share", "tickformat": ".0%"}
    return figure(traces, xaxis=xaxis, yaxis={**yaxis, "range": [0, 1.02]}, barmode="group", height=380)


def landscape_json(
    landscape: Landscape, planned: dict[str, list[int]], series: dict[str, int]
) -> dict[str, Any]:
    """The data that the script draws at each step of the slider."""
    return {
        "unit": landscape.unit,
        "label": UNIT_NAMES[landscape.unit],
        "start": landscape.last_decided,
        "window": window_words(landscape),
        "budgets": landscape.budgets.tolist(),
        "words": [budget_words(landscape.unit, budget) for budget in landscape.budgets],
        "sentences": [sentences_at(landscape, step, planned) for step in range(len(landscape.budgets))],
        "cells": [
            [
                [series[c.size], c.parameters, c.context, c.loss, c.standard_error, c.runs]
                for c in sorted(some, key=lambda c: (series[c.size], c.context))
            ]
            for some in landscape.cells
        ],
        "circles": [
            [[series[size], best.cell.context, best.cell.loss] for size, best in some.items() if best.decided]
            for some in landscape.optima
        ],
        "overall": [
            [series[best.cell.size], best.cell.context] if best is not None and best.decided else None
            for best in landscape.overall
        ],
        "context": context_figure(landscape, series),
        "pair": pair_figure(landscape, series),
    }


def curves_json(curves: Sequence[CurveLine]) -> list[dict[str, Any]]:
    """The curves with the place of each bin on a logarithmic axis: the geometric mean of its ends."""
    return [
        {
            "label": curve.label,
            "group": curve.group,
            "series": curve.series,
            "context": curve.context,
            "x": np.sqrt([low * high for low, high in curve.bins]).tolist(),
            "bins": curve.bins,
            "losses": curve.losses,
            "intervals": curve.intervals,
            "spent": curve.spent,
        }
        for curve in curves
    ]


def _words(landscape: Landscape, contexts: Sequence[int | None]) -> list[str]:
    """The context at each step with its budget; empty where there is none."""
    return [
        "" if context is None else f"{token_count(context)} at {budget_words(landscape.unit, budget)}"
        for context, budget in zip(contexts, landscape.budgets, strict=True)
    ]


def _measured_contexts(landscape: Landscape) -> list[int]:
    return sorted({cell.context for some in landscape.cells for cell in some})


def _context_axis(
    contexts: Sequence[int], title: str, low: float | None = None, high: float | None = None
) -> dict[str, Any]:
    """A logarithmic axis with a tick at each context."""
    limits = np.log10([low or min(contexts) / 2**0.5, high or max(contexts) * 2**0.5])
    return {
        "type": "log",
        "title": title,
        "tickmode": "array",
        "tickvals": list(contexts),
        "ticktext": [token_count(context) for context in contexts],
        "range": limits.tolist(),
        "minor": {"ticks": ""},
    }


def _budget_axis(landscape: Landscape) -> dict[str, Any]:
    name = {"seconds": "training time, seconds", "gpu_hours": "GPU-hours of training"}
    budgets = np.log10(landscape.budgets[[0, -1]])
    room = 0.03 * (budgets[1] - budgets[0]) or 0.1
    return {
        "type": "log",
        "title": name.get(landscape.unit, f"training {UNIT_NAMES[landscape.unit]}"),
        "range": [budgets[0] - room, budgets[1] + room],
        "exponentformat": "power" if landscape.unit == "flops" else "SI",
        "dtick": 1 if budgets[1] - budgets[0] > DECADES else "D2",
    }
