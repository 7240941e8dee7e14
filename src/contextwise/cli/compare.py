"""``contextwise compare``: which run is better on the same documents, by how much, and at what cost."""

from pathlib import Path
from typing import Annotated

import typer

from contextwise.base.errors import ConfigError


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(help="Runs, evaluation folders, or models evaluated from here.", show_default=False),
    ],
    corpus: Annotated[
        Path | None,
        typer.Option(help="Evaluate on this corpus the runs that lack it, then compare.", show_default=False),
    ] = None,
    split: Annotated[str, typer.Option(help="Which documents of --corpus.")] = "validation",
    label: Annotated[
        str | None,
        typer.Option(
            help="Which evaluation (CORPUS-SPLIT), where the runs have several.", show_default=False
        ),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(help="Name of the model to compare the others to.", show_default="the first"),
    ] = None,
    all_pairs: Annotated[bool, typer.Option("--all-pairs", help="Compare every pair of models.")] = False,
    unit: Annotated[str, typer.Option(help="Of differences: token (nats) or byte (bits).")] = "token",
    out: Annotated[
        Path | None, typer.Option(help="Write the comparison to this JSON file.", show_default=False)
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write a page with the table and the curves.", show_default=False)
    ] = None,
) -> None:
    """Compare runs on the same documents.

    Runs of one recipe with different seeds count as one model. Differences are
    paired by document, and by seed where the seeds are the same; their 95%
    intervals say whether a difference is more than chance.
    """
    from rich.console import Console

    from contextwise.comparison.compared_runs import evaluate_all
    from contextwise.comparison.comparison import compare as compare_evaluations
    from contextwise.comparison.tables import comparison_tables
    from contextwise.data import Corpus

    if corpus is not None and label is not None:
        raise ConfigError("--label and --corpus both choose the evaluation; give one of them")
    results = None if corpus is None else evaluate_all(runs, Corpus.open(corpus, split=split))
    comparison = compare_evaluations(
        runs, label=label, results=results, reference=reference, all_pairs=all_pairs, unit=unit
    )
    printed = Console(highlight=False)
    printed.print(comparison_tables(comparison))
    if out is not None:
        comparison.write(out)
        printed.print(f"written to {out}", markup=False, soft_wrap=True)
    if html is not None:
        from contextwise.reports.runs import write_comparison_page

        write_comparison_page(comparison, html)
        printed.print(f"page: {html}", markup=False, soft_wrap=True)
