"""What models attend to, and where predicting the context helped: in words, on the terminal, as CSV and as JSON."""

import csv
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from contextwise.evaluation.measures.attention import ModelReading, Reading, mean_received

SHOWN = 10
NARROW = 14
"""Characters of a token, or of a model's name, on the terminal."""
INTERVENTION = (
    "Such a model was trained with the context, so switching it off is an intervention: it tells how much this model leans on "
    "the context, and tends to overstate what predicting one is worth, since a model trained without it would have learned to "
    "do without."
)


def lens_words(reading: Reading) -> list[str]:
    """A sentence for each model that predicts a context, and what to make of it."""
    said = []
    for model in reading.models:
        if model.lens is None or model.nats_without is None:
            continue
        lens = model.lens[1:]
        said.append(
            f"{model.name}: {np.nanmean(model.nats):.4f} nats a token with the predicted context, "
            f"{np.nanmean(model.nats_without):.4f} without it; over the text it {'saves' if lens.sum() >= 0 else 'costs'} "
            f"{abs(lens.sum()):.2f} nats. It helped at "
            f"{int((lens > 0).sum())} of {len(lens)} tokens and hurt at {int((lens < 0).sum())}."
        )
    return [*said, INTERVENTION] if said else []


def loss_words(reading: Reading) -> list[str]:
    """The mean loss of each model that has no lens, and how the models differ."""
    said = [
        f"{model.name}: {np.nanmean(model.nats):.4f} nats a token."
        for model in reading.models
        if model.lens is None
    ]
    first = reading.models[0]
    for model in reading.models[1:]:
        difference = (model.nats - first.nats)[1:]
        if not difference.any():
            said.append(f"The losses of {model.name} are those of {first.name}.")
            continue
        said.append(
            f"The loss of {model.name} is {'lower' if difference.mean() < 0 else 'higher'} than that of {first.name} by "
            f"{abs(difference.mean()):.4f} nats a token; it is lower at {int((difference < 0).sum())} of {len(difference)} "
            "tokens."
        )
    return said


def terminal(reading: Reading) -> RenderableType:
    """The tokens that stand out, for 80 columns, and the sentences."""
    sentences = [*loss_words(reading), *lens_words(reading)]
    tables = [_table(reading)] if standing_out(reading) else []
    return Group(*tables, *(Text(f" {sentence}") for sentence in sentences))


def standing_out(reading: Reading) -> list[int]:
    """Positions with the largest difference in attention received, first to last model; of one model, with the most of it.

    The first position and the last are left out: the one is where attention goes that has nowhere else to go, and the other
    is seen by itself alone.
    """
    received = [model.received() for model in reading.models]
    size = np.abs(received[-1] - received[0]) if len(received) > 1 else received[0]
    order = np.argsort(-size[1:-1], kind="stable") + 1
    return [int(place) for place in order[:SHOWN]]


def _table(reading: Reading) -> Table:
    several = len(reading.models) > 1
    what = f"Largest differences in attention received, {reading.models[-1].name} − {reading.models[0].name}"
    caption = what if several else f"Tokens that receive most attention in {reading.models[0].name}"
    table = Table(
        title=Text(f"{caption}: mean over layers, heads and the queries that see a token"),
        box=box.SIMPLE_HEAD,
        title_justify="left",
        title_style="",
    )
    table.add_column("token", no_wrap=True)
    columns = ["chunk", *(_cropped(model.name) for model in reading.models)]
    lenses = [model for model in reading.models if model.lens is not None]
    named = ["lens, nats"] if len(lenses) == 1 else [f"lens, {_cropped(model.name)}" for model in lenses]
    for name in [*columns, *["difference"] * several, *named]:
        table.add_column(Text(name), justify="right")
    received = [model.received() for model in reading.models]
    for place in standing_out(reading):
        cells: list[Text | str] = [
            Text(_cropped(shown(reading.pieces[place]))),
            str(place // reading.chunk_size),
            *(f"{values[place]:.4f}" for values in received),
            *[f"{received[-1][place] - received[0][place]:+.4f}"] * several,
            *(f"{model.lens[place]:+.3f}" for model in lenses if model.lens is not None),
        ]
        table.add_row(*cells)
    return table


def shown(piece: str) -> str:
    """A token's text on one line, with its spaces to be seen."""
    return piece.replace("\n", "↵").replace("\t", "⇥").replace(" ", "␣") or "·"


def _cropped(text: str) -> str:
    return text if len(text) <= NARROW else f"{text[: NARROW - 1]}…"


def csv_files(reading: Reading) -> dict[str, str]:
    """Name -> CSV: ``tokens``, a row each, and ``attention``, a row for each model, layer, head and token."""
    return {"tokens": _csv(_token_rows(reading)), "attention": _csv(_attention_rows(reading))}


def _csv(rows: Iterator[list[Any]]) -> str:
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(rows)
    return file.getvalue()


def _token_rows(reading: Reading) -> Iterator[list[Any]]:
    yield [
        "position",
        "chunk",
        "token",
        *(f"{what} {model.name}" for model in reading.models for what in _measures(model)),
    ]
    columns = [values for model in reading.models for values in _measures(model).values()]
    for place, piece in enumerate(reading.pieces):
        numbers = (values[place] for values in columns)
        yield [
            place,
            place // reading.chunk_size,
            piece,
            *("" if np.isnan(number) else float(number) for number in numbers),
        ]


def _measures(model: ModelReading) -> dict[str, np.ndarray]:
    found = {"received": model.received(), "nats": model.nats}
    if model.nats_without is not None and model.lens is not None:
        found |= {"nats_without_context": model.nats_without, "lens": model.lens}
    return found


def _attention_rows(reading: Reading) -> Iterator[list[Any]]:
    yield ["model", "part", "layer", "head", "position", "token", "sum", "mean"]
    for model in reading.models:
        for part, layers in (("layers", model.layers), ("predictor", model.predictor)):
            for number, layer in enumerate(layers, start=1):
                for head, sums in enumerate(layer, start=1):
                    for place, (total, mean) in enumerate(zip(sums, mean_received(sums), strict=True)):
                        token = reading.pieces[place] if part == "layers" else ""
                        yield [
                            model.name,
                            part,
                            number,
                            head,
                            place,
                            token,
                            f"{total:.6g}",
                            f"{mean:.6g}",
                        ]


def as_json(reading: Reading) -> dict[str, Any]:
    """The numbers of the text and of each token, for programs."""
    models = []
    for model in reading.models:
        told: dict[str, Any] = {"model": model.source, "name": model.name, "parameters": model.parameters}
        told |= {"layers": len(model.layers), "nats_per_token": float(np.nanmean(model.nats))}
        if model.nats_without is not None and model.lens is not None:
            told["nats_per_token_without_context"] = float(np.nanmean(model.nats_without))
            told["lens_total"] = float(np.nansum(model.lens))
        told |= {f"token_{name}": _numbers(values) for name, values in _measures(model).items()}
        models.append(told | {"chunk_received": _numbers(reading.chunk_sums(model.received()))})
    return {"tokens": reading.pieces, "chunk_size": reading.chunk_size, "models": models}


def _numbers(values: np.ndarray) -> list[float | None]:
    return [None if np.isnan(value) else float(value) for value in values]
