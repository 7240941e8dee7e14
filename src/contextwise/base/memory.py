"""Configure how the process reuses the memory of freed tensors."""

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # glibc, malloc.h
_LARGEST = 2**31 - 1  # bytes; mallopt takes an int


def keep_freed_memory() -> bool:
    """Let the C library keep freed memory for the next tensor instead of returning it to the system.

    On a CPU torch allocates each tensor with ``malloc``, and glibc maps blocks of this size anew each time: every page is
    cleared and faulted in again in every step, which costs up to a fifth of a training step (``benchmarks/README.md``).
    The process then keeps its peak memory. This matters only on a CPU; torch has its own allocator on a GPU.

    Returns:
        Whether the C library accepted the setting; False if it is not glibc.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST) and mallopt(_M_TRIM_THRESHOLD, _LARGEST))
