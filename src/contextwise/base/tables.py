"""Tables of estimates, counts and texts, with three output formats: terminal (80 columns), HTML and JSON.

A cell is a text, a number, an :class:`~contextwise.base.estimates.Estimate`, None (unknown), or a tuple of texts, one per
line. The column determines the number format. A difference whose interval excludes zero is bold, on the terminal and on
pages.
"""

import html
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from contextwise.base.estimates import CONFIDENCE, NOT_KNOWN, Estimate, as_json, written

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["text", "estimate", "difference", "count", "integer", "percent", "duration"]
KINDS: dict[str, str] = {"estimate": "number", "difference": "+.4f"}
"""Number format of a kind; for other kinds, the format has the name of the kind."""
LONGEST_WORD = 12  # of a title above narrower numbers
MOST_WIDE_COLUMNS = 5
"""Tables with more columns have one space between them on the terminal, instead of two."""

Cell = str | float | Estimate | None | tuple[str, ...]
T = TypeVar("T")


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    title: str  # may contain newlines, which a page shows as spaces
    kind: Kind = "text"
    form: str = ""  # format of its numbers (`written`); by default that of the kind
    interval: Literal["beside", "below", "own", "none"] = "beside"  # position of an estimate's interval
    align: Literal["left", "right"] | None = None  # by default left in the first column, right in others
    missing: str = NOT_KNOWN  # the text for None
    width: int | None = None  # minimum width on the terminal, in characters

    @property
    def format(self) -> str:
        """The format of its numbers."""
        return self.form or KINDS.get(self.kind, "number" if self.kind == "text" else self.kind)

    def lines(self, cell: Cell) -> list[str]:
        """Format a cell as lines of text, without an interval that has its own column."""
        if isinstance(cell, str):
            return [cell]
        if isinstance(cell, tuple):
            return [line for line in cell if line]
        if not isinstance(cell, Estimate):
            return [written(cell, self.format, self.missing)]
        if self.interval == "beside":
            return [written(cell, self.format)]
        limits = cell.interval(self.format) if self.interval == "below" else ""
        return [cell.shown(cell.value, self.format), *([limits] if limits else [])]

    def limits(self, cell: Cell) -> str:
        """Format the cell of the interval's own column."""
        missing = self.missing and NOT_KNOWN  # a text such as "no line" stands in the column of the value
        if cell is None:
            return missing
        return cell.interval(self.format, missing) if isinstance(cell, Estimate) else ""

    def bold(self, cell: Cell) -> bool:
        """Whether the cell is a significant difference."""
        return self.kind == "difference" and isinstance(cell, Estimate) and cell.decided


@dataclass(frozen=True)
class Row:
    """A row of cells with its style."""

    cells: Sequence[Cell]
    series: int | None = None  # color number of the same series in the page's figures
    kind: Kind | None = None  # instead of the columns', as for a row of differences
    bold: bool = False  # the whole row
    last: bool = False  # a rule follows

    def columns(self, columns: list[Column]) -> list[Column]:
        """The table's columns with this row's number format."""
        if self.kind is None:
            return columns
        return [replace(column, kind=self.kind, form="", interval="below", missing="") for column in columns]


