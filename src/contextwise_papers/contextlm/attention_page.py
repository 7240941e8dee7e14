"""Reports of attention received and of the context lens: page, terminal and JSON.

Source: ContextLM, Section 4.3 and Figure 5; the lens has no counterpart there.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np
from rich.console import RenderableType

from contextwise.base.estimates import as_json, listed
from contextwise.base.tables import Column, Table, mark, terminal
from contextwise.reports import page
from contextwise.reports.page import Markup, Page, Part, Plot, Section, figure
from contextwise_papers.contextlm.attention import ModelReading, Reading
from contextwise_papers.page import command_line

DIGITS = 5
"""Of the numbers on the page."""
NAMED_CHUNKS = 40
"""Up to this number of chunks have their text at the axis."""
CROPPED = 16
INTERVENTION = (
    "Such a model was trained with the context, so switching it off is an intervention: it shows how much this model relies on "
    "the context, and tends to overstate what predicting one is worth, since a model trained without it would have learned to "
    "do without."
)
READOUT = Markup('<p class="readout" id="readout" aria-live="polite" hidden></p>')
RECEIVED = (
    "A token receives the attention of every query that can see it, itself included: <em>mean</em> divides the sum by the "
    "number of those queries, which is large for early tokens and one for the last; <em>sum</em> does not. The colours of all "
    "models have one scale. Thin lines part chunks of {chunk} tokens. The first token often takes attention that has nowhere "
    "else to go (an attention sink); left out of the scale it is framed, and its number is still shown. Attention shows where "
    "a model looks, not what it makes of it. Point at a token, here or below, for its numbers."
)
CHUNKS = (
    "Of the layers and heads chosen above: the sum over the tokens of the chunk (the last chunk may have fewer). As in "
    "Figure 5 of ContextLM, which does not say how it counts."
)
LENS = (
    "Loss of each token with every predicted context switched off, less its loss with it, in nats. Blue: the context helped. "
    "Orange, with a dotted line: it hurt. Each prediction gets the context predicted for the chunk of its target (thin lines, "
    "{chunk} tokens); in the first chunk that is only the first token's own vector."
)


def write_attention_page(reading: Reading, path: Path, command: list[str] | None = None) -> None:
    """Write the page (:meth:`~contextwise.reports.page.Page.write`); ``command``: the command line that made it."""
    names = [model.name for model in reading.models]
    bars = "Attention received by each chunk, a bar for each model"
    sections = [
        Section("Attention received by each token", _received(reading)),
        Section("Attention received by each chunk", [Plot("chunks", _bars(), bars, CHUNKS)]),
        Section("Context lens: where the predicted context helped", _lenses(reading)),
        Section("All tokens", [page.details("Table", _token_table(reading))]),
        Section("How it was made", command_line(command)),
    ]
    title = f"What {listed(names)} attend{'s' * (len(names) == 1)} to"
    result = [*loss_words(reading), *lens_words(reading)]
    start = f", behind {reading.pieces[0]}" if reading.has_start else ""
    tokens = len(reading.ids) - reading.has_start
    subtitle = f"A text of {tokens:,} tokens{start}, in chunks of {reading.chunk_size}."
    data = {"reading": page_data(reading)}
    Page(title, sections, subtitle, result, __file__, data, [READOUT]).write(path)


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
                "contextChunk": model.chunk_size,
                "nats": _rounded(model.nats),
                "without": None if model.nats_without is None else _rounded(model.nats_without),
            }
            for model in reading.models
        ],
        "namedChunks": NAMED_CHUNKS,
        "cropped": CROPPED,
    }


def _rounded(values: np.ndarray) -> Any:
    if values.ndim > 1:
        return [_rounded(row) for row in values]
    return [None if np.isnan(value) else float(f"{value:.{DIGITS}g}") for value in values]


def _received(reading: Reading) -> list[Part]:
    row = (
        '<div class="controls" hidden>\n{buttons}'
        '<label><input type="checkbox" id="sink" checked> leave the first token out of the scale</label>\n</div>'
    )
    controls = page.markup(row, buttons=page.choices("How attention is counted", "measure"))
    article = '<article>\n{head}\n{selects}\n{text}\n<p class="facts-line">{facts}</p>\n</article>'
    panels = []
    for number, model in enumerate(reading.models):
        label = f"The text, each token coloured by the attention it receives in {model.name}"
        text, selects = _text(f"received-{number}", label), _selects(number, model.name)
        head, facts = _subhead(model.name, number), _facts(model)
        panels.append(page.markup(article, head=head, selects=selects, text=text, facts=facts))
    parts: list[Part] = [controls, Markup(f'<div class="panels">\n{page.joined(panels)}\n</div>')]
    first, *others = reading.models
    label = "The text, each token coloured by the difference of the attention received"
    for number, model in enumerate(others, start=1):
        parts.append(_subhead(f"Difference: {model.name} − {first.name}", style="under"))
        parts.append(_text(f"difference-{number}", label))
    return [*parts, _caption(RECEIVED, chunk=reading.chunk_size)]


def _lenses(reading: Reading) -> list[Part]:
    parts: list[Part] = []
    for number, model in enumerate(reading.models):
        if model.lens is not None:
            label = f"The text, each token coloured by how much the predicted context changed its loss in {model.name}"
            parts += [_subhead(model.name, style="under"), _text(f"lens-{number}", label)]
            parts.append(_caption(LENS, chunk=model.chunk_size))
    return parts


def _text(id: str, label: str) -> Markup:
    """The text, which the page's script writes and colours, and its scale."""
    fallback = page.missing("This picture needs JavaScript. The table of all tokens below holds its numbers.")
    template = (
        '<div class="text" id="{id}" role="img" aria-label="{label}; the table below has the numbers"></div>\n'
        "<noscript>{fallback}</noscript>\n"
        '<p class="scale" aria-hidden="true"><span></span><i></i><span></span></p>'
    )
    return page.markup(template, id=id, label=label, fallback=fallback)


