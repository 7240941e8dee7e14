"""The page on attention: tokens coloured by what they receive, models side by side, and the context lens.

Source: ContextLM, Section 4.3 and Figure 5; the lens has no counterpart there.
"""

import base64
import shlex
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go

from contextwise.base.errors import ConfigError
from contextwise.base.files import atomic_write
from contextwise.evaluation.measures.attention import ModelReading, Reading
from contextwise.reports.attention_tables import csv_files, lens_words, loss_words, shown
from contextwise.reports.rendering import render

DIGITS = 5
"""Of the numbers on the page."""
NAMED_CHUNKS = 40
"""Up to so many chunks have their text at the axis."""
CROPPED = 16


def write_attention_page(reading: Reading, path: Path, command: list[str] | None = None) -> None:
    """Write the page.

    Args:
        command: the words that made it, to be shown.

    Raises:
        ConfigError: ``path`` is a folder.
        DataError: the file cannot be written.
    """
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; give the name of a file for the page")
    names = [model.name for model in reading.models]
    figures = {"chunks": _bars()}
    if any(model.predictor for model in reading.models):
        figures["predictor"] = _bars()
    content = {
        "title": f"What {_listed(names)} attend{'s' * (len(names) == 1)} to",
        "subtitle": _subtitle(reading),
        "verdict": [*loss_words(reading), *lens_words(reading)],
        "models": [
            {
                "name": model.name,
                "facts": _facts(model),
                "lens": model.lens is not None,
                "chunk": model.chunk_size,
            }
            for model in reading.models
        ],
        "chunk_size": reading.chunk_size,
        "tokens": _table(reading),
        "csv": _data_uri(csv_files(reading)["tokens"]),
        "command": shlex.join(command) if command else None,
        "version": metadata.version("contextwise"),
    }
    page = render("attention", content, figures, {"reading": page_data(reading)})
    atomic_write(path, page, "the page")


def write_csv(reading: Reading, folder: Path) -> None:
    """Write ``tokens.csv`` and ``attention.csv`` into a folder.

    Raises:
        ConfigError: ``folder`` is a file.
        DataError: a file cannot be written.
    """
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file; give a folder for the CSV files with --csv")
    for name, text in csv_files(reading).items():
        atomic_write(folder / f"{name}.csv", text, "the CSV file")


def page_data(reading: Reading) -> dict[str, Any]:
    """What the page's script draws from: sums over queries for each layer and head, and losses."""
    return {
        "pieces": reading.pieces,
        "chunkSize": reading.chunk_size,
        "hasStart": reading.has_start,
        "models": [
            {
                "name": model.name,
                "layers": [_rounded(layer) for layer in model.layers],
                "predictor": [_rounded(layer) for layer in model.predictor],
                "predictorChunk": model.chunk_size,
                "nats": _rounded(model.nats),
                "without": None if model.nats_without is None else _rounded(model.nats_without),
            }
            for model in reading.models
        ],
        "namedChunks": NAMED_CHUNKS,
        "cropped": CROPPED,
    }


def _listed(names: list[str]) -> str:
    return " and ".join([*([", ".join(names[:-1])] if names[1:] else []), names[-1]])


def _rounded(values: np.ndarray) -> Any:
    if values.ndim > 1:
        return [_rounded(row) for row in values]
    return [None if np.isnan(value) else float(f"{value:.{DIGITS}g}") for value in values]


def _bars() -> dict[str, Any]:
    """A bar chart whose bars the page's script fills in."""
    layout = go.Layout(
        height=380,
        margin={"l": 56, "r": 12, "t": 8, "b": 52},
        barmode="group",
        bargap=0.25,
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        hovermode="closest",
        xaxis={"type": "category", "title": {"text": "chunk"}},
        yaxis={"title": {"text": "attention received"}, "nticks": 6},
    )
    return go.Figure([], layout).to_plotly_json()


def _subtitle(reading: Reading) -> str:
    start = f", behind {reading.pieces[0]}" if reading.has_start else ""
    return f"A text of {len(reading.ids) - reading.has_start:,} tokens{start}, in chunks of {reading.chunk_size}."


def _facts(model: ModelReading) -> str:
    heads = sorted({layer.shape[0] for layer in model.layers})
    parts = [
        f"{model.parameters:,} parameters",
        f"{len(model.layers)} layers",
        f"{'–'.join(map(str, heads))} heads",
    ]
    if model.chunk_size is not None:
        parts.append(f"predicts the context of chunks of {model.chunk_size}")
    return ", ".join(parts)


def _table(reading: Reading) -> dict[str, Any]:
    """Every token with its numbers, which the page without its script shows too."""
    head, columns = ["token"], []
    head.append("chunk")
    for model in reading.models:
        head += [f"received, {model.name}", f"loss, {model.name}"]
        columns += [(model.received(), "{:.4f}"), (model.nats, "{:.3f}")]
        if model.lens is not None:
            head.append(f"lens, {model.name}")
            columns.append((model.lens, "{:+.3f}"))
    rows = []
    for place, piece in enumerate(reading.pieces):
        numbers = ["" if np.isnan(values[place]) else form.format(values[place]) for values, form in columns]
        cells = [f"{place}: {shown(piece)}", str(place // reading.chunk_size), *numbers]
        rows.append({"series": None, "cells": [(cell, "") for cell in cells]})
    caption = (
        "Attention received: mean over layers, heads and the queries that see a token. Loss and lens in nats."
    )
    return {"caption": caption, "head": head, "rows": rows, "best": None}


def _data_uri(text: str) -> str:
    return f"data:text/csv;base64,{base64.b64encode(text.encode()).decode()}"
