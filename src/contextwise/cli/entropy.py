"""``contextwise entropy``: the verb of the measure, with what is computed from its result and the page."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from contextwise.cli.measuring import verb
from contextwise.evaluation.measures.entropy import Entropy, EntropyResult


def _bandwidth(value: float | None) -> float | None:
    if value is not None:
        from contextwise.analysis.density import check_bandwidth

        check_bandwidth(value)
    return value


def show_analysis(
    result: EntropyResult,
    as_json: bool,
    *,
    bandwidth: Annotated[
        float | None,
        typer.Option(
            help="Of the kernel density, in standard deviations.", show_default="Scott's", callback=_bandwidth
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(help="The page.", show_default="entropy.html in the result", dir_okay=False),
    ] = None,
    csv: Annotated[
        Path | None,
        typer.Option(
            help="Write the numbers of each figure as CSV into this folder.",
            show_default=False,
            file_okay=False,
        ),
    ] = None,
) -> None:
    """Print losses, entropies, dimensions and fits, and write the page."""
    from rich.console import Console

    from contextwise.analysis.intrinsic import analyse
    from contextwise.reports.entropy import terminal_report, write_csv, write_entropy_page

    analysis = analyse(result, bandwidth)
    printed = Console(highlight=False, stderr=as_json)
    if as_json:
        print(json.dumps(analysis.to_dict(), indent=2, ensure_ascii=False))
    else:
        printed.print(terminal_report(analysis))
    page = html or result.path / "entropy.html"
    write_entropy_page(analysis, page, ["contextwise", *sys.argv[1:]])
    printed.print(f"measurement: {result.path}", markup=False, soft_wrap=True)
    printed.print(f"page: {page}", markup=False, soft_wrap=True)
    if csv is not None:
        write_csv(analysis, csv)
        printed.print(f"CSV: {csv}", markup=False, soft_wrap=True)


entropy = verb(Entropy, show_analysis)
