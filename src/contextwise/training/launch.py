"""The processes of a launch, which meet before they train."""

import contextlib
import os
import select
import signal
import socket
import threading
from collections.abc import Iterator

import torch
from accelerate import PartialState

from contextwise.base import stopping
from contextwise.base.errors import ConfigError, Problem, one_line
from contextwise.base.progress import console
from contextwise.training.recipe import Recipe

SECONDS = 5.0
"""Of waiting before this is said; and of a connection of a machine to itself."""
_VARIABLES = {"WORLD_SIZE": 1, "RANK": 0, "MASTER_PORT": 29500}
"""What a launcher sets, and what applies where it does not."""
_UNSET = "start the processes with torchrun, or unset WORLD_SIZE, RANK and LOCAL_RANK"


def processes_of(recipe: Recipe) -> PartialState:
    """The processes of this launch, on the device of a recipe: with gloo on a CPU, with NCCL on GPUs.

    They wait for each other as long as torch does; what a process waits for is said after :data:`SECONDS`.

    Raises:
        ConfigError: the recipe asks for a GPU, and there is none; or the processes cannot meet.
    """
    device, available = recipe.training.device, torch.cuda.is_available()
    if device == "cuda" and not available:
        raise ConfigError(
            Problem("but torch finds no GPU on this machine", "training.device", device, "choose auto or cpu")
        )
    try:
        with _meeting():
            return PartialState(cpu=device == "cpu" or not available)
    except (ValueError, torch.distributed.DistError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"the environment says that this is one of several processes, which cannot meet ({one_line(error)}); {_UNSET}"
        ) from None


@contextlib.contextmanager
def _meeting() -> Iterator[None]:
    """Check the variables of a launch; in the ``with`` block, say what is waited for, and end a command on signals."""
    given = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    wrong = [(name, value) for name, value in given.items() if not (value.isdecimal() and int(value) < 2**16)]
    if wrong:
        why = f"but must be a whole number below {2**16:,}"
        raise ConfigError(*(Problem(why, name, value, _UNSET) for name, value in wrong))
    size, rank, port = (int(given.get(name, other)) for name, other in _VARIABLES.items())
    address = os.environ.get("MASTER_ADDR")
    alone = size < 2 and os.environ.get("LOCAL_RANK", "-1") == "-1"  # with another one torch lets a process meet itself
    if alone or address is None or torch.distributed.is_initialized():
        yield
        return
    if rank >= size:
        raise ConfigError(Problem(f"but WORLD_SIZE is {size}", "RANK", rank, _UNSET))
    # torchrun's own process listens for the workers that it starts; without it the first one does.
    if rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" and not _reaches_itself(address, port):
        why = "but a connection to it does not arrive at this machine, where process 0 is"
        raise ConfigError(Problem(why, "MASTER_ADDR", address, f"correct it, or {_UNSET}"))
    other = "the others" if rank == 0 else "process 0"
    with _ending_on_signals(
        f"process {rank} of {size} waits for {other} at {address}:{port} (MASTER_ADDR, MASTER_PORT)"
    ):
        yield


def _reaches_itself(address: str, port: int) -> bool:
    """Whether an address is this machine's, or a connection to it arrives here, as at one that a router translates."""
    try:
        for family, kind, *_, place in socket.getaddrinfo(address, None, type=socket.SOCK_STREAM):
            with contextlib.suppress(OSError), socket.socket(family, kind) as bound:
                bound.bind(place)
                return True
        with socket.create_server(("", port)) as server:
            server.settimeout(SECONDS)
            with socket.create_connection((address, port), timeout=SECONDS):
                server.accept()[0].close()
        return True
    except OSError:
        return False


@contextlib.contextmanager
def _ending_on_signals(waiting: str) -> Iterator[None]:
    """Say ``waiting`` if the ``with`` block takes long, and end a command there on a signal, which Python cannot handle yet."""
    receiving, sending = socket.socketpair()
    sending.setblocking(False)

    def watch() -> None:
        if not select.select([receiving], [], [], SECONDS)[0]:
            console.print(waiting, markup=False, soft_wrap=True)
        if number := receiving.recv(1):
            stopping.end_at_once(number[0])

    with receiving, sending:
        # Nothing is open yet; but a caller of the library has handlers of its own.
        is_command = isinstance(getattr(signal.getsignal(signal.SIGINT), "__self__", None), stopping.Raising)
        before = signal.set_wakeup_fd(sending.fileno()) if is_command else None
        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            if before is not None:
                signal.set_wakeup_fd(before)
            sending.close()
            watcher.join()
