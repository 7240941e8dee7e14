"""Where a training loss jumps up (objectives, Section 6.2.8: sudden spikes point to bad data or too high a learning rate)."""

import numpy as np

BEFORE = 50
"""Rows before a row that say what is usual there; in a short log a tenth of it."""
DEVIATIONS = 8.0
SMALLEST = 0.05
"""Nats; what is less is no spike, however quiet the rows before are."""


def spikes(losses: np.ndarray) -> np.ndarray:
    """Indices of spikes: the highest row of each jump above what the rows before it allow.

    A row jumps if it lies more than 8 standard deviations above the median of the 50 rows before; the deviation is estimated
    from their median absolute deviation, which the jumps themselves do not raise.

    Args:
        losses: one a row of the log, in order.
    """
    before = min(BEFORE, max(5, len(losses) // 10))
    if len(losses) <= before:
        return np.empty(0, dtype=np.int64)
    windows = np.lib.stride_tricks.sliding_window_view(losses, before)[:-1]
    middle = np.median(windows, axis=1)
    deviation = 1.4826 * np.median(np.abs(windows - middle[:, None]), axis=1)
    jumped = losses[before:] > middle + np.maximum(DEVIATIONS * deviation, SMALLEST)
    edges = np.flatnonzero(np.diff(jumped, prepend=False, append=False))
    return np.array(
        [
            before + start + int(losses[before + start : before + end].argmax())
            for start, end in edges.reshape(-1, 2)
        ],
        dtype=np.int64,
    )
