"""The processes that load examples (``training.workers``): how they end, and how their errors are raised."""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator

from contextwise.base.errors import ConfigError, ContextwiseError


def check_shared_memory(workers: int) -> None:
    """Raise a ConfigError if there is no shared memory for as many locks as a data loader of torch creates.

    Without them torch would leave an object half made, whose end prints a traceback.
    """
    try:
        _ = [multiprocessing.Lock() for _ in range(workers and 3 * workers + 8)]
    except OSError as error:
        raise _useless(error.strerror) from None


def end_with_parent(_: int) -> None:
    """Let this process end on SIGTERM from its parent alone: the parent saves after one to all processes of a job."""
    if sys.platform != "linux":
        return

    def wait() -> None:
        while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
            pass
        os._exit(0)

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(target=wait, daemon=True).start()


@contextlib.contextmanager
def as_of_this_process() -> Iterator[None]:
    """Raise an error of a process that loads examples without the traceback in its message; it may come at any time."""
    try:
        yield
    except (ContextwiseError, MemoryError, OSError, RuntimeError) as error:
        text = str(error).strip()
        if "DataLoader worker" not in text:
            raise
        if isinstance(error, ContextwiseError):
            error.args = (text.rpartition(f".{type(error).__name__}: ")[2],)
            raise
        error.args = (text.rpartition("\n")[2],)
        if isinstance(error, MemoryError):
            raise
        raise _useless(error) from error


def _useless(why: object) -> ConfigError:
    return ConfigError(
        f"the processes that load examples cannot work ({why}); set training.workers to 0, or give this machine more memory, "
        "and a larger /dev/shm that can be written"
    )
