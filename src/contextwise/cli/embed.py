"""``contextwise embed``."""

from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from contextwise.base.errors import ConfigError
from contextwise.base.progress import progress_bar, say
from contextwise.cli.options import Device, Dtype, Model

if TYPE_CHECKING:
    import numpy as np

    from contextwise.models.embedding import Embedder


class PoolingChoice(StrEnum):
    """How the states of a text's tokens become one vector."""

    cls = "cls"
    mean = "mean"
    last = "last"


def embed(
    model: Model,
    out: Annotated[Path, typer.Option("--out", help="The NumPy file (.npy) to write.", show_default=False)],
    file: Annotated[
        str | None,
        typer.Argument(
            help="One text a line; or JSON Lines (.jsonl, .ndjson, .json); .gz too; -: standard input.",
            show_default=False,
        ),
    ] = None,
    contexts: Annotated[
        Path | None,
        typer.Option(
            "--contexts",
            metavar="FILE",
            help="In place of texts, the contexts of a CUE model: JSON Lines of objects from context to value; each becomes "
            "one vector, e_cue.",
            show_default=False,
        ),
    ] = None,
    text_field: Annotated[
        str | None,
        typer.Option(
            help="Of JSON Lines, the field with the text; given, FILE is read as JSON Lines.",
            show_default="text",
        ),
    ] = None,
    pooling: Annotated[
        PoolingChoice | None,
        typer.Option(
            help="The state at [CLS], the mean over all tokens, or the last token's.",
            show_default="last for a decoder, else mean",
        ),
    ] = None,
    layer: Annotated[
        int | None,
        typer.Option(help="Whose output is pooled; 0: the embeddings.", show_default="the last"),
    ] = None,
    normalize: Annotated[bool, typer.Option("--normalize", help="Scale each vector to length 1.")] = False,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Texts of one forward pass.", show_default="32")
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            help="Longer texts are cut, and counted in a note.",
            show_default="what the model allows",
        ),
    ] = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
) -> None:
    """Turn each text of a file into a vector; row i of the NumPy file is the vector of line i.

    Vectors are float32. An interrupted run leaves no file.
    """
    if out.suffix != ".npy":
        raise ConfigError(f"--out is {out}, but a NumPy file is written; give a name that ends in .npy")
    if contexts is not None:
        given = {
            "FILE": file,
            "--text-field": text_field,
            "--pooling": pooling,
            "--layer": layer,
            "--normalize": normalize or None,
            "--batch-size": batch_size,
            "--max-tokens": max_tokens,
        }
        _embed_contexts(model, contexts, out, given, dtype=dtype, device=device)
        return
    if file is None:
        raise ConfigError("there is nothing to embed; give a file of texts, or contexts with --contexts FILE")
    from contextwise.data.input_files import open_lines

    with open_lines(file, text_field) as lines:
        count = lines.count()
        from contextwise.base.files import write_vectors
        from contextwise.evaluation.kernel import Subject
        from contextwise.models.embedding import Embedder
        from contextwise.models.layers import load_text_model

        subject = Subject(model, dtype=dtype, device=device)
        tokenizer = subject.tokenizer  # before the weights: a folder without one is refused at once
        embedder = Embedder(
            load_text_model(model, subject.dtype, subject.device),
            tokenizer,
            pooling=None if pooling is None else pooling.value,
            layer=layer,
            normalize=normalize,
            batch_size=32 if batch_size is None else batch_size,
            max_tokens=max_tokens,
        )
        rows, width = write_vectors(out, _watched(embedder, lines, count), count)
    _tell(embedder, rows, width, out)


def _embed_contexts(model: str, file: Path, out: Path, given: dict[str, Any], **options: Any) -> None:
    """Write e_cue of each line of a file of contexts."""
    for name, value in given.items():
        if value is not None:
            raise ConfigError(f"{name} is given together with --contexts; leave one of the two out")
    from contextwise.evaluation.measures.rescoring.files import write_cue_vectors

    rows, width = write_cue_vectors(model, file, out, **options)
    say(f"{_vectors(rows)} of {width} numbers (e_cue of contexts) in {out}")


def _watched(embedder: "Embedder", texts: Iterable[str], count: int) -> Iterator["np.ndarray"]:
    """The vectors, with a bar on the terminal."""
    with progress_bar("embed", count, "texts") as advance:
        for block in embedder.blocks(texts):
            yield block
            advance(len(block))


def _tell(embedder: "Embedder", rows: int, width: int, out: Path) -> None:
    if embedder.cut:
        were = "was" if embedder.cut == 1 else "were"
        say(
            f"note: {embedder.cut:,} of {rows:,} texts {were} longer than {embedder.max_tokens} tokens, and cut there"
        )
    what = {"cls": "[CLS]", "mean": "mean", "last": "last token"}[embedder.pooling]
    layer = embedder.layer
    say(f"{_vectors(rows)} of {width} numbers ({what}, layer {layer.number} of {layer.last}) in {out}")


def _vectors(count: int) -> str:
    return "1 vector" if count == 1 else f"{count:,} vectors"
