"""Programs and training runs in processes of their own, for tests that stop or kill them or run several at once.

They are forked from one process that has imported torch and transformers already: importing costs seconds, forking nothing.
As a script, ``processes.py RECIPE``, for torchrun.
"""

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.context import ForkServerContext, ForkServerProcess
from multiprocessing.reduction import DupFd
from pathlib import Path
from unittest import mock


class _Process(ForkServerProcess):
    """A process that is forked from the server, which finds the modules of this folder.

    Python 3.11 passes the server no path, and a module to preload that is not found is skipped without a word.
    """

    def start(self) -> None:
        with mock.patch.dict(os.environ):
            paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
            super().start()


class _Forks(ForkServerContext):
    Process = _Process


_FORKS = _Forks()
_FORKS.set_forkserver_preload(["preloaded"])


def run_recipe(recipe_file: Path, delay: float = 0.0) -> None:
    """Train as a recipe file says; exits with the status of an error.

    Args:
        delay: seconds that every training step takes longer: room for signals to land in the middle of a run.
    """
    import torch
    from torch.distributed.fsdp import FSDPModule

    from contextwise.base.errors import ContextwiseError
    from contextwise.training import load_recipe, train
    from contextwise.training.trainer import PretrainingTrainer

    torch.set_num_threads(1)
    step = PretrainingTrainer.training_step

    def slow_step(self, *arguments, **options):
        time.sleep(delay)
        sharded = [module for module in self.model_wrapped.modules() if isinstance(module, FSDPModule)]
        assert len(sharded) > 1 if self.settings.fsdp else not sharded, "the root and the blocks are the units"
        return step(self, *arguments, **options)

    _shard_on_cpus()

    PretrainingTrainer.training_step = slow_step  # type: ignore[method-assign]
    try:
        train(load_recipe(recipe_file))
    except ContextwiseError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_status)


def _shard_on_cpus() -> None:
    """Let accelerate shard on CPUs as it does on GPUs; by itself it keeps to DDP there, and no test would see a shard."""
    from accelerate.state import AcceleratorState
    from accelerate.utils import DistributedType

    made = AcceleratorState.__init__

    def make(self, *arguments, fsdp_plugin=None, **options):
        made(self, *arguments, fsdp_plugin=fsdp_plugin, **options)
        if fsdp_plugin is not None:
            if self._mixed_precision != "no":
                fsdp_plugin.set_mixed_precision(self._mixed_precision)
            self.distributed_type, self.fsdp_plugin = DistributedType.FSDP, fsdp_plugin

    AcceleratorState.__init__ = make


def _run_forked(recipe_file: Path, delay: float, output: str, environment: dict[str, str]) -> None:
    log = os.open(output, os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(environment)
    run_recipe(recipe_file, delay)


def _run_program(code: str, arguments: list[str], *pipes: DupFd) -> None:
    for standard, pipe in enumerate(pipes):
        os.dup2(pipe.detach(), standard)
    sys.stdin = os.fdopen(0)  # multiprocessing has closed the one that was there
    sys.argv = arguments
    exec(code, {"__name__": "__main__"})


class TrainingProcesses:
    """One run in one or more processes, with the methods of ``subprocess.Popen`` that tests use."""

    def __init__(self, recipe_file: Path, delay: float = 0.0, count: int = 1) -> None:
        handle, self._output = tempfile.mkstemp()
        os.close(handle)
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(count)}
        self._processes = []
        for rank in map(str, range(count)):
            ranks = address | {"RANK": rank, "LOCAL_RANK": rank} if count > 1 else {}
            process = _FORKS.Process(target=_run_forked, args=(recipe_file, delay, self._output, ranks))
            process.start()
            self._processes.append(process)

    @property
    def returncode(self) -> int | None:
        """Of the first process that failed, else 0; None while one runs."""
        codes = [process.exitcode for process in self._processes]
        failed = [code for code in codes if code]
        return failed[0] if failed else None if None in codes else 0

    def poll(self) -> int | None:
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        for process in self._processes:
            if process.exitcode is None:
                os.kill(process.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float = 300) -> None:
        """Wait for all processes; once one has failed, the others have 30 seconds."""
        limit = time.monotonic() + timeout
        while any(process.exitcode is None for process in self._processes):
            if self.returncode is not None:
                limit = min(limit, time.monotonic() + 30)
            if time.monotonic() > limit:
                self.kill()
                raise TimeoutError(f"still running\n{Path(self._output).read_text()}")
            time.sleep(0.01)

    def communicate(self, timeout: float = 300) -> tuple[str, None]:
        """Wait for all processes; their output and errors together."""
        self.wait(timeout)
        output = Path(self._output).read_text()
        Path(self._output).unlink(missing_ok=True)
        return output, None


class Program:
    """Python code in a process of its own, with the members of ``subprocess.Popen`` that tests use."""

    def __init__(self, code: str, *arguments: object) -> None:
        (stdin, to_stdin), (from_stdout, stdout), (from_stderr, stderr) = os.pipe(), os.pipe(), os.pipe()
        ends = (DupFd(end) for end in (stdin, stdout, stderr))
        given = ["-c", *map(str, arguments)]
        self._process = _FORKS.Process(target=_run_program, args=(code, given, *ends))
        self._process.start()
        for end in (stdin, stdout, stderr):
            os.close(end)
        self.stdin = os.fdopen(to_stdin, "w")
        self.stdout, self.stderr = os.fdopen(from_stdout), os.fdopen(from_stderr)
        self.kill, self.pid = self._process.kill, self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def communicate(self) -> tuple[str, str]:
        """Close its standard input, and wait for its end: the rest of its output, and of its errors."""
        self.stdin.close()
        with self.stdout, self.stderr:
            texts = self.stdout.read(), self.stderr.read()
        self._process.join()
        return texts


def forked(function: Callable[..., None], *arguments: object) -> multiprocessing.Process:
    """A function of a module of the tests, in a process of its own, started."""
    process = _FORKS.Process(target=function, args=arguments)
    process.start()
    return process  # type: ignore[return-value]


def type_command(folder: Path, words: list[str], log: Path) -> None:
    """Type a command in this process, which is its own; its messages go into a file."""
    from contextwise import cli

    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for standard in (1, 2):
        os.dup2(output, standard)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    os.chdir(folder)
    sys.argv = ["contextwise", *words]
    cli.main()


def start_training(recipe_file: Path, delay: float = 0.0, processes: int = 1) -> TrainingProcesses:
    return TrainingProcesses(recipe_file, delay, processes)


def finish_training(recipe_file: Path, processes: int = 1) -> tuple[int, str]:
    """Exit status and output of a run."""
    started = TrainingProcesses(recipe_file, count=processes)
    output, _ = started.communicate()
    return started.returncode or 0, output


def torchrun(recipe_file: Path, processes: int) -> tuple[int, str]:
    """The same by torchrun."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    done = subprocess.run(
        [*command, __file__, str(recipe_file)], capture_output=True, text=True, timeout=300, env=os.environ
    )
    return done.returncode, done.stdout + done.stderr


def wait_for(condition: Callable[[], bool], process: TrainingProcesses, seconds: float = 120) -> None:
    """Until something is true of a run that is going on."""
    limit = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < limit, f"nothing happened for {seconds} seconds"
        time.sleep(0.02)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    run_recipe(Path(sys.argv[1]))
