"""Synthetic tasks whose lowest possible loss is known exactly at every context length.

task = Parity(ParitySettings(bits=60, tasks=100))
task.minimum_cross_entropy(17)  # 0.4643 nats
"""

from typing import TYPE_CHECKING

from contextwise.base.lazy import lazy_exports
from contextwise.data.synthetic.parity import (
    MASK,
    Parity,
    ParityData,
    ParitySettings,
    VisibleLaw,
    task_token,
    vocabulary,
)

if TYPE_CHECKING:
    from contextwise.data.synthetic.samples import ParityStream, Samples
    from contextwise.data.synthetic.storage import open_samples, write_samples

__all__ = [
    "MASK",
    "Parity",
    "ParityData",
    "ParitySettings",
    "ParityStream",
    "Samples",
    "VisibleLaw",
    "open_samples",
    "task_token",
    "vocabulary",
    "write_samples",
]
# These need torch; the settings do not.
__getattr__ = lazy_exports(
    __name__, {"samples": ["ParityStream", "Samples"], "storage": ["open_samples", "write_samples"]}
)
