"""Runs on this machine, several at a time, each a process of its own."""

import os
from collections import Counter

import torch

from contextwise.base.files import is_held
from contextwise.sweeps.folder import PlannedRun, Sweep
from contextwise.sweeps.process import Outcome, RunProcess, cores


class LocalExecutor:
    """Runs ``jobs`` at a time.

    Args:
        jobs: runs at a time.
        threads: of each; not given: OMP_NUM_THREADS where it is set, else the cores shared out.
    """

    def __init__(self, sweep: Sweep, jobs: int, threads: int | None = None) -> None:
        self.sweep, self.jobs, self.threads = sweep, jobs, threads
        self.gpus = visible_gpus()
        self.processes: dict[str, tuple[PlannedRun, RunProcess]] = {}
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
        if is_held(self.sweep.run_folder(run.id).path, inside=True):
            return False
        process = RunProcess(self.sweep.path, run.id, self._environment(run.id))
        self.processes[run.id] = run, process
        return True

    def _environment(self, run: str) -> dict[str, str]:
        environment = dict(os.environ)
        if self.threads is not None:
            environment["OMP_NUM_THREADS"] = str(self.threads)
        environment.setdefault("OMP_NUM_THREADS", str(max(1, cores() // self.jobs)))
        if self.gpus:
            taken = Counter(self.gpu_of.values())
            self.gpu_of[run] = min(self.gpus, key=lambda gpu: taken[gpu])
            environment["CUDA_VISIBLE_DEVICES"] = self.gpu_of[run]
        return environment

    def poll(self) -> list[tuple[PlannedRun, Outcome]]:
        ended = []
        for name, (run, process) in list(self.processes.items()):
            outcome = process.poll()
            if outcome is not None:
                ended.append((run, outcome))
                del self.processes[name]
                self.gpu_of.pop(name, None)
        return ended

    def stop(self) -> None:
        for _, process in self.processes.values():
            process.stop()

    def close(self) -> None:
        """Leave no process behind, whatever the reason to go."""
        self.stop()
        for _, process in self.processes.values():
            process.wait()


def visible_gpus() -> list[str]:
    """GPUs that runs are shared out over, by the names that CUDA_VISIBLE_DEVICES has for them."""
    count = torch.cuda.device_count()
    given = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return given[:count] if given else [str(i) for i in range(count)]
