"""``contextwise forgetting``: what a model lost of its old documents while it learned new ones."""

from pathlib import Path
from typing import Annotated

import typer


def forgetting(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="BEFORE AFTER...",
            help="The model that training continued from, then the runs that continued; runs of one recipe with different "
            "seeds count as one.",
            show_default=False,
        ),
    ],
    old: Annotated[Path, typer.Option(help="The corpus that BEFORE was trained on.", show_default=False)],
    new: Annotated[Path, typer.Option(help="The corpus that AFTER continued on.", show_default=False)],
    split: Annotated[str, typer.Option(help="Which documents of both corpora.")] = "validation",
    context: Annotated[
        int | None,
        typer.Option(
            help="Tokens of a window.",
            show_default="the smallest training context of the runs",
        ),
    ] = None,
    stride: Annotated[
        int | None,
        typer.Option(help="Between windows.", show_default="half the context"),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(help="Score only the first N documents of each corpus.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the report to this JSON file.", show_default=False)
    ] = None,
) -> None:
    """Measure what models forget of an old corpus while they are trained on a new one.

    Forgetting is the loss on held-out old documents after, minus before. Models
    that lack an evaluation on one of the corpora are evaluated first. The 95%
    intervals are over documents, and over seeds where there are several.
    """
    from rich.console import Console

    from contextwise.comparison.forgetting import measure_forgetting
    from contextwise.comparison.tables import forgetting_tables
    from contextwise.data import Corpus

    result = measure_forgetting(
        models,
        Corpus.open(old, split=split),
        Corpus.open(new, split=split),
        context=context,
        stride=stride,
        limit=limit,
    )
    printed = Console(highlight=False)
    printed.print(forgetting_tables(result))
    if out is not None:
        result.write(out)
        printed.print(f"written to {out}", markup=False, soft_wrap=True)
