"""The verb ``contextwise measure entropy``: a measurement, its analysis and its page."""

import sys
from pathlib import Path
from typing import Annotated

from typer import Option

from contextwise.base.progress import say
from contextwise.cli.common import Prints, show_line, show_values
from contextwise.cli.measures import verb
from contextwise_papers.intrinsic_entropy.entropy import Entropy, EntropyResult


def _bandwidth(value: float | None) -> float | None:
    if value is not None:
        from contextwise_papers.intrinsic_entropy.density import check_bandwidth

        check_bandwidth(value)
    return value


def show_analysis(
    result: EntropyResult,
    as_json: Annotated[bool, Prints("contextwise_papers.intrinsic_entropy.analysis:IntrinsicEntropy")],
    *,
    bandwidth: Annotated[
        float | None,
        Option(help="Of the kernel density, in standard deviations.", show_default="Scott's", callback=_bandwidth),
    ] = None,
    html: Annotated[
        Path | None, Option(help="The page.", show_default="entropy.html in the result", dir_okay=False)
    ] = None,
    csv: Annotated[
        Path | None, Option(help="Write the numbers of each figure as CSV into this folder.", file_okay=False)
    ] = None,
) -> None:
    """Print losses, entropies, dimensions and fits, and write the page."""
    from contextwise.reports.page import write_csv_files
    from contextwise_papers.intrinsic_entropy.analysis import IntrinsicEntropy
    from contextwise_papers.intrinsic_entropy.page import csv_files, terminal_report, write_entropy_page

    analysis = IntrinsicEntropy(result, bandwidth)
    show_values(analysis, as_json, terminal_report(analysis))
    page = html or result.path / "entropy.html"
    write_entropy_page(analysis, page, ["contextwise", *sys.argv[1:]])
    if csv is not None:
        write_csv_files(csv_files(analysis), csv)
    written = f"measurement: {result.path}\npage: {page}" + (f"\nCSV: {csv}" if csv is not None else "")
    (say if as_json else show_line)(written)


entropy = verb(Entropy, show_analysis)
