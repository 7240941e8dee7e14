"""Runs on a Ray cluster, one task each. The folder and the corpus must be on a file system that every node shares.

A node that is lost takes its tasks with it; Ray starts them again on another node, where each resumes from its newest
checkpoint.
"""

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import psutil
from pydantic import Field

from contextwise.base.errors import ConfigError, not_installed, one_line
from contextwise.base.stopping import SIGNALS
from contextwise.base.trust import trust
from contextwise.experiments.executors import ExecutorSettings, Outcome, train_run
from contextwise.experiments.folder import PlannedRun, RunSetFolder

_WATCH = """
import os, signal, sys, time
sys.stdin.read()  # until the other end is closed
time.sleep(2)  # most end by themselves
for name in sys.argv[1:]:
    process, started = name.split(":")
    try:
        with open(f"/proc/{process}/stat") as file:
            if file.read().rpartition(")")[2].split()[19] == started:
                os.kill(int(process), signal.SIGKILL)
    except OSError:
        pass
"""
"""Kills processes, each named by its number and the time of its start, when standard input ends."""
LEAVE_SECONDS = 120.0
"""Time that runs have to save after a request to stop."""


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its class if it has none; a message of Ray ends in a trace."""
    return one_line(str(error).strip().partition("\n")[0]) or type(error).__name__


class RaySettings(ExecutorSettings):
    """Where runs are trained: in tasks of a Ray cluster. Changes no result."""

    kind: Literal["ray"] = Field(description="tasks of a Ray cluster")  # type: ignore[assignment]
    threads: int | None = Field(default=None, ge=1, description="threads of each run; its CPUs if not given")
    address: str | None = Field(
        default=None, description="of a Ray cluster; auto: the one that runs here; none: a new one"
    )
    cpus: float = Field(default=1, gt=0, description="CPUs that Ray reserves for a run")
    gpus: float = Field(default=0, ge=0, description="GPUs that Ray reserves for a run")

    @property
    def run_threads(self) -> int:
        """Threads of each run; by default the CPUs that Ray reserves, to which it sets OMP_NUM_THREADS."""
        return self.threads or max(1, int(self.cpus))

    def executor(self, folder: RunSetFolder) -> "RayExecutor":
        """The executor of the runs in a folder."""
        return RayExecutor(folder, self)


class RayExecutor:
    """Submits every run to Ray, which starts as many at a time as fit on its nodes.

    Args:
        settings: its retries are also those of a run whose node was lost, by Ray.

    Raises:
        ConfigError: Ray is not installed, there is no such cluster, or no node has that much.
    """

    def __init__(self, folder: RunSetFolder, settings: RaySettings) -> None:
        address, cpus, gpus = settings.address, settings.cpus, settings.gpus
        if not address:
            # Whoever reaches the ports of a cluster can run code on it: one of its own listens on the loopback interface, as
            # Ray does by itself where it knows no clusters. Its processes read this too.
            os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        try:
            import ray
        except ImportError:
            raise ConfigError(f"the executor is ray, {not_installed('ray')}, or use --executor local") from None
        self.ray, self.folder, self.threads = ray, folder, settings.threads
        self.watch: subprocess.Popen[bytes] | None = None
        self.started_here = not ray.is_initialized()
        if self.started_here:
            host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
            try:
                if colon and port.isdigit():  # Ray itself would try to connect for minutes
                    socket.create_connection((host, int(port)), timeout=10).close()
                own = {} if address else {"_node_ip_address": "127.0.0.1", "include_dashboard": False}
                before = _descendants()
                handlers = {number: signal.getsignal(number) for number in SIGNALS}
                ray.init(address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **own)
                for number, handler in handlers.items():
                    if signal.getsignal(number) is not handler:  # Ray has put its own in the place of it
                        signal.signal(number, handler)
            except (OSError, RuntimeError, ValueError) as error:
                raise ConfigError(
                    f"no Ray cluster answers at {address}: {first_line(error)}; start one with ray start --head, or "
                    "leave --address out"
                ) from error
            if not address:
                self.watch = _end_with_this_process(_descendants() - before)
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if not any(node.get("CPU", 0) >= cpus and node.get("GPU", 0) >= gpus for node in nodes):
            self.close()
            raise ConfigError(
                f"no node of the Ray cluster has executor.cpus={cpus:g} and executor.gpus={gpus:g}; ask for less, or add a "
                "node that has as much"
            )
        # max_calls: a new process for each run.
        self.task = ray.remote(max_calls=1, max_retries=settings.retries, num_cpus=cpus, num_gpus=gpus)(train_run)
        self.tasks: dict[Any, tuple[PlannedRun, int]] = {}

    @property
    def has_room(self) -> bool:
        return True

    @property
    def busy(self) -> bool:
        return bool(self.tasks)

    def running(self) -> set[str]:
        """Runs whose log has been written to since they were submitted."""
        return {run.id for run, size in self.tasks.values() if self._log_size(run) > size}

    def _log_size(self, run: PlannedRun) -> int:
        log = self.folder.log_file(run.id)
        return log.stat().st_size if log.exists() else 0

    def start(self, run: PlannedRun) -> bool:
        arguments = str(self.folder.path.absolute()), run.id, trust.remote_code, self.threads
        reference = self.task.options(name=run.id).remote(*arguments)
        self.tasks[reference] = run, self._log_size(run)
        return True

    def poll(self) -> list[tuple[PlannedRun, Outcome]]:
        if not self.tasks:
            return []
        ready, _ = self.ray.wait(list(self.tasks), num_returns=len(self.tasks), timeout=0)
        ended = []
        for reference in ready:
            run, _ = self.tasks.pop(reference)
            try:
                outcome = Outcome(*self.ray.get(reference))
            except (self.ray.exceptions.RayError, KeyboardInterrupt) as error:
                outcome = Outcome(1, f"Ray lost the run: {first_line(error)}")
            ended.append((run, outcome))
        return ended

    def stop(self) -> None:
        for reference in self.tasks:
            self.ray.cancel(reference)

    def close(self) -> None:
        """Leave the cluster; one that was started here ends."""
        if getattr(self, "tasks", None):
            self.stop()
            self.ray.wait(list(self.tasks), num_returns=len(self.tasks), timeout=LEAVE_SECONDS)
        if self.started_here:
            self.ray.shutdown()
        if self.watch is not None:
            self.watch.communicate()


def _descendants() -> set[int]:
    return {process.pid for process in psutil.Process().children(recursive=True)}


def _end_with_this_process(processes: set[int]) -> "subprocess.Popen[bytes] | None":
    """Start a process that kills these when this one ends in any way; Ray's agents outlive a driver that is killed."""
    if sys.platform != "linux":
        return None
    names = []
    for process in processes:
        with contextlib.suppress(OSError):  # it has ended already
            names.append(f"{process}:{Path(f'/proc/{process}/stat').read_text().rpartition(')')[2].split()[19]}")
    return subprocess.Popen([sys.executable, "-S", "-c", _WATCH, *names], stdin=subprocess.PIPE, start_new_session=True)
