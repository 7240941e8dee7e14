"""Time that a training loop loses on a GPU: the host's waits for it, and the gaps between its kernels."""

import contextlib
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

LONGEST = 8
"""Gaps and kernels that are named."""
WARNING = "called a synchronizing CUDA operation"
"""What torch says in its mode of debugging where the host waits for the GPU."""


@contextlib.contextmanager
def counted_waits() -> Iterator[dict[str, int]]:
    """Count the waits of the host for the GPU inside the block by place, the last line outside of torch.

    None are counted without a GPU. torch notices reads of values, results whose shape depends on values and copies that wait,
    but not ``torch.cuda.synchronize()``.
    """
    places: Counter[str] = Counter()

    def note(message: Any, *_: Any, **__: Any) -> None:
        if WARNING in str(message):
            places[_place()] += 1

    if not torch.cuda.is_available():
        yield places
        return
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = note  # type: ignore[assignment]
            yield places
    finally:
        torch.cuda.set_sync_debug_mode("default")


def _place() -> str:
    own = {Path(str(torch.__file__)).parent, Path(warnings.__file__).parent}
    frames = traceback.extract_stack()
    outside = [f for f in frames if f.filename != __file__ and not any(map(Path(f.filename).is_relative_to, own))]
    last = (outside or frames)[-1]
    return f"{'/'.join(Path(last.filename).parts[-2:])}:{last.lineno}: {last.line}"


class Span(NamedTuple):
    """An operation in a profile, microseconds."""

    start: float
    end: float
    name: str


@contextlib.contextmanager
def kernel_profile() -> Iterator[dict[str, Any]]:
    """Profile the block; the dictionary has the result of :func:`gaps` after it. Empty without a GPU."""
    result: dict[str, Any] = {}
    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profile:
        yield result
    on_host, on_device = list[Span](), list[Span]()
    for event in profile.events() or []:
        where = on_host if event.device_type == torch.autograd.DeviceType.CPU else on_device
        where.append(Span(event.time_range.start, event.time_range.end, event.name))
    result |= gaps(on_device, on_host)


def gaps(kernels: list[Span], calls: list[Span]) -> dict[str, Any]:
    """How much of the time kernels ran, the longest gaps between them, and the kernels that took longest.

    Args:
        kernels: operations on the device.
        calls: operations on the host; a gap is named by the innermost that covers most of it, and by the kernel behind it.
    """
    if not kernels:
        return {}
    kernels = sorted(kernels)
    idle, end = list[tuple[float, float, str]](), kernels[0].end
    for kernel in kernels[1:]:
        if kernel.start > end:
            idle.append((end, kernel.start, kernel.name))
        end = max(end, kernel.end)
    whole = end - kernels[0].start
    lost = sum(b - a for a, b, _ in idle)
    time_of: Counter[str] = Counter()
    for kernel in kernels:
        time_of[kernel.name[:80]] += int(kernel.end - kernel.start)

    def host(a: float, b: float) -> str:
        def covered(call: Span) -> float:
            return min(call.end, b) - max(call.start, a)

        over = [call for call in calls if covered(call) > 0]
        return max(over, key=lambda call: (covered(call), call.start - call.end)).name[:80] if over else "Python"

    longest = sorted(idle, key=lambda gap: gap[0] - gap[1])[:LONGEST]
    return {
        "busy": 1 - lost / whole,
        "gaps": [{"microseconds": b - a, "host": host(a, b), "before_kernel": name[:80]} for a, b, name in longest],
        "kernels": {name: spent / whole for name, spent in time_of.most_common(LONGEST)},
    }
