"""The tables behind the figures of a sweep's page, as CSV."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from contextwise.analysis.optimum import Landscape
from contextwise.analysis.points import COLUMNS, as_rows
from contextwise.base.errors import ConfigError
from contextwise.base.files import atomic_write
from contextwise.data.document_lengths import DocumentLengths
from contextwise.reports.sweep_folder import CurveLine, SweepData

LOSS_HEAD = ["unit", "budget", "size", "parameters", "context", "loss", "standard_error", "runs"]
CONTEXT_HEAD = ["unit", "budget", "size", "parameters", "context", "loss", "told", "edge", "smoothed_context"]
PAIR_HEAD = ["unit", "budget", "size", "context", "loss", "told", "smoothed_size", "smoothed_context"]
CURVE_HEAD = ["group", "run", "spent_flops", "spent_seconds", "spent_tokens"]
CURVE_HEAD += ["visible_from", "visible_to", "loss", "low", "high"]
LENGTH_HEAD = ["length_from", "length_to", "documents", "tokens"]
LENGTH_HEAD += ["share_of_documents_shorter", "share_of_tokens_with_length_from_before"]

Rows = Iterable[Sequence[Any]]


def csv_text(head: Sequence[str], rows: Rows) -> str:
    """A table as CSV with a head; what is not known is empty."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([head, *rows])
    return text.getvalue()


def sweep_tables(data: SweepData) -> dict[str, str]:
    """Name of each table -> its CSV."""
    found = {
        "points": csv_text(COLUMNS, ([row[name] for name in COLUMNS] for row in as_rows(data.points))),
        "best-context-loss": csv_text(LOSS_HEAD, (row for one in data.landscapes for row in loss_rows(one))),
        "optimal-context": csv_text(
            CONTEXT_HEAD, (row for one in data.landscapes for row in context_rows(one))
        ),
        "optimal-pair": csv_text(PAIR_HEAD, (row for one in data.landscapes for row in pair_rows(one))),
        "curves": csv_text([*CURVE_HEAD, "unit"], curve_rows(data.curves, data.loss_unit)),
    }
    if data.meter is not None:
        found["document-lengths"] = csv_text(LENGTH_HEAD, length_rows(data.meter))
    return found


def write_tables(data: SweepData, folder: Path) -> list[Path]:
    """Write every table to ``folder``/NAME.csv.

    Raises:
        ConfigError: ``folder`` is a file.
        DataError: it cannot be written to.
    """
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file; give a folder for the tables with --csv")
    written = []
    for name, text in sweep_tables(data).items():
        atomic_write(folder / f"{name}.csv", text, "the table")
        written.append(folder / f"{name}.csv")
    return written


def loss_rows(found: Landscape) -> Rows:
    """Best-context losses: one row a budget, size and context that was measured there."""
    for budget, cells in zip(found.budgets.tolist(), found.cells, strict=True):
        for cell in cells:
            yield [
                found.unit,
                budget,
                cell.size,
                cell.parameters,
                cell.context,
                cell.loss,
                cell.standard_error,
                cell.runs,
            ]


def context_rows(found: Landscape) -> Rows:
    """Optimal contexts: one row a budget and size that has an optimum there."""
    for step, budget in enumerate(found.budgets.tolist()):
        for size, best in found.optima[step].items():
            cell = best.cell
            about = [cell.parameters, cell.context, cell.loss, _yes(best.told), best.edge]
            yield [found.unit, budget, size, *about, found.contexts[size][step]]


def pair_rows(found: Landscape) -> Rows:
    """Optimal pairs of size and context: one row a budget that has one."""
    for step, budget in enumerate(found.budgets.tolist()):
        best = found.overall[step]
        if best is not None:
            cell = best.cell
            yield [
                found.unit,
                budget,
                cell.size,
                cell.context,
                cell.loss,
                _yes(best.told),
                *(found.pairs[step] or ("", "")),
            ]


def curve_rows(curves: Iterable[CurveLine], unit: str) -> Rows:
    """Contextwise curves: one row a run, step and bin."""
    for curve in curves:
        for step, losses in enumerate(curve.losses):
            spent = [
                curve.spent[kind][step] if curve.spent else "" for kind in ("flops", "seconds", "tokens")
            ]
            for place, ((low, high), loss) in enumerate(zip(curve.ends, losses, strict=True)):
                ends = curve.intervals[place] if curve.intervals else ("", "")
                yield [curve.group, curve.label, *spent, low, high, loss, *ends, unit]


def length_rows(meter: DocumentLengths) -> Rows:
    """Document lengths: one row a doubling."""
    for one in meter.bins():
        yield [one.shortest, one.longest, one.documents, one.tokens, one.shorter, one.preceded]


def _yes(value: bool) -> str:
    return "yes" if value else "no"
