"""Live progress on the terminal, quiet lines where there is none, and requests to stop.

Everything that people read goes through :data:`console` (standard error), so that standard output stays free for results
that programs read.
"""

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from contextwise.base.errors import Interrupted

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


class Interruption:
    """A request to stop this process, made by SIGTERM or SIGINT and honored at the next safe point.

    Long loops call :meth:`check` between two pieces of work. A second signal of the same kind acts as if nobody listened.

    Attributes:
        signal: name of the signal that asked to stop; None while nothing did.
    """

    SIGNALS = (signal.SIGTERM, signal.SIGINT)

    def __init__(self) -> None:
        self.signal: str | None = None
        self._listening = False

    @property
    def requested(self) -> bool:
        """Whether the process was asked to stop."""
        return self.signal is not None

    def check(self, message: str = "stopped; run the same command again") -> None:
        """
        Raises:
            Interrupted: with ``message``, if the process was asked to stop.
        """
        if self.requested:
            raise Interrupted(message)

    @contextlib.contextmanager
    def listening(self) -> Iterator["Interruption"]:
        """Listen for the signals while the block runs. Only the main thread can; a block inside another changes nothing."""
        before: dict[signal.Signals, Any] = {}

        def note(number: int, frame: FrameType | None) -> None:
            self.signal = signal.Signals(number).name
            signal.signal(number, before[signal.Signals(number)])

        if self._listening:
            yield self
            return
        try:
            for number in self.SIGNALS:
                before[number] = signal.signal(number, note)
        except ValueError:  # not the main thread: signals go to another one
            yield self
            return
        self._listening, self.signal = True, None
        try:
            yield self
        finally:
            self._listening, self.signal = False, None
            for number, handler in before.items():
                signal.signal(number, handler)


interruption = Interruption()
"""The request to stop this process."""
