"""Live progress on the terminal, and quiet, readable lines where there is none.

Everything that people read goes through :data:`console` (standard error), so that standard output stays free for results
that programs read.
"""

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

console = Console(stderr=True, highlight=False)


def say(text: str) -> None:
    """One line for the person at the terminal; long paths in it are left whole."""
    console.print(text, markup=False, soft_wrap=True)


@contextlib.contextmanager
def progress_bar(description: str, total: float | None, unit: str = "") -> Iterator[Callable[..., None]]:
    """Show one bar; yields ``advance(amount=1, *, note="")``.

    Args:
        description: what is being done ("tokenize").
        total: the amount of work, or None if unknown.
        unit: name of what is counted, shown behind the counts.
    """
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bar:
        task = bar.add_task(description, total=total, note="")

        def advance(amount: float = 1, *, note: str | None = None) -> None:
            if note is not None:
                bar.update(task, note=note)
            bar.update(task, advance=amount)

        yield advance
