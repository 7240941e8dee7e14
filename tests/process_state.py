"""The state of the process that a call of the library leaves as it was."""

import gc
import logging
import os
import random
import signal
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch


def process_state() -> dict[str, Any]:
    """What other code in the process, such as that of a notebook, depends on, by name; equal where nothing was changed."""
    import datasets
    from accelerate.state import AcceleratorState, GradientState, PartialState
    from datasets.utils import are_progress_bars_disabled
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    from transformers.utils import logging as messages

    from contextwise.base import files
    from contextwise.base.progress import console, interruption

    state: dict[str, Any] = {
        "random": random.getstate(),
        "numpy": [str(each) for each in np.random.get_state()],
        "torch random": torch.get_rng_state().tolist(),
        "threads": torch.get_num_threads(),
        "dtype": torch.get_default_dtype(),
        "gradients": (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")),
        "precision": (torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled()),
        "initial values": {name: getattr(torch.nn.init, name) for name in torch.nn.init.__dict__ if name.endswith("_")},
        "modes": torch.overrides._get_current_function_mode_stack(),
        "attention": dict(ALL_ATTENTION_FUNCTIONS.items()),
        "fused attention": torch.nn.functional.scaled_dot_product_attention,
        "signals": {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)},
        "warnings": list(warnings.filters),
        "messages": (messages.get_verbosity(), messages.is_progress_bar_enabled()),
        "datasets": (datasets.utils.logging.get_verbosity(), are_progress_bars_disabled()),
        "loggers": {name: logging.getLogger(name).level for name in ("", "transformers", "datasets", "accelerate")},
        "handlers": list(logging.getLogger().handlers),
        "environment": dict(os.environ),
        "folder": str(Path.cwd()),
        "streams": (sys.stdout, sys.stderr, sys.excepthook, sys.unraisablehook),
        "garbage": gc.isenabled(),
        "path": list(sys.path),
        "other threads": {thread for thread in threading.enumerate() if not isinstance(thread, threading._DummyThread)},
        "locks": set(files._held),
        "console": console.quiet,
        "stop": (interruption.requested, interruption._listening),
        "accelerate": [dict(each._shared_state) for each in (PartialState, AcceleratorState, GradientState)],
    }
    return state


def changed(before: dict[str, Any]) -> dict[str, Any]:
    """What differs from an earlier state: name -> (before, now).

    Of threads, only a new one counts: one of an earlier test may end meanwhile. Those of a library's own pool, in which Python
    code ran once (Python calls them "Dummy-1" and so on), are not counted: tokenizers reads a generator from any of its pool.
    """
    now = process_state()
    now["other threads"] |= before["other threads"]
    return {name: (before[name], now[name]) for name in now if before[name] != now[name]}
