"""``contextwise corpus``: how long the documents are, and how much training context they can reward."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from contextwise.base.errors import ConfigError
from contextwise.cli.options import Split

if TYPE_CHECKING:
    from rich.console import RenderableType

    from contextwise.data.corpus import Corpus
    from contextwise.data.document_lengths import DocumentLengths

SHORTEST_ROW = 64
TOO_SHORT = "Warning: the documents are too short to reward any training context; take longer documents."


def corpus(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="CORPUS",
            help="A prepared corpus, a Zarr array, or a flat .bin file.",
            show_default=False,
        ),
    ],
    split: Split = "train",
    context: Annotated[
        list[int] | None,
        typer.Option(
            help="A training context, in tokens, to judge; may be repeated. Not given: each power of two.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Report how long the documents of a corpus are, and how much training context they can reward.

    A training context is longer than the corpus can reward if less than 10% of
    the tokens have half of it or more before them in their own document, or if
    no document is as long.
    """
    from contextwise.data import Corpus
    from contextwise.data.document_lengths import as_json as everything
    from contextwise.data.document_lengths import measure_lengths

    for wanted in context or []:
        if wanted < 2:
            raise ConfigError(
                f"--context is {wanted}; give a training context in tokens, at least 2, such as 1024"
            )
    documents = Corpus.open(path, split=split)
    meter = measure_lengths(documents)
    contexts = context or [2**power for power in range(1, meter.longest.bit_length() + 1)]
    if as_json:
        print(json.dumps(everything(documents, meter, contexts), indent=2, ensure_ascii=False))
        return
    from rich.console import Console

    printed = Console(highlight=False)
    printed.print(_heading(documents, meter), markup=False)
    printed.print(_table(meter))
    for sentence in _sentences(documents, meter, context):
        printed.print(sentence, markup=False)


def _heading(documents: "Corpus", meter: "DocumentLengths") -> str:
    counts = f"{meter.documents:,} documents, {meter.tokens:,} tokens"
    if meter.documents == 1:
        counts = f"one document of {meter.tokens:,} tokens"
    head = f"{documents.path}, split {documents.split}: {counts}."
    if meter.documents == 1:
        return head
    quantiles = [f"{length:,} ({share})" for share, length in meter.quantiles().items()]
    return f"{head}\nQuantiles of the documents' lengths: {', '.join(quantiles)}."


def _table(meter: "DocumentLengths") -> "RenderableType":
    """A row for each power of two; those below 64 that hold no document say nothing of use and are left out."""
    from rich import box
    from rich.table import Table

    from contextwise.data.document_lengths import token_count

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("length l", justify="right", no_wrap=True)
    columns = ["documents\nof l to 2l", "tokens\nin them", "their\nshare"]
    columns += ["documents\nunder l", "tokens with l\nor more before"]
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for row in meter.bins():
        if row.shortest < SHORTEST_ROW and row.shorter == 0 and not row.documents:
            continue
        table.add_row(
            token_count(row.shortest),
            f"{row.documents:,}",
            f"{row.tokens:,}",
            f"{row.tokens / meter.tokens:.1%}",
            f"{row.shorter:.1%}",
            f"{row.preceded:.1%}",
        )
    return table


def _sentences(documents: "Corpus", meter: "DocumentLengths", contexts: list[int] | None) -> list[str]:
    """What the lengths mean for the training contexts, with a warning for those that are too long."""
    from contextwise.data.document_lengths import boundary_note

    note = boundary_note(documents)
    said = [f"Note: {note}"] if note else []
    return said + (_about_asked(meter, contexts) if contexts else _about_all(meter))


def _about_asked(meter: "DocumentLengths", contexts: list[int]) -> list[str]:
    from contextwise.data.document_lengths import in_tokens

    said = []
    for reward in map(meter.reward, contexts):
        name = f"training context of {in_tokens(reward.context)}"
        said.append(
            f"A {name} is rewarded: {reward.preceded:.1%} of the tokens have {in_tokens(reward.half)} or more (half of it) "
            "before them in their document."
            if reward.enough
            else f"Warning: a {name} is longer than this corpus can reward: {reward.shortfall}."
        )
    if not all(meter.reward(context).enough for context in contexts):
        longest = meter.longest_rewarded()
        said.append(
            TOO_SHORT
            if longest is None
            else f"Train with {in_tokens(longest)} or less, or take longer documents."
        )
    return said


def _about_all(meter: "DocumentLengths") -> list[str]:
    from contextwise.data.document_lengths import in_tokens

    longest = meter.longest_rewarded()
    if longest is None:
        return [TOO_SHORT]
    here, beyond = meter.reward(longest), meter.reward(2 * longest)
    return [
        f"Training contexts up to {in_tokens(longest)} are rewarded: {here.preceded:.1%} of the tokens have "
        f"{in_tokens(here.half)} or more (half of it) before them in their document.",
        f"Warning: {in_tokens(beyond.context)} and more are longer than this corpus can reward: {beyond.shortfall}.",
    ]
