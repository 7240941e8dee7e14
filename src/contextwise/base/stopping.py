"""SIGINT and SIGTERM end the command line with one line and one exit status, whatever it is doing.

:mod:`contextwise` imports this module first: a signal that arrives while the command is being imported ends the process at once.
Later, inside :func:`raising`, it raises :class:`Stopped`, so that what is open is closed; measurements and training install a
handler of their own, which lets them save (:class:`contextwise.base.progress.Interruption`).
"""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)
_EXIT_STATUS = 128
"""Of a process that a signal ended: this plus the signal's number, as shells report it."""


class Stopped(KeyboardInterrupt):
    """The process was asked to stop."""


class Received:
    """The last signal that asked this process to stop.

    Attributes:
        number: of the signal; None before the first.
        raised: whether it raised :class:`Stopped`.
    """

    number: int | None = None
    raised = False


received = Received()


def is_command() -> bool:
    """Whether this process is the command ``contextwise``, or ``python -m contextwise``."""
    return os.path.basename(sys.argv[0]) == "contextwise" or sys.orig_argv[1:3] == ["-m", "contextwise"]  # noqa: PTH119


def exit_status() -> int:
    """The exit status after the received signal: 130 for SIGINT, 143 for SIGTERM."""
    return _EXIT_STATUS + (received.number or signal.SIGINT)


def message() -> str:
    """What is printed about the received signal."""
    name = signal.Signals(received.number or signal.SIGINT).name
    return f"stopped by {'Ctrl-C' if name == 'SIGINT' else name}"


def end_at_once(number: int, _: FrameType | None = None) -> None:
    """Handle a signal while nothing is open: print a line and end the process."""
    received.number = number
    if os.environ.get("RANK", "0") == "0":
        with contextlib.suppress(OSError):
            os.write(2, f"{message()}\n".encode())
    os._exit(exit_status())


@contextlib.contextmanager
def raising() -> Iterator[None]:
    """Let the signals raise :class:`Stopped` inside the block; no effect outside the main thread."""
    process, hook = os.getpid(), sys.unraisablehook
    previous: dict[signal.Signals, Any] = {}

    def handle(number: int, _: FrameType | None) -> None:
        if os.getpid() != process:  # a forked child
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        received.number, received.raised = number, True
        raise Stopped

    def unraisable(problem: Any) -> None:
        # Raised where Python cannot pass it on, in a finalizer for instance.
        if isinstance(problem.exc_value, Stopped):
            end_at_once(received.number or signal.SIGINT)
        hook(problem)

    received.number, received.raised = None, False
    try:
        for number in SIGNALS:
            previous[number] = signal.signal(number, handle)
    except ValueError:  # not the main thread, which alone receives signals
        yield
        return
    sys.unraisablehook = unraisable
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for number, handler in previous.items():
            signal.signal(number, handler)


if is_command():
    for _number in SIGNALS:
        signal.signal(_number, end_at_once)
