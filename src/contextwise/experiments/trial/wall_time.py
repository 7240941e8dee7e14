"""The wall time that a trial has taken, in its folder's ``seconds.json``."""

import time
from pathlib import Path

from contextwise.base.files import read_sealed_json, write_sealed_json


class WallTime:
    """The wall time of a trial: that of earlier processes, once it is read, and that of this one since ``started``."""

    def __init__(self, folder: Path) -> None:
        self.file, self.before, self.started = folder / "seconds.json", 0.0, time.monotonic()

    @property
    def seconds(self) -> float:
        """Wall time of the trial so far."""
        return self.before + time.monotonic() - self.started

    def read(self) -> None:
        """Add the time of earlier processes."""
        if self.file.exists():
            self.before = read_sealed_json(self.file, "the time that the trial has taken")["seconds"]

    def write(self) -> None:
        """Keep the time for later processes."""
        write_sealed_json(self.file, {"seconds": round(self.seconds, 3)}, "the time")
