"""``contextwise report``."""

from pathlib import Path
from typing import Annotated

import typer

from contextwise.base.errors import ConfigError, DataError
from contextwise.base.progress import console


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Run folders, finished or not; or a sweep's folder, and after it runs whose contextwise curves are shown "
            "beside the sweep's.",
            metavar="RUN_OR_SWEEP...",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="The page; report.html in the folder of one run or a sweep, else report.html here.",
            show_default=False,
        ),
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(
            help="Which evaluation (CORPUS-SPLIT), where the runs have several.", show_default=False
        ),
    ] = None,
    csv: Annotated[
        Path | None,
        typer.Option(
            help="Of a sweep: also write the table behind every figure into this folder.", show_default=False
        ),
    ] = None,
) -> None:
    """Write one page about runs: losses, differences, curves, texts, and how they were made.

    About a sweep: the best training context at every budget, with a slider.

    It is a single file that opens from disk, without a network. Only files
    are read; nothing is trained or evaluated.
    """
    if (runs[0] / "sweep.yaml").is_file():
        if label is not None:
            raise ConfigError("--label chooses an evaluation of runs, and a sweep has none; leave it out")
        _report_sweep(runs[0], runs[1:], out, csv)
        return
    if len(runs) == 1 and not (runs[0] / "recipe.yaml").is_file():
        raise ConfigError(
            f"{runs[0]} is neither a run (it has no recipe.yaml) nor a sweep (it has no sweep.yaml); give the folder of one"
        )
    if csv is not None:
        raise ConfigError(f"--csv writes the tables of a sweep, and {runs[0]} is none; leave it out")
    _report_runs(runs, out, label)


def _report_sweep(sweep: Path, others: list[Path], out: Path | None, csv: Path | None) -> None:
    from contextwise.reports.sweep import write_sweep_page

    target = out or sweep / "report.html"
    tables = write_sweep_page(sweep, target, others=others, tables=csv)
    for path in (target, *tables):
        print(path)


def _report_runs(runs: list[Path], out: Path | None, label: str | None) -> None:
    from contextwise.base.runs import RunFolder
    from contextwise.comparison.comparison import compare
    from contextwise.reports.runs import write_report

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
