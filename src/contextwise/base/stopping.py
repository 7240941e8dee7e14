"""SIGINT and SIGTERM end the command line with one line and one exit status, whatever it is doing.

The command calls :func:`prepare_process` before it imports anything slow: from then on a signal ends the process at once.
Later, inside :class:`Raising`, it raises :class:`Stopped`, so that what is open is closed; measurements and training
install a handler of their own, which lets them save (:class:`contextwise.base.progress.Interruption`). Where Contextwise is
imported as a library, signals are left alone.
"""

import atexit
import os
import signal

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


class Raising:
    """Context in which the signals raise :class:`Stopped`; no effect outside the main thread."""

    def __enter__(self) -> None:
        received.number, received.raised = None, False
        self.process = os.getpid()
        try:
            self.previous = {number: signal.signal(number, self.handle) for number in SIGNALS}
        except ValueError:  # not the main thread, which alone receives signals
            self.previous = {}

    def __exit__(self, *_: object) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)

    def handle(self, number: int, _: object) -> None:
        """Raise :class:`Stopped`; end a forked child as the signal would."""
        if os.getpid() != self.process:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        received.number, received.raised = number, True
        raise Stopped
