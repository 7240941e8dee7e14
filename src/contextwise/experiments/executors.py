"""Executors: train the runs of a set in this process, in processes on this machine, or in a way that another package offers.

One run at a time needs no process of its own; else every run is ``python -m contextwise train`` in a separate process, with a
log file. A launcher is a subclass of :class:`ExecutorSettings`, an entry point of the group ``contextwise.launchers`` with the
name of its ``kind``.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from pydantic import Field

from contextwise.base.config import Settings
from contextwise.base.errors import ConfigError, ContextwiseError, Interrupted, one_line
from contextwise.base.files import is_held
from contextwise.base.trust import trust
from contextwise.experiments.folder import PlannedRun, RunSetFolder

_PR_SET_PDEATHSIG = 1
POLL_SECONDS = 0.5
WAIT_FOR_LOCK_SECONDS = 120.0
"""Time that a run waits for a process that still holds it: one whose node was lost may be saving."""


class ExecutorSettings(Settings):
    """Where runs are trained: on this machine, in this process or in several. Changes no result."""

    kind: Literal["local"] = Field(default="local", description="this machine")
    jobs: int = Field(default=1, ge=1, description="runs at a time on this machine")
    threads: int | None = Field(
        default=None, ge=1, description="threads of each run; OMP_NUM_THREADS, else the cores shared out, if not given"
    )

    @property
    def here(self) -> bool:
        """Whether runs are trained in this process: one at a time, with its threads, where it does not see several GPUs."""
        return self.kind == "local" and self.jobs == 1 and self.threads is None and len(visible_gpus()) < 2

    @property
    def run_threads(self) -> int:
        """Threads of each run that these settings start in a process of its own."""
        if self.threads is not None:
            return self.threads
        given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
        return int(given) if given.isdigit() and int(given) else max(1, cores() // self.jobs)

    def executor(self, folder: RunSetFolder) -> "Executor":
        """The executor of the runs in a folder."""
        return LocalExecutor(folder, self)


@dataclass(frozen=True)
class Outcome:
    """How an attempt at a run ended: its exit status, or minus the signal that killed it; of a failure the reason.

    ``error``: of a run in this process.
    """

    status: int
    reason: str
    error: Exception | None = None


class Executor(Protocol):
    """Starts runs and reports how they ended.

    ``here``: runs are trained in this process, one after another. ``has_room``: another run can be started now. ``busy``: a run
    has been started and has not ended. ``running``: ids of the runs that are being trained, without those that wait for a node.
    ``start``: false if another process is training the run, so that it must wait. ``poll``: the runs that ended since the last
    call. ``stop``: ask all runs to save and end. ``close``: leave nothing running.
    """

    here: bool

    @property
    def has_room(self) -> bool: ...
    @property
    def busy(self) -> bool: ...
    def running(self) -> set[str]: ...
    def start(self, run: PlannedRun) -> bool: ...
    def poll(self) -> list[tuple[PlannedRun, Outcome]]: ...
    def stop(self) -> None: ...
    def close(self) -> None: ...


class RunHere:
    """A run of a run set that is trained in this process, when it is polled."""

    def __init__(self, folder: RunSetFolder, run: str) -> None:
        self.folder, self.run = folder, run

    def train(self) -> None:
        """Train the run, or resume it."""
        from contextwise.training.recipe import load_recipe
        from contextwise.training.run import train

        train(load_recipe(self.folder.recipe_file(self.run), output=self.folder.run_folder(self.run).path))

    def poll(self) -> Outcome:
        """Train the run; whatever the error is, it fails this run alone, and is written to its log."""
        try:
            self.train()
        except Interrupted as error:  # no fault of the run's
            return Outcome(error.exit_status, str(error), error)
        except Exception as error:
            log = self.folder.log_file(self.run)
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("a", encoding="utf-8") as file:
                traceback.print_exc(file=file)
            traceback.clear_frames(error.__traceback__)  # which hold its model
            if isinstance(error, ContextwiseError):
                return Outcome(error.exit_status, str(error), error)
            return Outcome(1, f"{type(error).__name__}: {one_line(error)}", error)
        return Outcome(0, "")

    def stop(self) -> None:
        """Training hears the request to stop itself."""

    def wait(self) -> None:
        """Nothing is left running."""


class RunProcess:
    """A training process of a run whose recipe is in the folder of the run set.

    :meth:`stop` lets it save. If the process that started it is killed, it ends too, at worst with the loss of the steps since
    its last checkpoint.
    """

    def __init__(self, folder: Path, run: str, environment: Mapping[str, str]) -> None:
        folder = folder.absolute()
        command = [sys.executable, "-m", "contextwise", "train", str(folder / "recipes" / f"{run}.yaml")]
        command += ["--out", str(folder / "runs" / run)]
        command += ["--trust-remote-code"] * trust.remote_code
        self.log = folder / "logs" / f"{run}.log"
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
                    start_new_session=True,  # Ctrl-C reaches the parent alone, which passes it on
                    preexec_fn=_die_with_parent if sys.platform == "linux" else None,
                )
        except OSError as error:
            raise ConfigError(f"the run {run} cannot be started: {error}") from error

    def poll(self) -> Outcome | None:
        """Return the outcome of the process; None while it runs."""
        return None if self.process.poll() is None else self.wait()

    def stop(self) -> None:
        """Request the process to save and exit."""
        self.process.terminate()

    def wait(self) -> Outcome:
        """Wait for the process to exit; the reason of a failure is the last error in its log."""
        status = self.process.wait()
        if status < 0:
            name = signal.Signals(-status).name
            memory = "; the machine may have run out of memory" if name == "SIGKILL" else ""
            return Outcome(status, f"killed by {name}{memory}")
        with self.log.open("rb") as log:
            log.seek(self.begin)
            lines = log.read().decode(errors="replace").splitlines()
        lines = [line.strip() for line in lines if line.strip()]
        errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        return Outcome(status, (errors or lines or [f"exit status {status}"])[-1])


def _die_with_parent() -> None:
    # The kernel may send it again for each thread of the parent, and a second SIGTERM does not wait for training to save.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def train_run(folder: str, run: str, trust_remote_code: bool = False, threads: int | None = None) -> tuple[int, str]:
    """Train one run of the set in ``folder`` on the machine where this is called.

    For schedulers that start a function on some node: the training inherits their settings of GPUs, and of threads if none are
    given.

    Returns:
        The exit status and, of a failure, the reason.
    """
    trust.remote_code = trust_remote_code
    if not (Path(folder) / "recipes" / f"{run}.yaml").exists():
        reason = f"{os.uname().nodename} does not see {folder}; its runs need a file system that all nodes share"
        return 2, reason
    deadline = time.monotonic() + WAIT_FOR_LOCK_SECONDS
    while is_held(Path(folder) / "runs" / run, inside=True) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    given = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
    process = RunProcess(Path(folder), run, {**os.environ, **given})
    try:
        while (outcome := process.poll()) is None:
            time.sleep(POLL_SECONDS)
    except BaseException:  # cancelled: KeyboardInterrupt
        process.stop()
        process.wait()
        raise
    return outcome.status, outcome.reason


class LocalExecutor:
    """Trains as many runs at a time on this machine, each with as many threads, as the settings say."""

    def __init__(self, folder: RunSetFolder, settings: ExecutorSettings) -> None:
        self.folder, self.here, self.jobs, self.threads = folder, settings.here, settings.jobs, settings.run_threads
        self.gpus = visible_gpus()
        self.processes: dict[str, tuple[PlannedRun, RunHere | RunProcess]] = {}
        self.gpu_of: dict[str, str] = {}

    @property
    def has_room(self) -> bool:
        return len(self.processes) < self.jobs

    @property
    def busy(self) -> bool:
        return bool(self.processes)

    def running(self) -> set[str]:
        return set(self.processes)

    def start(self, run: PlannedRun) -> bool:
        if is_held(self.folder.run_folder(run.id).path, inside=True):
            return False
        self.processes[run.id] = run, self.process(run)
        return True

    def process(self, run: PlannedRun) -> RunHere | RunProcess:
        if self.here:
            return RunHere(self.folder, run.id)
        return RunProcess(self.folder.path, run.id, self._environment(run.id))

    def _environment(self, run: str) -> dict[str, str]:
        environment = {**os.environ, "OMP_NUM_THREADS": str(self.threads)}
        if self.gpus:
            taken = Counter(self.gpu_of.values())
            self.gpu_of[run] = min(self.gpus, key=lambda gpu: taken[gpu])
            environment["CUDA_VISIBLE_DEVICES"] = self.gpu_of[run]
        return environment

    def poll(self) -> list[tuple[PlannedRun, Outcome]]:
        ended = []
        for name, (run, process) in list(self.processes.items()):
            if outcome := process.poll():
                ended.append((run, outcome))
                del self.processes[name]
                self.gpu_of.pop(name, None)
        return ended

    def stop(self) -> None:
        for _, process in self.processes.values():
            process.stop()

    def close(self) -> None:
        self.stop()
        for _, process in self.processes.values():
            process.wait()


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def visible_gpus() -> list[str]:
    """GPUs that runs are shared out over, by their names in CUDA_VISIBLE_DEVICES."""
    import torch

    count = torch.cuda.device_count()
    given = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return given[:count] if given else [str(i) for i in range(count)]
