"""One run of a sweep as a process of its own: ``python -m contextwise train``, with a log file."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from contextwise.base.errors import ConfigError
from contextwise.base.files import is_held

INPUT_AT_FAULT = 2
_PR_SET_PDEATHSIG = 1
POLL_SECONDS = 0.5
WAIT_FOR_LOCK_SECONDS = 120.0
"""How long a run waits for a process that still holds it: one whose node was lost may be saving."""


@dataclass(frozen=True)
class Outcome:
    """How an attempt at a run ended.

    Attributes:
        status: exit status; negative: minus the signal that killed the process.
        reason: of a failure, one sentence.
    """

    status: int
    reason: str

    @property
    def worth_another(self) -> bool:
        """Whether the same command may do better; not if it was refused."""
        return self.status != INPUT_AT_FAULT


class RunProcess:
    """A training process. :meth:`stop` lets it save; should the process that started it be killed, it ends too, at worst at
    the cost of the steps since its last checkpoint.

    Args:
        sweep: the sweep's folder.
        run: id of the run; its recipe must be in the folder.
        environment: the variables of the process.
    """

    def __init__(self, sweep: Path, run: str, environment: Mapping[str, str]) -> None:
        sweep = sweep.absolute()
        command = [sys.executable, "-m", "contextwise", "train", str(sweep / "recipes" / f"{run}.yaml")]
        command += ["--out", str(sweep / "runs" / run)]
        self.log = sweep / "logs" / f"{run}.log"
        try:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            with self.log.open("ab") as log:
                log.write(f"---- {time.strftime('%Y-%m-%d %H:%M:%S')}\n".encode())
                log.flush()
                self.begin = log.tell()
                self.process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=dict(environment),
                    start_new_session=True,  # Ctrl-C reaches the sweep alone, which passes it on
                    preexec_fn=_die_with_parent if sys.platform == "linux" else None,
                )
        except OSError as error:
            raise ConfigError(f"the run {run} cannot be started: {error}") from error

    def poll(self) -> Outcome | None:
        """How it ended; None while it runs."""
        status = self.process.poll()
        return None if status is None else Outcome(status, self._reason(status))

    def stop(self) -> None:
        """Ask it to save and end."""
        if self.process.poll() is None:
            self.process.terminate()

    def wait(self) -> Outcome:
        """Until it has ended."""
        status = self.process.wait()
        return Outcome(status, self._reason(status))

    def _reason(self, status: int) -> str:
        """The error that its log ends with."""
        if status < 0:
            name = signal.Signals(-status).name
            memory = "; the machine may have run out of memory" if name == "SIGKILL" else ""
            return f"killed by {name}{memory}"
        with self.log.open("rb") as log:
            log.seek(self.begin)
            lines = log.read().decode(errors="replace").splitlines()
        lines = [line.strip() for line in lines if line.strip()]
        errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        return (errors or lines or [f"exit status {status}"])[-1]


def _die_with_parent() -> None:
    # The kernel may send it again for each thread of the parent, and a second SIGTERM does not wait for training to save.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def train_run(sweep: str, run: str) -> tuple[int, str]:
    """Train one run of the sweep in this folder, where this is called; returns the exit status and, of a failure, the reason.

    For schedulers that start a function on some node: what they have set of threads and GPUs, the training inherits.
    """
    if not (Path(sweep) / "recipes" / f"{run}.yaml").exists():
        return (
            2,
            f"{os.uname().nodename} does not see {sweep}; a sweep needs a file system that all nodes share",
        )
    deadline = time.monotonic() + WAIT_FOR_LOCK_SECONDS
    while is_held(Path(sweep) / "runs" / run, inside=True) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    process = RunProcess(Path(sweep), run, os.environ)
    try:
        while (outcome := process.poll()) is None:
            time.sleep(POLL_SECONDS)
    except BaseException:  # cancelled: KeyboardInterrupt
        process.stop()
        process.wait()
        raise
    return outcome.status, outcome.reason


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
