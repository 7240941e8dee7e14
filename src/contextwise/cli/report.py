"""``contextwise report``."""

from pathlib import Path
from typing import Annotated

import typer

from contextwise.base.errors import DataError
from contextwise.base.progress import console


def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Run folders; finished or not.", metavar="RUN...", show_default=False)
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="The page; RUN/report.html for one run, else report.html.", show_default=False),
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(
            help="Which evaluation (CORPUS-SPLIT), where the runs have several.", show_default=False
        ),
    ] = None,
) -> None:
    """Write one page about runs: losses, differences, curves, texts, and how they were made.

    It is a single file that opens from disk, without a network. Only files are read; nothing is trained or
    evaluated.
    """
    from contextwise.base.runs import RunFolder
    from contextwise.evaluation import compare
    from contextwise.reports import write_report

    folders = [RunFolder.open(run) for run in runs]
    target = out or (folders[0].path / "report.html" if len(folders) == 1 else Path("report.html"))
    comparison, notes = None, []
    if len(folders) > 1:
        try:
            comparison = compare([str(run.path) for run in folders], label=label, all_pairs=True)
        except (
            DataError
        ) as error:  # not evaluated yet, or on different documents: the curves are there all the same
            notes.append(f"The runs are not compared on held-out documents: {error}.")
            console.print(f"note: {notes[0]}", markup=False, soft_wrap=True)
    write_report(folders, target, comparison, notes=notes)
    print(target)
