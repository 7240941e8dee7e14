"""Runs on a Ray cluster, one task each. The folder and the corpus must be on a file system that every node shares.

A node that is lost takes its tasks with it; Ray starts them again on another node, where each resumes from its newest
checkpoint.
"""

import logging
import signal
import socket
from typing import Any, Literal

from pydantic import Field, field_validator

from contextwise.base.errors import one_line
from contextwise.base.stopping import SIGNALS
from contextwise.base.trust import trust
from contextwise.experiments.executors import Outcome
from contextwise.runset import ExecutorSettings, PlannedRun, RunSetFolder, train_run
from contextwise.settings import ConfigError, not_installed

LEAVE_SECONDS = 120.0  # time that runs have to save after a request to stop


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its class if it has none; a message of Ray ends in a trace."""
    return one_line(str(error).strip().partition("\n")[0]) or type(error).__name__


class RaySettings(ExecutorSettings):
    """Where runs are trained: in tasks of a Ray cluster. Changes no result."""

    kind: Literal["ray"] = Field(description="tasks of a Ray cluster")  # type: ignore[assignment]
    jobs: int = Field(default=1, description="not for Ray, which starts as many runs at a time as its nodes can hold")
    threads: int | None = Field(default=None, ge=1, description="threads of each run; its CPUs if not given")
    address: str = Field(default="auto", description="of a Ray cluster; auto: the one that runs here")
    cpus: float = Field(default=1, gt=0, description="CPUs that Ray reserves for a run")
    gpus: float = Field(default=0, ge=0, description="GPUs that Ray reserves for a run")

    @field_validator("jobs")
    @classmethod
    def _decided_by_ray(cls, jobs: int) -> int:
        if jobs != 1:
            raise ConfigError("must be left out: Ray starts as many runs at a time as its nodes can hold")
        return jobs

    @property
    def run_threads(self) -> int:
        """Threads of each run; by default the CPUs that Ray reserves, to which it sets OMP_NUM_THREADS."""
        return self.threads or max(1, int(self.cpus))

    def executor(self, folder: RunSetFolder) -> "RayExecutor":
        """The executor of the runs in a folder."""
        return RayExecutor(folder, self)


class RayExecutor:
    """Submits every run to Ray, which starts as many at a time as fit on its nodes, and again where a node was lost."""

    here = False

    def __init__(self, folder: RunSetFolder, settings: RaySettings) -> None:
        address, cpus, gpus = settings.address, settings.cpus, settings.gpus
        try:
            import ray
        except ImportError:
            raise ConfigError(f"the executor is ray, {not_installed('ray')}, or use --executor local") from None
        self.ray, self.folder, self.threads = ray, folder, settings.threads
        self.joined_here = not ray.is_initialized()
        if self.joined_here:
            host, colon, port = address.removeprefix("ray://").rpartition(":")
            try:
                if colon and port.isdigit():  # Ray itself would try to connect for minutes
                    socket.create_connection((host, int(port)), timeout=10).close()
                handlers = {number: signal.getsignal(number) for number in SIGNALS}
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
                for number, handler in handlers.items():
                    if signal.getsignal(number) is not handler:  # Ray has put its own in the place of it
                        signal.signal(number, handler)
            except (OSError, RuntimeError, ValueError) as error:
                raise ConfigError(
                    f"no Ray cluster answers at {address}: {first_line(error)}; start one with ray start --head, or "
                    "use --executor local"
                ) from error
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if not any(node.get("CPU", 0) >= cpus and node.get("GPU", 0) >= gpus for node in nodes):
            self.close()
            raise ConfigError(
                f"no node of the Ray cluster has executor.cpus={cpus:g} and executor.gpus={gpus:g}; ask for less, or add a "
                "node that has as much"
            )
        # max_calls: a new process for each run.
        self.task = ray.remote(max_calls=1, num_cpus=cpus, num_gpus=gpus)(train_run)
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
        """Leave the cluster."""
        if getattr(self, "tasks", None):
            self.stop()
            self.ray.wait(list(self.tasks), num_returns=len(self.tasks), timeout=LEAVE_SECONDS)
        if self.joined_here:
            self.ray.shutdown()
