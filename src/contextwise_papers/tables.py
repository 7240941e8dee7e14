"""Tables and plots of items: rows of values with a format for each column, and points of a series."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from contextwise.report import Table
from contextwise.stats import Estimate


@dataclass(frozen=True)
class Plot:
    """A figure as numbers, of the kind ``lines``, ``bars`` or ``points``; ``levels`` are horizontal lines by name.

    ``series`` are by name: points ``{"x": …, "y": …}``, with ``low`` and ``high`` where there is an interval, and ``text``
    where a point has a name. ``logarithmic``: the axes that are, ``""``, ``"x"``, ``"y"`` or ``"xy"``.
    """

    title: str
    x: str
    y: str
    series: dict[str, list[dict[str, Any]]]
    kind: str = "lines"
    levels: dict[str, float] = field(default_factory=dict)
    logarithmic: str = ""


def points(values: Mapping[Any, Any]) -> list[dict[str, Any]]:
    """The points of a series, from x to a number, an estimate, or None where there is no point."""
    return [point(x, y) for x, y in values.items() if y is not None]


def point(x: Any, y: Any) -> dict[str, Any]:
    """A point of a series; ``y`` is a number, or an estimate (or its JSON form) whose interval is drawn."""
    y = Estimate.from_dict(y) if isinstance(y, dict) else y
    if not isinstance(y, Estimate):
        return {"x": x, "y": y}
    return {"x": x, "y": y.value, **({"low": y.low, "high": y.high} if y.has_interval else {})}


def table_of(title: str, columns: Sequence[Sequence[str]], rows: Iterable[Any]) -> Table:
    """A table of texts, from numbers, estimates or their JSON form; a text stays as it is, and None is an empty cell.

    ``columns`` are titles, or pairs of a title and the format of its numbers and estimates: ``("loss", ".4f")``.
    """

    def text(value: Any, form: str) -> str:
        value = Estimate.from_dict(value) if isinstance(value, dict) else value
        return "" if value is None else value if isinstance(value, str) else format(value, form)

    titles, forms = zip(*((c, "") if isinstance(c, str) else c for c in columns), strict=True)
    cells = [[text(value, form) for value, form in zip(row, forms, strict=True)] for row in rows]
    return Table(title, list(titles), cells)


def printed_table(printed: dict[str, Any], title: str = "") -> Table | None:
    """The printed figures of a document as a table; None where they are not one.

    Columns may leave out that of the rows' names.
    """
    if not {"columns", "rows"} <= set(printed):
        return None
    columns = [str(column) for column in printed["columns"]]
    rows = [[str(name), *map(str, values)] for name, values in printed["rows"].items()]
    most = max(len(columns), *(len(row) for row in rows))
    head = ["", *columns] if len(columns) < most else columns
    return Table(title, head, [[*row, *[""] * (most - len(row))] for row in rows])


def seeds_behind(count: int) -> str:
    """The number of seeds behind a mean, in words."""
    return f"mean of {count} seeds" if count > 1 else "one seed"
