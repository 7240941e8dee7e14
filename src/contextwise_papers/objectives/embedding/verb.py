"""The verb ``contextwise model embed``."""

from pathlib import Path
from typing import Annotated, Literal, TypedDict

from typer import Argument, Option

from contextwise.base.errors import ConfigError
from contextwise.base.progress import progress_bar, say
from contextwise.cli.common import AsJson, Device, Dtype, Model, Prints, show_json

Vectors = Annotated[Path, Option(help="The NumPy file (.npy) to write.")]


class EmbedJson(TypedDict):
    """The vectors of ``embed``: float32, (vectors, width).

    ``cut`` and ``split``: texts that were longer than ``max_tokens`` tokens, and were truncated, or split into chunks.
    ``whitening``: the file of the whitening that was written or applied.
    """

    path: Path
    vectors: int
    width: int
    pooling: str
    layer: int
    layers: int
    cut: int
    split: int
    max_tokens: int | None
    whitening: Path | None


def embed(
    model: Model,
    file: Annotated[
        str, Argument(help="One text a line; or JSON Lines (.jsonl, .ndjson, .json); .gz too; -: standard input.")
    ],
    out: Vectors,
    text_field: Annotated[
        str | None,
        Option(help="Of JSON Lines, the field with the text; given, FILE is read as JSON Lines.", show_default="text"),
    ] = None,
    pooling: Annotated[
        Literal["cls", "mean", "last"] | None,
        Option(
            help="The state at [CLS], the mean over all tokens, or the last token's.",
            show_default="that of contrastive training, else last for a decoder and mean for others",
        ),
    ] = None,
    layer: Annotated[
        int | None, Option(help="Whose output is pooled; 0: the embeddings.", show_default="the last")
    ] = None,
    normalize: Annotated[bool, Option("--normalize", help="Scale each vector to length 1.")] = False,
    batch_size: Annotated[int, Option(min=1, help="Texts of one forward pass.")] = 32,
    max_tokens: Annotated[
        int | None,
        Option(
            help="Longer texts are split into overlapping chunks of so many tokens.",
            show_default="what the model allows",
        ),
    ] = None,
    truncate: Annotated[bool, Option("--truncate", help="Cut longer texts instead of splitting them.")] = False,
    whiten: Annotated[
        bool, Option("--whiten", help="Whiten the vectors, and write the whitening beside them, to OUT.whitening.")
    ] = False,
    components: Annotated[
        int | None, Option(help="With --whiten, numbers of a whitened vector.", show_default="all")
    ] = None,
    whitening: Annotated[
        Path | None,
        Option(metavar="FILE", help="Apply the whitening of an earlier --whiten, as for queries of its documents."),
    ] = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    as_json: Annotated[AsJson, Prints("contextwise_papers.objectives.embedding.verb:EmbedJson")] = False,
) -> None:
    """Turn each text of a file into a vector; row i of the NumPy file is the vector of line i.

    Vectors are float32. An interrupted run leaves no file.
    """
    check_vectors(out)
    if whiten and whitening is not None:
        raise ConfigError("--whitening is given together with --whiten; leave one of the two out")
    if components is not None and not whiten:
        raise ConfigError("--components is given without --whiten; add --whiten, or leave it out")
    from contextwise_papers.objectives.embedding.texts import read_texts

    texts = read_texts(file, text_field)  # before torch is imported: a bad file is refused at once
    import numpy as np

    from contextwise.evaluation.kernel import Subject
    from contextwise_papers.objectives.embedding.embedder import Embedder, load_text_model
    from contextwise_papers.objectives.embedding.whitening import Whitening, normalized, write_vectors

    subject = Subject(model, dtype=dtype, device=device)
    tokenizer = subject.tokenizer  # before the weights: a folder without one is refused at once
    applied = None if whitening is None else Whitening.load(whitening)
    embedder = Embedder(
        load_text_model(model, subject.dtype, subject.device),
        tokenizer,
        pooling=pooling,
        layer=layer,
        batch_size=batch_size,
        max_tokens=max_tokens,
        split=not truncate,
    )
    about = {"model": subject.digest, "pooling": embedder.pooling, "layer": str(embedder.layer.number)}
    if applied is not None:
        applied.check(about)
    blocks = []
    with progress_bar("embed", len(texts), "texts") as advance:
        for block in embedder.blocks(texts):
            blocks.append(block)
            advance(len(block))
    vectors = np.concatenate(blocks)
    if whiten:
        applied = Whitening.fit(vectors, components, about)
    if applied is not None:
        vectors = applied(vectors)
    write_vectors(out, normalized(vectors) if normalize else vectors)
    if whiten and applied is not None:
        whitening = out.with_name(f"{out.name}.whitening")
        applied.save(whitening)
    rows, width = vectors.shape
    if cut := sum(embedder.was_cut):
        were, what = "was" if cut == 1 else "were", "cut there" if truncate else "split into chunks that overlap"
        say(f"note: {cut:,} of {rows:,} texts {were} longer than {embedder.max_tokens} tokens, and {what}")
    pooled = {"cls": "[CLS]", "mean": "mean", "last": "last token"}[embedder.pooling]
    whitened = "" if whitening is None else ", whitened"
    say_written(rows, width, f"{pooled}, layer {embedder.layer.number} of {embedder.layer.last}{whitened}", out)
    if as_json:
        values = EmbedJson(
            path=out,
            vectors=rows,
            width=width,
            pooling=embedder.pooling,
            layer=embedder.layer.number,
            layers=embedder.layer.last,
            cut=cut if truncate else 0,
            split=0 if truncate else cut,
            max_tokens=embedder.max_tokens,
            whitening=whitening,
        )
        show_json(values)


def check_vectors(out: Path) -> None:
    """Raise a ConfigError unless the name is that of a NumPy file."""
    if out.suffix != ".npy":
        raise ConfigError(f"--out is {out}, but a NumPy file is written; give a name that ends in .npy")


def say_written(rows: int, width: int, what: str, out: Path) -> None:
    """Report the vectors that were written."""
    say(f"{'1 vector' if rows == 1 else f'{rows:,} vectors'} of {width} numbers ({what}) in {out}")
