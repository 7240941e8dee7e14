"""``contextwise compare``: which run is better on the same documents, by how much, and at what cost."""

from pathlib import Path
from typing import Annotated

import typer

from contextwise.base.errors import ConfigError
from contextwise.base.estimates import as_json


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
        typer.Option(
            help="Name of the model to compare the others to; not given: the first.", show_default=False
        ),
    ] = None,
    all_pairs: Annotated[bool, typer.Option("--all-pairs", help="Compare every pair of models.")] = False,
    unit: Annotated[str, typer.Option(help="Of differences: token (nats) or byte (bits).")] = "token",
    ledger: Annotated[
        bool,
        typer.Option(
            "--ledger", help="Objectives side by side: tokens read and asked for, FLOPs, own losses."
        ),
    ] = False,
    contextwise: Annotated[
        bool,
        typer.Option(
            "--contextwise", help="Contextwise loss curves side by side: average and best-context loss."
        ),
    ] = False,
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

    With --ledger, runs under different objectives: what each step read, was
    asked for and cost, and each one's own loss at equal tokens and FLOPs.

    With --contextwise, models of different training contexts, by the curves
    that contextwise evaluate --contextwise has measured.
    """
    from rich.console import Console

    if contextwise or ledger:
        given = {
            "--corpus": corpus is not None,
            "--label": label is not None,
            "--reference": reference is not None,
            "--html": html is not None,
            "--all-pairs": all_pairs,
            "--unit": unit != "token",
            "--ledger": contextwise and ledger,
        }
        unused = [name for name, is_given in given.items() if is_given]
        (_print_curves if contextwise else _print_ledger)(runs, unused, out)
        return

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
        from contextwise.reports import write_comparison_page

        write_comparison_page(comparison, html)
        printed.print(f"page: {html}", markup=False, soft_wrap=True)


def _print_curves(runs: list[str], unused: list[str], out: Path | None) -> None:

    from rich.console import Console

    from contextwise.base.files import write_json
    from contextwise.comparison.curves import compare_curves, open_curves
    from contextwise.comparison.tables import curves_table

    if unused:
        raise ConfigError(f"--contextwise compares curves and takes no {unused[0]}; leave one of them out")
    found = compare_curves(open_curves(runs))
    printed = Console(highlight=False)
    printed.print(curves_table(found))
    printed.print(
        "Below a loss: minus the first model's, with its 95% interval over documents. Lower bins: of the numbers of visible "
        "tokens that both have, so many at which it is lower than the first."
    )
    if out is not None:
        write_json(out, as_json(found), "the comparison")
        printed.print(f"written to {out}", markup=False, soft_wrap=True)


def _print_ledger(runs: list[str], unused: list[str], out: Path | None) -> None:
    from rich.console import Console

    from contextwise.comparison.ledger import ledger
    from contextwise.comparison.tables import ledger_table

    if unused:
        raise ConfigError(f"--ledger compares no documents and takes no {unused[0]}; leave one of them out")
    found = ledger(runs)
    printed = Console(highlight=False)
    printed.print(ledger_table(found))
    if out is not None:
        found.write(out)
        printed.print(f"written to {out}", markup=False, soft_wrap=True)
