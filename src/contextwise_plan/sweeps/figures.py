"""The figures of a sweep's page, as Plotly figures without colours, and its results in sentences.

Those that a control changes are laid out here and filled by the page's script, from the numbers of
:func:`landscape_json`.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from contextwise.data import in_tokens, token_count
from contextwise.report import count, counted, figure
from contextwise.reports.page import SYMBOLS, plain, scatter
from contextwise_plan.optimum import Cell, Landscape, Optimum, contexts_listed, one_seed_note
from contextwise_plan.tracks import budget_words, power_of_ten

UNIT_NAMES = {"flops": "FLOPs", "seconds": "training time", "tokens": "tokens"}
APART = 0.06  # distance, in doublings, between lines at the same context, so that none hides another
DECADES = 2.0  # of a budget's axis; a longer one has ticks at the powers of ten alone, which a phone has room for


def loss_figure(contexts: Sequence[int]) -> dict[str, Any]:
    """Best-context loss against training context; the traces come from the script."""
    axis = _context_axis(contexts, "training context, tokens")
    return figure(xaxis=axis, yaxis={"title": "best-context loss, nats per token", "nticks": 7})


def context_figure(landscape: Landscape, series: dict[str, int]) -> dict[str, Any]:
    """Optimal context against the budget: a smoothed line for each size, and the unsmoothed optima, faint.

    A triangle is an optimum at the end of the grid; a hollow symbol is one that the sweep does not show to be best.
    """
    symbols = {"": SYMBOLS[0], "longest": "triangle-up", "shortest": "triangle-down"}

    def symbol(best: Optimum) -> str:
        return symbols[best.edge] + "-open" * (not best.edge and not best.shown)

    traces: list[go.Scatter] = []
    for size, number in series.items():
        shift = 2.0 ** (APART * (number - (len(series) - 1) / 2))
        shared = {"name": plain(size), "legendgroup": size}
        smoothed = landscape.contexts[size]
        y = [None if context is None else context * shift for context in smoothed]
        line, words = {"width": 2.5, "shape": "hvh"}, _words(landscape, smoothed)
        hover = "%{fullData.name}<br>%{customdata}"
        traces.append(scatter(landscape.budgets, y, number, hover, mode="lines", line=line, customdata=words, **shared))
        optima = [some.get(size) for some in landscape.optima]
        decided = {step: best for step, best in enumerate(optima) if best is not None and best.decided}
        words = _words(landscape, [best.cell.context if best else None for best in optima])
        x, y = landscape.budgets[list(decided)], [best.cell.context * shift for best in decided.values()]
        marker = {"size": 6, "symbol": [symbol(best) for best in decided.values()]}
        style = {"mode": "markers", "marker": marker, "opacity": 0.45, "showlegend": False, **shared}
        hover, words = "%{fullData.name}, not smoothed<br>%{customdata}", [words[step] for step in decided]
        traces.append(scatter(x, y, number, hover, customdata=words, **style))
    axis = _context_axis(_measured_contexts(landscape), "optimal context, tokens")
    return figure(traces, xaxis=_budget_axis(landscape), yaxis=axis)


def landscape_json(
    landscape: Landscape, planned: dict[str, list[int]], series: dict[str, int], said: Sequence[str] = ()
) -> dict[str, Any]:
    """The data that the script draws at each step of the slider; its sentences without those ``said`` above the figure."""
    words = [budget_words(landscape.unit, budget) for budget in landscape.budgets]
    sentences = [
        [
            each
            for each in sentences_at(landscape, step, planned)
            if not {each, f"{at}: {each}", f"{at}, {each}"} & {*said}
        ]
        for step, at in enumerate(f"At {each}" for each in words)
    ]
    cells = []
    for some in landscape.cells:
        ordered = sorted(some, key=lambda cell: (series[cell.size], cell.context))
        drawn = ("parameters", "context", "loss", "half_width", "runs", "documents")
        cells.append([[series[cell.size], *(getattr(cell, name) for name in drawn)] for cell in ordered])
    return {
        "unit": landscape.unit,
        "label": UNIT_NAMES[landscape.unit],
        "start": landscape.last_decided,
        "window": window_words(landscape),
        "budgets": landscape.budgets.tolist(),
        "words": words,
        "sentences": sentences,
        "cells": cells,
        "circles": [
            [[series[size], best.cell.context, best.cell.loss] for size, best in some.items() if best.shown]
            for some in landscape.optima
        ],
        "overall": [
            [series[best.cell.size], best.cell.context] if best is not None and best.shown else None
            for best in landscape.overall
        ],
        "context": context_figure(landscape, series),
    }


def _words(landscape: Landscape, contexts: Sequence[int | None]) -> list[str]:
    """The context at each step with its budget; empty where there is none."""
    return [
        "" if context is None else f"{token_count(context)} at {budget_words(landscape.unit, budget)}"
        for context, budget in zip(contexts, landscape.budgets, strict=True)
    ]


def _measured_contexts(landscape: Landscape) -> list[int]:
    return sorted({cell.context for some in landscape.cells for cell in some})


def _context_axis(contexts: Sequence[int], title: str) -> dict[str, Any]:
    """A logarithmic axis with a tick at each context."""
    limits = np.log10([min(contexts) / 2**0.5, max(contexts) * 2**0.5]).tolist()
    ticks = {"tickmode": "array", "tickvals": list(contexts), "ticktext": list(map(token_count, contexts))}
    return {"type": "log", "title": title, **ticks, "range": limits, "minor": {"ticks": ""}}


def _budget_axis(landscape: Landscape) -> dict[str, Any]:
    budgets = np.log10(landscape.budgets[[0, -1]])
    room = 0.03 * (budgets[1] - budgets[0]) or 0.1
    steps = (1,) if budgets[1] - budgets[0] > DECADES else (1, 2, 5)
    powers = range(math.floor(budgets[0]) - 1, math.ceil(budgets[1]) + 1)
    ticks = [step * 10.0**power for power in powers for step in steps]
    shown = power_of_ten if landscape.unit == "flops" else count
    return {
        "type": "log",
        "title": "training time, seconds" if landscape.unit == "seconds" else f"training {UNIT_NAMES[landscape.unit]}",
        "range": [budgets[0] - room, budgets[1] + room],
        "tickmode": "array",
        "tickvals": ticks,
        "ticktext": [shown(tick) for tick in ticks],
    }


def sentences_at(landscape: Landscape, step: int, planned: dict[str, list[int]]) -> list[str]:
    """The overall optimum at one budget, that of each size, and what was not measured."""
    cells, optima = landscape.cells[step], landscape.optima[step]
    sentences = [overall_sentence(landscape.overall[step])]
    sentences += [optima[size].sentence() for size in planned if size in optima]
    sentences += one_seed_note(optimum for optimum in optima.values() if optimum.decided)
    measured, missing = {(cell.size, cell.context) for cell in cells}, []
    for size, contexts in planned.items():
        lacking = [context for context in contexts if (size, context) not in measured]
        missing += [f"{size} with {contexts_listed(lacking)}"] if lacking else []
    if missing:
        sentences.append(f"Not measured at this budget, and not drawn: {'; '.join(missing)}.")
    return [sentence for sentence in sentences if sentence]


def overall_sentence(best: Optimum | None) -> str:
    """What the points say of the best size and context at a budget."""
    if best is None:
        return "No size was measured with two contexts at this budget, so there is no optimum."
    pair = f"{best.cell.size} with a context of {in_tokens(best.cell.context)}"
    if best.shown:
        return f"The lowest loss of all sizes is that of {pair}, {_loss(best.cell)}."
    reason = "not all that is next to it was measured at this budget"
    if best.decided and best.edge:
        reason = f"{token_count(best.cell.context)} is the {best.edge} context that was tried"
    elif best.decided:
        reason = f"the sweep does not show which context of {best.cell.size} is best"
    return f"The lowest loss at this budget is that of {pair}, {_loss(best.cell)}, but no overall optimum is drawn: {reason}."


def _loss(cell: Cell) -> str:
    half = "" if cell.half_width is None else f" ± {cell.half_width:.4f}"
    documents = f" on {counted(cell.documents, 'held-out document')}" if cell.documents else ""
    seeds = f", {cell.runs} seeds" if cell.runs > 1 else ", one seed"
    return f"{cell.loss:.4f}{half} nats per token{documents}{seeds}"


def window_words(landscape: Landscape) -> str:
    """The window of the smoothing, in words."""
    if len(landscape.budgets) < 2:
        return "one budget"
    ratio = (landscape.budgets[1] / landscape.budgets[0]) ** landscape.reach
    steps = f"{2 * landscape.reach + 1} of {len(landscape.budgets)} steps"
    return f"{steps}, from the budget divided by {ratio:.2f} to {ratio:.2f} times it"
