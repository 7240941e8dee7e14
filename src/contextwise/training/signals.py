"""A request to stop, made by a signal and noticed at the next safe place."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequest:
    """Set by SIGTERM or SIGINT. A second signal of the same kind acts as if nobody had listened."""

    def __init__(self) -> None:
        self.name: str | None = None

    def __bool__(self) -> bool:
        return self.name is not None

    @contextlib.contextmanager
    def listening(self) -> Iterator["StopRequest"]:
        """Listen while the block runs; only the main thread can."""
        before: dict[signal.Signals, Any] = {}

        def note(number: int, frame: FrameType | None) -> None:
            self.name = signal.Signals(number).name
            signal.signal(number, before[signal.Signals(number)])

        try:
            for number in _SIGNALS:
                before[number] = signal.signal(number, note)
        except ValueError:  # not the main thread: signals go to somebody else
            yield self
            return
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