@dataclass(frozen=True)
class Table:
    """A table that rich can print and templates can include."""

    title: str
    columns: Sequence[Column | str]  # a string is a column of texts
    rows: Sequence[Row | Sequence[Cell]]  # one cell per column
    notes: Sequence[str] = ()  # sentences below the table

    @property
    def heads(self) -> list[Column]:
        """The columns."""
        return [Column(column) if isinstance(column, str) else column for column in self.columns]

    @property
    def lines(self) -> list[Row]:
        """The rows."""
        return [row if isinstance(row, Row) else Row(row) for row in self.rows]

    def _layout(self) -> list[tuple[str, Column, bool]]:
        """Title and column of all columns, those of intervals that have their own among them; whether it is such a one."""
        estimates = [cell for row in self.lines for cell in row.cells if isinstance(cell, Estimate)]
        interval = f"{estimates[0].confidence if estimates else CONFIDENCE:.0%} interval"
        layout = [
            [(each.title, each, False), (interval, each, True)][: 1 + (each.interval == "own")] for each in self.heads
        ]
        return [*chain.from_iterable(layout)]

    def _cells(self, row: Row) -> Iterator[tuple[list[str], bool]]:
        """Lines of each cell of a row, and of intervals in their own columns; whether it is a significant difference."""
        for column, cell in zip(row.columns(self.heads), row.cells, strict=True):
            yield column.lines(cell), column.bold(cell)
            if column.interval == "own":
                yield [column.limits(cell)], column.bold(cell)

    def __rich__(self) -> RenderableType:
        """Render for the terminal."""
        padding = (0, 1, 0, 0) if len(self.columns) > MOST_WIDE_COLUMNS else (0, 1)
        table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=padding)
        rows = [[*self._cells(row)] for row in self.lines]
        for place, (title, column, is_interval) in enumerate(self._layout()):
            if is_interval:
                table.add_column(title, justify="right", no_wrap=True)
                continue
            justify, numeric = column.align or ("right" if place else "left"), column.kind != "text"
            if numeric:  # its numbers are never broken, but long names above them are
                longest = max([LONGEST_WORD, *(len(line) for cells in rows for line in cells[place][0])])
                lines = title.split("\n")
                title = "\n".join(line if " " in line else textwrap.fill(line, longest) for line in lines)
            layout: dict[str, Any] = {"justify": justify, "no_wrap": numeric, "min_width": column.width}
            table.add_column(Text(title), overflow="fold", **layout)
        for row, cells in zip(self.lines, rows, strict=True):
            texts = (Text("\n".join(lines), style="bold" if row.bold or bold else "") for lines, bold in cells)
            table.add_row(*texts, end_section=row.last)
        return terminal(*([self.title] if self.title else []), table, *self.notes)

    def __html__(self) -> str:
        """Render for a page: escaped, with the classes of the style sheet."""
        title, escape = html.escape(self.title), html.escape
        styles, titles = [], ""
        for name, column, is_interval in self._layout():
            styles.append(' style="text-align:left"' * (column.align == "left" and not is_interval))
            titles += f'<th scope="col"{styles[-1]}>{escape(_in_line(name))}</th>'
        body = []
        for row in self.lines:
            cells = []
            for number, (lines, bold) in enumerate(self._cells(row)):
                first, *others = lines or [""]
                text = escape(first) + "".join(f" <br><small>{escape(line)}</small>" for line in others)
                if styles[number]:
                    text = f'<div class="words">{text}</div>'
                decided = ' class="decided"' if bold else ""
                cells.append(
                    f"<td{decided}{styles[number]}>{text}</td>"
                    if number
                    else f'<th scope="row">{mark(row.series)}{text}</th>'
                )
            best = ' class="best"' if row.bold else ""
            body.append(f"<tr{best}>{''.join(cells)}</tr>")
        lines = [f'<p class="caption">{title}</p>'] if title else []
        lines += [f'<div class="scroll" tabindex="0" role="region" aria-label="{title or "table"}">', "<table>"]
        lines += [f"<thead><tr>{titles}</tr></thead>", "<tbody>", *body, "</tbody>", "</table>", "</div>"]
        lines += [f'<p class="caption">{escape(note)}</p>' for note in self.notes]
        return "\n".join(lines)

    _repr_html_ = __html__

    def to_pandas(self) -> "pd.DataFrame":
        """The cells as a data frame; the limits of estimates are in two further columns, ``low`` and ``high`` of each."""
        import pandas as pd

        values: dict[str, list[Any]] = {}
        for number, column in enumerate(self.heads):
            cells = [row.cells[number] for row in self.lines]
            name = _in_line(column.title) or f"column {number + 1}"
            estimates = any(isinstance(cell, Estimate) for cell in cells)
            plain = [cell.value if isinstance(cell, Estimate) else cell for cell in cells]
            values[name] = [" ".join(filter(None, cell)) if isinstance(cell, tuple) else cell for cell in plain]
            for limit in ("low", "high") if estimates else ():
                values[f"{name} {limit}"] = [getattr(cell, limit, None) for cell in cells]
        return pd.DataFrame(values)

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON values."""
        columns = [
            {name: value for name, value in asdict(column).items() if value not in (None, "")}
            if isinstance(column, Column)
            else column
            for column in self.columns
        ]
        rows = [
            {**asdict(row), "cells": as_json(list(row.cells))} if isinstance(row, Row) else as_json(list(row))
            for row in self.rows
        ]
        notes = {"notes": list(self.notes)} if self.notes else {}
        return {"title": self.title, "columns": columns, "rows": rows, **notes}


def terminal(*parts: RenderableType | Table) -> Group:
    """Stack sentences, tables and blank lines (empty texts); sentences are indented like tables."""
    sentences = (Padding(Text(part), (0, 0, 0, 1)) if part and isinstance(part, str) else part for part in parts)
    return Group(*sentences)


def spread(values: Sequence[T], count: int) -> list[T]:
    """At most ``count`` of some values, evenly from the first to the last: the rows of a table that would be too long."""
    if len(values) <= count:
        return list(values)
    return [values[round(i * (len(values) - 1) / (count - 1))] for i in range(count)]


def _in_line(title: str) -> str:
    """A column's title in one line, without the hyphens that break words."""
    return " ".join(title.replace("-\n", "").replace("/\n", "/").split())


def mark(series: int | None) -> str:
    """HTML of the colored square of a series of the page's figures."""
    return "" if series is None else f'<span class="mark series-{series % 6}" aria-hidden="true"></span>'