def _selects(number: int, name: str) -> Markup:
    """Menus of a model's layers and heads, which the page's script fills in."""
    menu = '<label>{what} <select id="{what}-{number}" aria-label="{title} of {name}"></select></label>'
    menus = [
        page.markup(menu, what=what, title=what.capitalize(), number=number, name=name) for what in ("layer", "head")
    ]
    return Markup(f'<div class="controls" hidden>\n{page.joined(menus)}\n</div>')


def _caption(template: str, **values: Any) -> Markup:
    return page.markup(f'<p class="caption">{template}</p>', **values)


def _bars() -> dict[str, Any]:
    """A bar chart whose bars the page's script fills in."""
    xaxis, yaxis = {"type": "category", "title": "chunk"}, {"title": "attention received", "nticks": 6}
    return figure(height=380, barmode="group", bargap=0.25, xaxis=xaxis, yaxis=yaxis)


def _facts(model: ModelReading) -> str:
    heads = "–".join(map(str, sorted({layer.shape[0] for layer in model.layers})))
    parts = [f"{model.parameters:,} parameters", f"{len(model.layers)} layers", f"{heads} heads"]
    if model.chunk_size is not None:
        parts.append(f"predicts the context of chunks of {model.chunk_size}")
    return ", ".join(parts)


def _token_table(reading: Reading) -> Table:
    """Every token with its numbers, which the page without its script shows too."""
    columns: list[Column | str] = ["token", Column("chunk", "integer")]
    values: list[np.ndarray] = []
    for model in reading.models:
        columns.append(Column(f"received, {model.name}", "estimate", ".4f", missing=""))
        columns.append(Column(f"loss, {model.name}", "estimate", ".3f", missing=""))
        values += [model.received(), model.nats]
        if model.lens is not None:
            columns.append(Column(f"lens, {model.name}", "difference", "+.3f", missing=""))
            values.append(model.lens)
    rows = [
        [f"{position}: {shown(piece)}", position // reading.chunk_size, *row]
        for position, (piece, row) in enumerate(_by_token(reading, values))
    ]
    title = "Attention received: mean over layers, heads and the queries that see a token. Loss and lens in nats."
    return Table(title, columns, rows)


def _by_token(reading: Reading, values: list[np.ndarray]) -> Iterator[tuple[str, list[float | None]]]:
    """The text of each token with its values; NaN is None."""
    return zip(reading.pieces, as_json(np.stack(values, axis=1)), strict=True)


def lens_words(reading: Reading) -> list[str]:
    """A sentence for each model that predicts a context, and how to read it."""
    sentences = []
    for model in reading.models:
        if model.lens is not None and model.nats_without is not None:
            lens = model.lens[1:]
            sentences.append(
                f"{model.name}: {np.nanmean(model.nats):.4f} nats a token with the predicted context, "
                f"{np.nanmean(model.nats_without):.4f} without it; over the text it "
                f"{'saves' if lens.sum() >= 0 else 'costs'} {abs(lens.sum()):.2f} nats. It helped at {(lens > 0).sum()} of "
                f"{len(lens)} tokens and hurt at {(lens < 0).sum()}."
            )
    return [*sentences, INTERVENTION] if sentences else []


def loss_words(reading: Reading) -> list[str]:
    """The mean loss of each model that has no lens, and how the models differ."""
    first, *others = reading.models
    plain = [model for model in reading.models if model.lens is None]
    sentences = [f"{model.name}: {np.nanmean(model.nats):.4f} nats a token." for model in plain]
    for model in others:
        difference = (model.nats - first.nats)[1:]
        if not difference.any():
            sentences.append(f"The losses of {model.name} are those of {first.name}.")
            continue
        sentences.append(
            f"The loss of {model.name} is {'lower' if difference.mean() < 0 else 'higher'} than that of {first.name} by "
            f"{abs(difference.mean()):.4f} nats a token; it is lower at {int((difference < 0).sum())} of {len(difference)} "
            "tokens."
        )
    return sentences


def terminal_report(reading: Reading) -> RenderableType:
    """The losses in sentences, for 80 columns."""
    return terminal(*loss_words(reading), *lens_words(reading))


def shown(piece: str) -> str:
    """A token's text on one line, with its spaces to be seen."""
    return piece.replace("\n", "↵").replace("\t", "⇥").replace(" ", "␣") or "·"


def _measures(model: ModelReading) -> dict[str, np.ndarray]:
    measures = {"received": model.received(), "nats": model.nats}
    if model.nats_without is not None and model.lens is not None:
        measures |= {"nats_without_context": model.nats_without, "lens": model.lens}
    return measures


class ModelJson(TypedDict):
    """The numbers of one model; lists are over tokens or chunks, and what is not defined there is null."""

    model: str
    name: str
    parameters: int
    layers: int
    nats_per_token: float
    nats_per_token_without_context: NotRequired[float]
    lens_total: NotRequired[float]
    token_nats: list[float]
    token_received: list[float]
    token_nats_without_context: NotRequired[list[float]]
    token_lens: NotRequired[list[float]]
    chunk_received: list[float]


class NumbersJson(TypedDict):
    """The numbers of a text, of each token and of each chunk."""

    tokens: list[str]
    chunk_size: int
    models: list[ModelJson]


def numbers(reading: Reading) -> NumbersJson:
    """The numbers of the text and of each token, for programs."""
    models: list[Any] = []
    for model in reading.models:
        values: dict[str, Any] = {"model": model.source, "name": model.name, "parameters": model.parameters}
        values |= {"layers": len(model.layers), "nats_per_token": float(np.nanmean(model.nats))}
        if model.nats_without is not None and model.lens is not None:
            values["nats_per_token_without_context"] = float(np.nanmean(model.nats_without))
            values["lens_total"] = float(np.nansum(model.lens))
        values |= {f"token_{name}": as_json(row) for name, row in _measures(model).items()}
        models.append(values | {"chunk_received": as_json(reading.chunk_sums(model.received()))})
    return {"tokens": reading.pieces, "chunk_size": reading.chunk_size, "models": models}


def _subhead(text: str, series: int | None = None, style: str = "") -> page.Markup:
    """A headline within a section, with the colour of a series if it has one."""
    opening = f'<h3 class="{style}">' if style else "<h3>"
    return page.Markup(f"{opening}{mark(series)}{page.shown(text)}</h3>")
