"""The state of the process that belongs to the caller of the library: random numbers, and settings of other libraries."""

import contextlib
import os
import random
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
    return {name: os.environ.pop(name) for name in list(os.environ) if name.startswith(("ACCELERATE_", "FSDP_"))}


ONE_AT_A_TIME = threading.RLock()
"""Lets threads run calls one after another: random numbers and settings of torch are those of the process."""


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Run the ``with`` block in a process as a command has it, and leave the process as it was.

    In the block torch computes gradients, its default number format is float32, in which products are exact, and no autocast
    of the caller is in force. Restored are these, random numbers, and what transformers and datasets print.
    """
    import torch
    from datasets.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
    from transformers.utils import logging

    with contextlib.ExitStack() as kept, torch.inference_mode(False), torch.enable_grad():
        kept.callback(restore_random_state, random_state())
        # No block of autocast stands around the call: torch drops the cast copies of weights where the outermost block ends,
        # and a training step must not see those of the step before.
        for device in ("cpu", "cuda"):
            kept.callback(torch.set_autocast_enabled, device, torch.is_autocast_enabled(device))
            torch.set_autocast_enabled(device, False)
        kept.callback(torch.set_autocast_cache_enabled, torch.is_autocast_cache_enabled())
        if torch.autocast_increment_nesting() > 1:  # inside a block of the caller
            torch.set_autocast_cache_enabled(False)
        torch.autocast_decrement_nesting()
        kept.callback(torch.set_default_dtype, torch.get_default_dtype())
        for restore, values in _precision_of_products():
            kept.callback(restore, *values)
        kept.callback(logging.set_verbosity, logging.get_verbosity())
        kept.callback(
            logging.enable_progress_bar if logging.is_progress_bar_enabled() else logging.disable_progress_bar
        )
        kept.callback(disable_progress_bars if are_progress_bars_disabled() else enable_progress_bars)
        torch.set_default_dtype(torch.float32)
        torch.set_float32_matmul_precision("highest")
        yield


def _precision_of_products() -> Iterator[tuple[Callable[..., Any], tuple[Any, ...]]]:
    """What restores the precision of products of float32, from the last to the first; torch has two interfaces to it."""
    import torch

    backends: list[Any] = [torch.backends.mkldnn, torch.backends.cuda]
    for backend in (each.matmul for each in backends):
        yield setattr, (backend, "fp32_precision", backend.fp32_precision)
    with contextlib.suppress(RuntimeError):  # the caller has used the other interface
        yield torch.set_float32_matmul_precision, (torch.get_float32_matmul_precision(),)
