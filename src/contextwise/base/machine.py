"""The machine: hardware and versions, memory, fast bf16, and whether it reaches the Hugging Face Hub."""

import contextlib
import ctypes
import os
import platform
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from contextwise.base import plugins
from contextwise.base.errors import ConfigError, one_line

if TYPE_CHECKING:
    import torch

PACKAGES = ("contextwise", "torch", "transformers", "accelerate", "datasets", "tokenizers", "numpy")
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # glibc, malloc.h
_LARGEST = 2**31 - 1  # bytes; mallopt takes an int


def own_version() -> str:
    """The version of Contextwise; ``0+source`` of a source tree that is not installed."""
    try:
        return metadata.version("contextwise")
    except metadata.PackageNotFoundError:
        return "0+source"


def torch_device(name: "str | torch.device" = "auto") -> "torch.device":
    """A torch device by its name; ``auto``: a GPU if there is one. ConfigError for one that this machine does not have."""
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        if device.type == "meta":  # which has shapes and no values
            raise RuntimeError
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError):
        raise ConfigError(f"device is {name!r}, which this machine does not have; give cpu, or leave it out") from None
    return device


def without_gpu() -> bool:
    """Whether this machine has no GPU, by its files, without torch; False if they do not say."""
    files = Path("/dev").iterdir() if sys.platform == "linux" else [Path("nvidia")]
    return not any(each.name.startswith(("nvidia", "dxg", "kfd")) for each in files)


def describe_environment() -> dict[str, Any]:
    """Hardware, versions and the source revision as JSON values, without names of users, hosts or folders."""
    import torch

    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "processor": _line_of("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gib": round(memory().total / 2**30, 1),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "cuda": torch.version.cuda,
        "versions": dict(_versions()),
        "commit": _commit(),
    }


@cache
def _versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = dict.fromkeys(PACKAGES)
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return versions | {point.dist.name: point.dist.version for point in plugins.others() if point.dist}


def _line_of(file: str, name: str) -> str:
    """The value of the first line ``name : value`` of a file of the system; empty if there is none."""
    with contextlib.suppress(OSError):
        for line in Path(file).read_text().splitlines():
            if line.startswith(name):
                return line.split(":", 1)[1].strip()
    return ""


@cache
def _commit() -> str | None:
    """The commit of this package's source tree when this process first asks, with ``+`` for uncommitted changes, or None."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).resolve().parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def keep_freed_memory() -> bool:
    """Let the C library keep freed memory for the next tensor instead of returning it to the system.

    On a CPU torch allocates each tensor with ``malloc``, and glibc maps blocks of this size anew each time: every page is
    cleared and faulted in again in every step, which costs up to a fifth of a training step (``benchmarks/README.md``).
    The process then keeps its peak memory. This matters only on a CPU; torch has its own allocator on a GPU. Returns
    whether the C library accepted the setting; False if it is not glibc.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST) and mallopt(_M_TRIM_THRESHOLD, _LARGEST))


class Memory(NamedTuple):
    """What :func:`memory` finds, bytes; ``resident`` is this process's."""

    total: int
    available: int
    resident: int


def memory() -> Memory:
    """The memory of this machine and of this process. ConfigError where the system does not describe it."""
    import psutil

    try:
        whole = psutil.virtual_memory()
        return Memory(whole.total, whole.available, psutil.Process().memory_info().rss)
    except (psutil.Error, OSError) as error:
        raise ConfigError(f"the memory of this machine cannot be read ({one_line(error)}); mount /proc") from None


def peak_memory() -> int:
    """The most memory that this process has held so far, bytes: resident, or of the GPU if there is one."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    # getrusage counts a process that was forked from a larger one with the memory of that one.
    if resident := _line_of("/proc/self/status", "VmHWM"):
        return int(resident.split()[0]) * 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def has_fast_bf16(device_type: str) -> bool:
    """Whether the device multiplies bf16 matrices faster than float32: a GPU, or a CPU with AMX or fast AVX-512-BF16.

    Intel's processors that have AMX compute AVX-512-BF16 more slowly than float32, and do so where a virtual machine hides AMX.
    They are told from those without AMX, such as Cooper Lake, by AVX-512-FP16, which came with AMX.
    """
    import torch

    if device_type == "cpu":
        hides_amx = _line_of("/proc/cpuinfo", "vendor_id") == "GenuineIntel" and "avx512_fp16" in _line_of(
            "/proc/cpuinfo", "flags"
        )
        return torch.cpu._is_amx_tile_supported() or (torch.cpu._is_avx512_bf16_supported() and not hides_amx)
    return device_type == "cuda" and torch.cuda.is_bf16_supported()


def hub_problem() -> str | None:
    """Describe why the Hub cannot be reached, or return None if it can.

    The Hub's own clients retry for most of a minute; this function makes one request, with a timeout of five seconds. With
    ``HF_HUB_OFFLINE`` set, the local cache is used and no request is made.
    """
    import huggingface_hub
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return None
    try:
        huggingface_hub.utils.get_session().head(constants.ENDPOINT, timeout=5)
    except Exception:  # the errors depend on the client's HTTP library
        return (
            "the Hugging Face Hub cannot be reached from this machine "
            "(a copy in the local cache is used with HF_HUB_OFFLINE=1)"
        )
    return None
