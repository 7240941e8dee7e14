"""Progress on the terminal, messages, and requests to stop.

All messages for people are written to :data:`console` (standard error); standard output is for results that programs read.
"""

import contextlib
import os
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


def first_process() -> bool:
    """Whether this is the first process of its launch, which prints for all; torchrun numbers them in ``RANK``."""
    return os.environ.get("RANK", "0") == "0"


def say(text: str) -> None:
    """Print one message for the user; long paths are not wrapped."""
    console.print(text, markup=False, soft_wrap=True)


@contextlib.contextmanager
def progress_bar(description: str, total: float | None, unit: str = "") -> Iterator[Callable[..., None]]:
    """Show one bar; yields ``advance(amount=1, *, done=None, note=None)``; ``done`` sets the total instead.

    Args:
        description: what is being done ("tokenize").
        total: the amount of work, or None if unknown.
        unit: unit of the counts, shown after them.
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

        def advance(amount: float = 1, *, done: float | None = None, note: str | None = None) -> None:
            if note is not None:
                bar.update(task, note=note)
            bar.update(task, advance=amount if done is None else None, completed=done)

        yield advance


class Interruption:
    """A request to stop this process, set by SIGTERM or SIGINT and handled at the next safe point.

    Long loops call :meth:`check` between two pieces of work. A second signal of the same kind has its default effect.

    Attributes:
        signal: name of the signal that requested a stop, or None.
    """

    SIGNALS = (signal.SIGTERM, signal.SIGINT)

    def __init__(self) -> None:
        self.signal: str | None = None
        self._listening = False

    @property
    def requested(self) -> bool:
        """Whether a stop was requested."""
        return self.signal is not None

    def check(self, message: str = "stopped; run the same command again") -> None:
        """Raise an error if a stop was requested.

        Raises:
            Interrupted: a stop was requested; has the text ``message``.
        """
        if self.requested:
            raise Interrupted(message)

    @contextlib.contextmanager
    def listening(self) -> Iterator["Interruption"]:
        """Handle the signals inside the ``with`` block; no effect outside the main thread or inside another block."""
        previous: dict[signal.Signals, Any] = {}

        def handle(number: int, frame: FrameType | None) -> None:
            self.signal = signal.Signals(number).name
            signal.signal(number, previous[signal.Signals(number)])

        if self._listening:
            yield self
            return
        try:
            for number in self.SIGNALS:
                previous[number] = signal.signal(number, handle)
        except ValueError:  # not the main thread, which alone receives signals
            yield self
            return
        self._listening, self.signal = True, None
        try:
            yield self
        finally:
            self._listening, self.signal = False, None
            for number, handler in previous.items():
                signal.signal(number, handler)


interruption = Interruption()
"""The request to stop this process."""
