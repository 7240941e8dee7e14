"""Progress on the terminal, messages, and requests to stop.

All messages for people are written to :data:`console` (standard error); standard output is for results that programs read.
"""

import contextlib
import functools
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from threading import Event
from typing import Any

from rich import progress
from rich.console import Console
from rich.segment import Segment

from contextwise.base.errors import Interrupted
from contextwise.base.stopping import first_process, handled, received

STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that steer a terminal or the direction of what follows."""


class Terminal(Console):
    """A console on which texts of users steer nothing: such characters are shown as escapes.

    Lines of a file or pipe have no blanks at their end.
    """

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        rendered = super()._render_buffer(
            segment if segment.control else Segment(printable(segment.text), segment.style) for segment in buffer
        )
        return rendered if self.is_terminal else re.sub(" +$", "", rendered, flags=re.MULTILINE)


def printable(text: str) -> str:
    """A text with escapes in place of :data:`STEERING` characters."""
    return STEERING.sub(lambda found: ascii(found[0])[1:-1], text)


LONGEST_ESTIMATE_SECONDS = 86400.0
"""Seconds of which the time left is estimated, at most; and of 1000 advances."""
LINE_EVERY_SECONDS = 20.0
"""Seconds between two lines of progress in a log, or more."""

console = Terminal(stderr=True, highlight=False)
document_printed = Event()
"""Set once the command has printed its JSON document on standard output, which holds one."""


@contextlib.contextmanager
def quieten() -> Iterator[None]:
    """Print no messages and progress for people inside the ``with`` block."""
    before, console.quiet = console.quiet, True
    try:
        yield
    finally:
        console.quiet = before


def say(text: str, command: bool = False) -> None:
    """Print one message for the user, once for all the processes of a launch.

    A terminal shows whole words; a ``command``, and a line of a log file, are one line for those who copy or search it.
    """
    if first_process():
        whole = command or not console.is_terminal or max(map(len, text.split()), default=0) > console.width
        console.print(text, markup=False, soft_wrap=whole)


@functools.cache
def say_once(text: str) -> None:
    """Print a message as :func:`say` does, the first time that it is said: the runs of a trial have the same notes."""
    say(text)


@contextlib.contextmanager
def progress_bar(description: str, total: float | None, unit: str = "") -> Iterator[Callable[..., None]]:
    """Show one bar ("tokenize") of ``total`` units of work (None: unknown); in a log, a line every 20 seconds or more.

    Yields ``advance(amount=1, *, done=None, note=None)``, which adds an amount or sets the amount that is ``done``.
    """
    bar = progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(bar_width=20),
        progress.MofNCompleteColumn(),
        progress.TextColumn(unit),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
        progress.TextColumn("{task.fields[note]}", markup=False),
        console=console,
        transient=True,
        speed_estimate_period=LONGEST_ESTIMATE_SECONDS,
        get_time=time.monotonic,
        disable=console.quiet or not (console.is_terminal or console.is_jupyter),
    )
    with bar:
        task, printed = bar.add_task(description, total=total, note=""), time.monotonic()
        state = bar.tasks[0]

        def print_line() -> None:
            from contextwise.base.estimates import duration  # slow

            of = "" if total is None else f" of {total:,.0f}"
            left = state.time_remaining
            left_in_words = "" if left is None else f"about {duration(left)} left"
            parts = [f"{description}: {state.completed:,.0f}{of} {unit}".rstrip(), state.fields["note"], left_in_words]
            say(", ".join(filter(None, parts)))

        def advance(amount: float = 1, *, done: float | None = None, note: str | None = None) -> None:
            if note is not None:
                bar.update(task, note=note)
            if done is not None and not state.completed:
                state.completed = done  # before a resumed start, of which the speed says nothing
            else:
                bar.update(task, advance=amount if done is None else None, completed=done)
            nonlocal printed
            if bar.disable and not bar.finished and time.monotonic() - printed >= LINE_EVERY_SECONDS:
                print_line()
                printed = time.monotonic()

        yield advance


class Interruption:
    """A request to stop this process, set by SIGTERM or SIGINT and handled at the next safe point.

    Long loops call :meth:`check` between two pieces of work. A second signal of the same kind has its default effect.
    """

    def __init__(self) -> None:
        self.signal: str | None = None  # name of the signal that requested a stop
        self._listening = False

    @property
    def requested(self) -> bool:
        """Whether a stop was requested."""
        return self.signal is not None

    def check(self, message: str = "stopped; run the same command again") -> None:
        """Raise :class:`Interrupted` with the text ``message`` if a stop was requested."""
        if self.requested:
            raise Interrupted(message)

    @contextlib.contextmanager
    def listening(self) -> Iterator["Interruption"]:
        """Handle the signals inside the ``with`` block; no effect outside the main thread or inside another block."""
        previous: dict[int, Any] = {}

        def handle(number: int, _: object) -> None:
            self.signal = signal.Signals(number).name
            received.number = number
            signal.signal(number, previous[number])

        if self._listening:
            yield self
            return
        with handled(handle, previous):
            self._listening = bool(previous)
            try:
                yield self
            finally:
                self._listening, self.signal = False, None


interruption = Interruption()
"""The request to stop this process."""
