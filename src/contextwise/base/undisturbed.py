"""The state of the process that belongs to the caller of the library: random numbers, and settings of other libraries."""

import contextlib
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypedDict


class RandomState(TypedDict):
    """The state of a process's random number generators; those of torch as hexadecimal digits."""

    python: list[Any]
    numpy: list[Any]
    torch: str
    cuda: str | None


def random_state() -> RandomState:
    """State of this process's random number generators, as JSON-ready values."""
    import numpy as np
    import torch

    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state()
    return {
        "python": [version, list(words), gauss],
        "numpy": [kind, np.asarray(keys).tolist(), int(position), int(has_gauss), float(cached)],
        "torch": torch.get_rng_state().numpy().tobytes().hex(),
        "cuda": torch.cuda.get_rng_state().numpy().tobytes().hex() if torch.cuda.is_available() else None,
    }


def restore_random_state(state: RandomState) -> None:
    """Inverse of :func:`random_state`."""
    import numpy as np
    import torch

    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    torch.set_rng_state(torch.frombuffer(bytearray.fromhex(state["torch"]), dtype=torch.uint8))
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(torch.frombuffer(bytearray.fromhex(state["cuda"]), dtype=torch.uint8))


@contextlib.contextmanager
def without_launch_settings() -> Iterator[None]:
    """Set aside, in the ``with`` block, the variables by which ``accelerate launch`` decides about precision, compilation and
    sharding: a recipe decides about these, and its results are stored as those of the recipe."""
    given = _pop_launch_settings()
    try:
        yield
    finally:
        _pop_launch_settings()
        os.environ.update(given)


def _pop_launch_settings() -> dict[str, str]:
    return {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("ACCELERATE_")}


_turn = threading.RLock()


def _new_turn() -> None:
    """In a forked child, where the thread that had the turn may not exist."""
    global _turn
    _turn = threading.RLock()


os.register_at_fork(after_in_child=_new_turn)


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Let threads run the ``with`` block one after another: random numbers and settings of torch are those of the process."""
    with _turn:
        yield


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Run the ``with`` block in a process as a command has it, and leave the process as it was, also after an interrupt.

    In the block torch computes gradients, its default number format is float32, in which products are exact, its default device
    the CPU, and no autocast and no function mode of the caller is in force. Restored are these, random numbers, the number of
    threads, accelerate's device and precision, and what transformers and datasets print.
    """
    import torch
    from accelerate.state import AcceleratorState, GradientState, PartialState
    from datasets.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
    from torch import overrides
    from torch.utils import _device
    from transformers.utils import logging

    kept: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
        (restore_random_state, (random_state(),)),
        (torch.set_grad_enabled, (torch.is_grad_enabled(),)),
        (torch.set_default_dtype, (torch.get_default_dtype(),)),
        (torch.set_num_threads, (torch.get_num_threads(),)),
        *_precision_of_products(),
        # Of transformers' loading: an interrupt there leaves models on the device "meta", and initial values undrawn.
        (_set_function_modes, (overrides._get_current_function_mode_stack(), _device.CURRENT_DEVICE)),
        (vars(torch.nn.init).update, (dict(vars(torch.nn.init)),)),
        (logging.set_verbosity, (logging.get_verbosity(),)),
        (logging.enable_progress_bar if logging.is_progress_bar_enabled() else logging.disable_progress_bar, ()),
        (disable_progress_bars if are_progress_bars_disabled() else enable_progress_bars, ()),
    ]
    for shared in (each._shared_state for each in (PartialState, AcceleratorState, GradientState)):
        kept += [(shared.update, (dict(shared),)), (shared.clear, ())]
    try:
        exact = [torch.autocast(device, enabled=False) for device in ("cpu", "cuda")]
        with torch.inference_mode(False), exact[0], exact[1]:
            _set_function_modes([], None)
            torch.set_grad_enabled(True)
            torch.set_default_dtype(torch.float32)
            torch.set_float32_matmul_precision("highest")
            yield
    finally:
        with _uninterrupted():
            for restore, values in reversed(kept):
                restore(*values)


def _precision_of_products() -> Iterator[tuple[Callable[..., Any], tuple[Any, ...]]]:
    """What restores the precision of products of float32, from the last to the first; torch has two interfaces to it."""
    import torch

    backends: list[Any] = [torch.backends.mkldnn, torch.backends.cuda]
    for backend in (each.matmul for each in backends):
        yield setattr, (backend, "fp32_precision", backend.fp32_precision)
    with contextlib.suppress(RuntimeError):  # the caller has used the other interface
        yield torch.set_float32_matmul_precision, (torch.get_float32_matmul_precision(),)


def _set_function_modes(modes: list[Any], device: Any) -> None:
    """Set the stack of torch's function modes, and the device that the lowest one stands for."""
    from torch import overrides
    from torch.utils import _device

    while overrides._len_torch_function_stack():
        overrides._pop_mode()
    for mode in modes:
        overrides._push_mode(mode)
    _device.CURRENT_DEVICE = device


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let SIGINT wait for the end of the ``with`` block; no effect outside the main thread, which alone receives signals."""
    received: list[tuple[Any, ...]] = []
    try:
        handler = signal.signal(signal.SIGINT, lambda *arguments: received.append(arguments))
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if received and callable(handler):
            handler(*received[0])
