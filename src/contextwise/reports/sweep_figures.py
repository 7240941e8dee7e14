"""The figures of a sweep's page, as Plotly figures without colours.

Those that a control changes are laid out here and filled by the page's script, from the numbers that :func:`landscape_json` and
:func:`curves_json` give it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from contextwise.analysis.optimum import Landscape, Optimum
from contextwise.data.document_lengths import DocumentLengths, token_count
from contextwise.reports.figures import SYMBOLS, figure_layout
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
    layout = figure_layout(yaxis={"title": {"text": "best-context loss, nats per token"}, "nticks": 7})
    return go.Figure(
        [], layout.update(xaxis=_context_axis(contexts, "training context, tokens"))
    ).to_plotly_json()


def curves_figure(curves: Sequence[CurveLine], unit: str) -> dict[str, Any]:
    """Context curves; the traces come from the script."""
    longest = max(curve.bins[-1][1] for curve in curves)
    doublings = range(3, longest.bit_length() + 1)
    powers = [2**power for power in doublings[:: 1 if len(doublings) <= MOST_TICKS else 2]] or [longest]
    axis = _context_axis(powers, "visible tokens", high=longest)
    left, right = np.log10(min(SHORTEST_SHOWN / 2, longest / 8)), axis["range"][1]
    axis["range"] = [left, right + 0.08 * (right - left)]
    layout = figure_layout(
        yaxis={"title": {"text": f"loss, {unit}"}, "nticks": 7}, xaxis=axis, showlegend=False
    )
    return go.Figure([], layout).to_plotly_json()


def context_figure(landscape: Landscape, series: dict[str, int]) -> dict[str, Any]:
    """Optimal context against the budget: a smoothed line for each size, and the unsmoothed optima, faint."""
    budgets = landscape.budgets.tolist()
    traces: list[go.Scatter] = []
    for size, number in series.items():
        shift = 2.0 ** (APART * (number - (len(series) - 1) / 2))
        shared = {"name": plain(size), "legendgroup": size, "meta": {"series": number}}
        smoothed = landscape.contexts[size]
        traces.append(
            go.Scatter(
                x=budgets,
                y=[None if context is None else context * shift for context in smoothed],
                customdata=[_words(landscape, step, smoothed[step]) for step in range(len(budgets))],
                mode="lines",
                line={"width": 2.5, "shape": "hvh"},
                hovertemplate="%{fullData.name}<br>%{customdata}<extra></extra>",
                **shared,
            )
        )
        decided = [
            (step, best)
            for step, some in enumerate(landscape.optima)
            if (best := some.get(size)) is not None and best.decided
        ]
        traces.append(_unsmoothed(landscape, decided, shift, shared))
    contexts = [context for some in landscape.cells for context in {cell.context for cell in some}]
    layout = figure_layout(
        xaxis=_budget_axis(landscape),
        yaxis=_context_axis(sorted(set(contexts)), "optimal context, tokens"),
    )
    return go.Figure(traces, layout).to_plotly_json()


def _unsmoothed(
    landscape: Landscape, decided: list[tuple[int, Optimum]], shift: float, shared: dict[str, Any]
) -> go.Scatter:
    """The optima as they were measured; a triangle where the grid ends."""
    symbols = {"": SYMBOLS[0], "longest": "triangle-up", "shortest": "triangle-down"}
    return go.Scatter(
        x=[float(landscape.budgets[step]) for step, _ in decided],
        y=[best.cell.context * shift for _, best in decided],
        customdata=[_words(landscape, step, best.cell.context) for step, best in decided],
        mode="markers",
        marker={"size": 6, "symbol": [symbols[best.edge] for _, best in decided]},
        opacity=0.45,
        showlegend=False,
        hovertemplate="%{fullData.name}, not smoothed<br>%{customdata}<extra></extra>",
        **shared,
    )


def pair_figure(landscape: Landscape, series: dict[str, int]) -> dict[str, Any]:
    """The optimal pair against the budget: the height is its context, the colour and the symbol its size."""
    budgets = landscape.budgets.tolist()
    heights = [None if pair is None else pair[1] for pair in landscape.pairs]
    traces = [
        go.Scatter(
            x=budgets,
            y=heights,
            mode="lines",
            line={"width": 1, "shape": "hvh"},
            hoverinfo="skip",
            showlegend=False,
            meta={"series": None},
        )
    ]
    for size, number in series.items():
        own = [pair[1] if pair is not None and pair[0] == size else None for pair in landscape.pairs]
        traces.append(
            go.Scatter(
                x=budgets,
                y=own,
                customdata=[_words(landscape, step, context) for step, context in enumerate(own)],
                mode="lines+markers",
                line={"width": 3, "shape": "hvh"},
                marker={"size": 6, "symbol": SYMBOLS[number % len(SYMBOLS)]},
                name=plain(size),
                showlegend=True,
                hovertemplate="%{fullData.name}<br>%{customdata}<extra></extra>",
                meta={"series": number},
            )
        )
    contexts = [context for some in landscape.cells for context in {cell.context for cell in some}]
    layout = figure_layout(
        xaxis=_budget_axis(landscape),
        yaxis=_context_axis(sorted(set(contexts)), "context of the optimal pair, tokens"),
        height=380,
    )
    return go.Figure(traces, layout).to_plotly_json()


def lengths_figure(meter: DocumentLengths) -> dict[str, Any]:
    """Shares of documents and tokens by length, and the share of tokens with at least this many before them."""
    rows = [row for row in meter.bins() if row.shortest >= SHORTEST_SHOWN or row.documents]
    names = [token_count(row.shortest) for row in rows]
    spans = [f"{token_count(row.shortest)} to {token_count(row.longest + 1)}" for row in rows]
    bars = {"documents": meter.documents, "tokens": meter.tokens}
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
        for number, (kind, total) in enumerate(bars.items())
    ]
    traces.append(
        go.Scatter(
            x=names,
            y=[row.preceded for row in rows],
            name="tokens with l before them",
            mode="lines+markers",
            hovertemplate="%{y:.1%} of the tokens have %{x} or more before them<extra></extra>",
            meta={"series": 2},
        )
    )
    layout = figure_layout(
        xaxis={"type": "category", "title": {"text": "length l, tokens"}},
        yaxis={"title": {"text": "share"}, "tickformat": ".0%", "range": [0, 1.02]},
        barmode="group",
        height=380,
    )
    return go.Figure(traces, layout).to_plotly_json()


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


def empty_figure() -> dict[str, Any]:
    """A figure that the page's script fills in."""
    return go.Figure([], figure_layout()).to_plotly_json()


def _words(landscape: Landscape, step: int, context: int | None) -> str:
    return (
        ""
        if context is None
        else f"{token_count(context)} at {budget_words(landscape.unit, landscape.budgets[step])}"
    )


def _context_axis(
    contexts: Sequence[int], title: str, low: float | None = None, high: float | None = None
) -> dict[str, Any]:
    """A logarithmic axis with a tick at each context."""
    limits = np.log10([low or min(contexts) / 2**0.5, high or max(contexts) * 2**0.5])
    return {
        "type": "log",
        "title": {"text": title},
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
        "title": {"text": name.get(landscape.unit, f"training {UNIT_NAMES[landscape.unit]}")},
        "range": [budgets[0] - room, budgets[1] + room],
        "exponentformat": "power" if landscape.unit == "flops" else "SI",
        "dtick": 1 if budgets[1] - budgets[0] > DECADES else "D2",
    }
