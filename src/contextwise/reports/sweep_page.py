"""The page of a sweep: how much training context pays at which budget, to be explored from one HTML file."""

import shlex
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from contextwise.analysis.optimum import Landscape
from contextwise.base.errors import ConfigError
from contextwise.base.files import atomic_write
from contextwise.data.document_lengths import in_tokens, token_count
from contextwise.evaluation.tables import NOT_KNOWN, count
from contextwise.reports.rendering import render
from contextwise.reports.sweep_figures import (
    curves_figure,
    curves_json,
    landscape_json,
    lengths_figure,
    loss_figure,
)
from contextwise.reports.sweep_folder import SweepData, read_sweep
from contextwise.reports.sweep_tables import CURVE_HEAD, LOSS_HEAD, sweep_tables, write_tables
from contextwise.reports.sweep_words import (
    budget_words,
    corpus_sentences,
    missing_sentences,
    sweep_verdict,
    window_words,
)

SHOWN_BUDGETS = 6
DYNAMIC = ("best-context-loss", "curves")
"""Tables that the page's script writes, of what its figure shows."""


def write_sweep_page(
    folder: Path, path: Path, *, others: Sequence[Path] = (), tables: Path | None = None
) -> list[Path]:
    """Write the page of a sweep, and its tables.

    Args:
        folder: the sweep's.
        path: the page.
        others: runs or folders of measured curves whose contextwise curves are shown as well.
        tables: a folder for the tables as CSV files, if wanted.

    Returns:
        The CSV files.

    Raises:
        CheckpointError: there is no sweep.
        ConfigError: nothing was measured yet; ``path`` is a folder; curves cannot be compared.
        DataError: a file is damaged, or cannot be written.
    """
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; give the name of a file for the page")
    data = read_sweep(folder, others)
    series = {size: number for number, size in enumerate(data.sizes)}
    contexts = sorted({context for some in data.planned.values() for context in some})
    figures = {"loss": loss_figure(contexts)}
    if data.curves:
        figures["curves"] = curves_figure(data.curves, data.loss_unit)
    if data.meter is not None:
        figures["lengths"] = lengths_figure(data.meter)
    static = {name: text for name, text in sweep_tables(data).items() if name not in DYNAMIC}
    sent = {
        "sizes": list(data.sizes),
        "contexts": {str(context): token_count(context) for context in contexts},
        "landscapes": [landscape_json(found, data.planned, series) for found in data.landscapes],
        "curves": curves_json(data.curves),
        "curvesUnit": data.loss_unit,
        "tables": static,
        "heads": {"best-context-loss": LOSS_HEAD, "curves": [*CURVE_HEAD, "unit"]},
    }
    page = render("sweep", _content(data, contexts, others), figures, {"sweep": sent})
    atomic_write(path, page, "the report")
    return write_tables(data, tables) if tables is not None else []


def _content(data: SweepData, contexts: list[int], others: Sequence[Path]) -> dict[str, Any]:
    return {
        "title": f"Sweep {data.name}",
        "subtitle": (
            f"{_counted(len(data.states), 'run')}: {_counted(len(data.sizes), 'model size')}, "
            f"{_counted(len(contexts), 'training context')} ({' to '.join(map(token_count, _ends(contexts)))} tokens); "
            f"corpus {data.corpus}."
        ),
        "verdict": sweep_verdict(data),
        "missing": missing_sentences(data),
        "failures": [
            (state.run.id, state.failure.reason) for state in data.states if state.failure is not None
        ],
        "optima": optima_table(data, data.landscapes[0]),
        "window": window_words(data.landscapes[0]),
        "has_curves": bool(data.curves),
        "curves_unit": data.loss_unit,
        "corpus": data.corpus,
        "lengths": corpus_sentences(data.meter, contexts) if data.meter is not None else [],
        "no_corpus": data.no_corpus,
        "runs": runs_table(data),
        "recipe": data.recipe,
        "commands": [
            shlex.join(["contextwise", "sweep", str(data.path / "sweep.yaml"), "--out", str(data.path)]),
            shlex.join(["contextwise", "report", str(data.path), *map(str, others)]),
        ],
        "version": metadata.version("contextwise"),
    }


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _ends(contexts: list[int]) -> list[int]:
    return sorted({contexts[0], contexts[-1]})


def optima_table(data: SweepData, found: Landscape) -> dict[str, Any]:
    """Optimal contexts at some budgets, for readers without JavaScript and for quotation."""
    steps = np.unique(np.linspace(0, len(found.budgets) - 1, SHOWN_BUDGETS).round().astype(int))
    rows = []
    for step in steps:
        cells: list[tuple[str, str]] = [(budget_words(found.unit, found.budgets[step]), "")]
        for size in data.sizes:
            best = found.optima[step].get(size)
            if best is None:
                cells.append((NOT_KNOWN, ""))
            else:
                context = in_tokens(best.cell.context)
                cells.append((context if best.told else f"({context})", f"{best.cell.loss:.4f}"))
        overall = found.overall[step]
        told = overall is not None and overall.told
        cells.append(
            (f"{overall.cell.size}, {in_tokens(overall.cell.context)}", "")
            if overall and told
            else (NOT_KNOWN, "")
        )
        rows.append({"series": None, "cells": cells})
    return {
        "caption": "Optimal training context at some budgets, with its best-context loss in nats per token; in brackets where "
        "a context beside it was not measured at that budget.",
        "head": ["budget", *data.sizes, "overall optimum"],
        "rows": rows,
        "best": None,
    }


def runs_table(data: SweepData) -> dict[str, Any]:
    """Every run of the grid: its state, and the last loss that it measured."""
    last = {point.run: point for point in data.points}
    rows = []
    for state in data.states:
        run, point = state.run, last.get(state.run.id)
        loss = (NOT_KNOWN, "") if point is None else (f"{point.loss:.4f}", _error(point.standard_error))
        cells = [
            (run.size, f"{count(run.parameters)} parameters"),
            (in_tokens(run.context), f"seed {run.seed}"),
            (state.state, ""),
            (f"{count(point.tokens if point else 0)}", f"of {count(run.tokens)}"),
            loss,
            (run.id, ""),
        ]
        rows.append({"series": list(data.sizes).index(run.size), "cells": cells})
    return {
        "caption": "Best-context loss at the last measurement of each run: the mean over the last tenth of its training "
        "context, nats per token, with its standard error over documents.",
        "head": ["size", "context", "state", "trained on, tokens", "loss", "run"],
        "rows": rows,
        "best": None,
    }


def _error(value: float | None) -> str:
    return "" if value is None else f"± {value:.4f}"
