"""SIGINT and SIGTERM end the command line with one line and one exit status, whatever it is doing.

The command calls :func:`prepare_process` before it imports anything slow: from then on a signal ends the process at once.
Later, inside :func:`raising`, it raises :class:`Stopped`, so that what is open is closed; measurements and training
install a handler of their own, which lets them save (:class:`contextwise.base.progress.Interruption`). Where Contextwise is
imported as a library, signals are left alone.
"""

import atexit
import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)
_EXIT_STATUS = 128
"""Of a process that a signal ended: this plus the signal's number, as shells report it."""


class Stopped(KeyboardInterrupt):
    """The process was asked to stop."""


class Received:
    """The last signal that asked this process to stop."""

    number: int | None = None  # of the signal; None before the first
    raised = False  # whether it raised `Stopped`


received = Received()


def exit_status() -> int:
    """The exit status after the received signal: 130 for SIGINT, 143 for SIGTERM."""
    return _EXIT_STATUS + (received.number or signal.SIGINT)


def message() -> str:
    """What is printed about the received signal."""
    name = signal.Signals(received.number or signal.SIGINT).name
    return f"stopped by {'Ctrl-C' if name == 'SIGINT' else name}; run the same command again"


def processes() -> int:
    """The number of processes of this launch; torchrun sets ``WORLD_SIZE``, which counts for nothing without its address."""
    size = os.environ.get("WORLD_SIZE", "")
    return int(size) if size.isdecimal() and "MASTER_ADDR" in os.environ else 1


def first_process() -> bool:
    """Whether this is the first process of its launch, which prints for all; torchrun numbers them in ``RANK``.

    A shell may keep the number from another launch: one that is not of this launch counts for nothing.
    """
    return os.environ.get("RANK", "0") not in map(str, range(1, processes()))


def end_at_once(number: int, _: object = None) -> None:
    """Handle a signal while nothing is open: print a line and end the process."""
    received.number = number
    try:
        if first_process():
            os.write(2, f"{message()}\n".encode())
    finally:
        os._exit(exit_status())


def prepare_process() -> None:
    """Let signals end this process at once; for the command's own process."""
    for number in SIGNALS:
        signal.signal(number, end_at_once)
        # At interpreter exit Python restores the default handlers, whose exit status is not ours.
        atexit.register(signal.signal, number, signal.SIG_IGN)


@contextlib.contextmanager
def handled(handle: Callable[[int, object], None], previous: dict[int, Any]) -> Iterator[None]:
    """Handle the signals in the ``with`` block; their handlers of before are put into ``previous``, and back.

    No effect outside the main thread, which alone receives signals.
    """
    with contextlib.suppress(ValueError):
        for number in SIGNALS:
            previous[number] = signal.signal(number, handle)
    try:
        yield
    finally:
        for each, handler in previous.items():
            signal.signal(each, handler)


def raising() -> contextlib.AbstractContextManager[None]:
    """Context in which the signals raise :class:`Stopped`; a forked child ends as the signal would end it."""
    process = os.getpid()

    def handle(number: int, _: object) -> None:
        if os.getpid() != process:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        received.number, received.raised = number, True
        raise Stopped

    received.number, received.raised = None, False
    return handled(handle, {})
