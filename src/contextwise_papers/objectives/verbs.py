"""The verbs ``contextwise measure objectives`` and ``forgetting``."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from contextwise.cli.common import AsJson, Prints, show_values


def objectives(
    runs: Annotated[list[str], Argument(help="Runs.")],
    as_json: Annotated[AsJson, Prints("contextwise_papers.objectives.side_by_side:ObjectivesJson")] = False,
) -> None:
    """List objectives side by side: tokens read and predicted, FLOPs, own losses.

    The losses are each objective's own, at equal tokens and at equal FLOPs.
    """
    from contextwise_papers.objectives.side_by_side import side_by_side, side_by_side_table

    result = side_by_side(runs)
    show_values(result, as_json, side_by_side_table(result))


def forgetting(
    models: Annotated[
        list[str],
        Argument(
            metavar="BEFORE AFTER",
            help="The model that training continued from, then the runs that continued; runs of one recipe with different "
            "seeds count as one.",
        ),
    ],
    old: Annotated[Path, Option(help="The corpus that BEFORE was trained on.")],
    new: Annotated[Path, Option(help="The corpus that AFTER continued on.")],
    split: Annotated[str, Option(help="Which documents of both corpora.")] = "validation",
    context: Annotated[
        int | None, Option(help="Tokens of a window.", show_default="the smallest training context of the runs")
    ] = None,
    stride: Annotated[int | None, Option(help="Between windows.", show_default="half the context")] = None,
    limit: Annotated[int | None, Option(help="Score only the first N documents of each corpus.")] = None,
    as_json: Annotated[AsJson, Prints("contextwise_papers.objectives.forgetting:Forgetting")] = False,
) -> None:
    """Measure what models forget of an old corpus while they are trained on a new one.

    Forgetting is the loss on held-out old documents after, minus before. Models
    that lack an evaluation on one of the corpora are evaluated first. The 95%
    intervals are over documents, and over seeds where there are several.
    """
    from contextwise.data import Corpus
    from contextwise_papers.objectives.forgetting import Forgetting, forgetting_tables

    corpora = [Corpus.open(path, split=split) for path in (old, new)]
    result = Forgetting(models, *corpora, context=context, stride=stride, limit=limit)
    show_values(result, as_json, forgetting_tables(result))
