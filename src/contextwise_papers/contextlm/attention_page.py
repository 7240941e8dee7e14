"""Attention received by the tokens and chunks of a text: table, plots, page and JSON (ContextLM, Section 4.3, Figure 5)."""

import shlex
from pathlib import Path
from typing import Any

import numpy as np

from contextwise.base.estimates import as_json, listed
from contextwise.base.tables import Table
from contextwise.reports.page import Page, Section, commands
from contextwise_papers.contextlm.attention import Reading
from contextwise_papers.page import sections_of
from contextwise_papers.tables import Plot, point, table_of

MEAN = "mean over layers, heads and the queries that see a token"


def write_attention_page(reading: Reading, path: Path, command: list[str] | None = None) -> None:
    """Write the page (:meth:`~contextwise.reports.page.Page.write`); ``command``: the command line that made it."""
    attention = received(reading)
    sections = [
        *sections_of([], drawn(reading, attention, next(iter(attention)))),
        Section("Attention received by each chunk", [received_table(reading)]),
        Section("How it was made", [commands([shlex.join(command)])] if command else []),
    ]
    title = f"What {listed(list(attention))} attend{'s' * (len(attention) == 1)} to"
    start = f", behind {reading.pieces[0]}" if reading.has_start else ""
    subtitle = f"A text of {len(reading.ids) - reading.has_start:,} tokens{start}, in chunks of {reading.chunk_size}."
    Page(title, sections, subtitle, source=__file__).write(path)


def received(reading: Reading) -> dict[str, np.ndarray]:
    """(1, T) by name of a model: the attention that each token receives."""
    return {model.name: model.received()[None] for model in reading.models}


def received_table(reading: Reading) -> Table:
    """Attention received by each chunk, and how much more than in the first model."""
    return chunks_table(reading, received(reading), reading.models[0].name, MEAN)


def chunks_table(reading: Reading, attention: dict[str, np.ndarray], reference: str, about: str) -> Table:
    """Attention received by each chunk, and how much more than the reference's; ``about`` ends the title."""
    sums = {name: reading.chunk_sums(values).mean(axis=0) for name, values in attention.items()}
    others = [name for name in sums if name != reference]
    first = int(reading.has_start)
    shown = [*(f"{piece} " for piece in reading.pieces[:first]), *reading.pieces[first:]]
    rows = []
    for chunk in range(len(sums[reference])):
        text = "".join(piece for piece, of in zip(shown, reading.chunks, strict=True) if of == chunk)
        changes = (sums[name][chunk] / sums[reference][chunk] - 1 for name in others)
        rows.append([f"{chunk + 1}: {text.strip()}", *(values[chunk] for values in sums.values()), *changes])
    columns = [(name, ".4f") for name in sums] + [(f"{name} to {reference}", "+.1%") for name in others]
    title = f"Attention received by each chunk of {reading.chunk_size} tokens; {about}"
    return table_of(title, ["chunk", *columns], rows)


def drawn(reading: Reading, attention: dict[str, np.ndarray], reference: str) -> list[Plot]:
    """A line a model, by token; of several models also over the reference's.

    The token before the text is left out, since it receives many times what others do.
    """
    means = {name: values.mean(axis=0) for name, values in attention.items()}
    shares = {name: values / means[reference] for name, values in means.items()}
    title, positions = "Attention received by each token", range(int(reading.has_start), len(reading.ids))
    plots = []
    for heading, y, by_model in (
        (title, "attention received", means),
        (f"{title}, over that from {reference}", f"times that from {reference}", shares),
    ):
        series = {
            name: [point(i, float(values[i])) | {"text": reading.pieces[i]} for i in positions]
            for name, values in by_model.items()
        }
        plots.append(Plot(heading, "token", y, series))
    return plots if len(means) > 1 else plots[:1]


def numbers(reading: Reading) -> dict[str, Any]:
    """The numbers of the text and of each token, for programs."""
    models = [
        {
            "model": model.source,
            "name": model.name,
            "token_received": as_json(model.received()),
            "chunk_received": as_json(reading.chunk_sums(model.received())),
        }
        for model in reading.models
    ]
    return {"tokens": reading.pieces, "chunk_size": reading.chunk_size, "models": models}
