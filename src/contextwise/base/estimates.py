"""A measured value with its interval, and how numbers are written: the same on the terminal, on pages and in messages."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

CONFIDENCE = 0.95
NOT_KNOWN = "–"


@dataclass(frozen=True)
class Estimate:
    """A value with the interval that it was measured to.

    Attributes:
        value: in ``unit``.
        low, high: limits of the interval; None where the data allow no interval.
        unit: such as ``nats per token``; empty for a share or a count.
        n: how many independent observations (documents, seeds, questions) it was made from.
        method: how the interval was made, such as ``percentile bootstrap``.
        confidence: of the interval.

    ``f"{estimate:+.4f}"`` is the value with its interval, ``-0.0025 [-0.0100, +0.0050]``; the format is one of Python's, or
    one of :data:`FORMATS`.
    """

    value: float
    low: float | None = None
    high: float | None = None
    unit: str = dataclasses.field(default="", compare=False)
    n: int | None = dataclasses.field(default=None, compare=False)
    method: str = dataclasses.field(default="", compare=False)
    confidence: float = dataclasses.field(default=CONFIDENCE, compare=False)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Estimate":
        """An estimate from a result file, whatever other keys stand beside it; null values are NaN."""
        value = values["value"]
        return cls(math.nan if value is None else value, values.get("low"), values.get("high"))

    @property
    def has_interval(self) -> bool:
        """Whether both limits are known."""
        return self.low is not None and self.high is not None

    @property
    def limits(self) -> tuple[float, float]:
        """The limits as numbers, NaN where they are not known."""
        low, high = (math.nan if limit is None else limit for limit in (self.low, self.high))
        return low, high

    def above(self, bound: float) -> bool | None:
        """Whether the interval lies above a bound: True, False where it lies below; None where it holds it or is not known."""
        low, high = self.limits
        return low > bound if low > bound or high < bound else None

    @property
    def decided(self) -> bool:
        """Whether the interval excludes zero: of a difference, whether it is significant. Every verdict is read here."""
        return self.above(0.0) is not None

    def map(self, function: Callable[[float], float]) -> "Estimate":
        """Apply an increasing function to the value and both limits (percentile intervals carry over)."""
        low, high = (None if limit is None else function(limit) for limit in (self.low, self.high))
        return dataclasses.replace(self, value=function(self.value), low=low, high=high)

    def __neg__(self) -> "Estimate":
        low, high = (None if limit is None else -limit for limit in (self.high, self.low))
        return dataclasses.replace(self, value=-self.value, low=low, high=high)

    def scaled(self, factor: float) -> "Estimate":
        """The estimate times a positive number, as percentages are printed times 100."""
        return self.map(lambda number: factor * number)

    def interval(self, form: str = "number", missing: str = "") -> str:
        """``[low, high]``; ``missing`` where there is no interval."""
        if self.low is None or self.high is None:
            return missing
        return f"[{written(self.low, form)}, {written(self.high, form)}]"

    def __format__(self, form: str) -> str:
        return f"{written(self.value, form or 'number')} {self.interval(form or 'number')}".rstrip()

    def to_dict(self) -> dict[str, float | None]:
        """``{"value", "low", "high"}``, with None for what is not finite (JSON has no infinity)."""
        limits = {"value": self.value, "low": self.low, "high": self.high}
        return {name: end if end is not None and math.isfinite(end) else None for name, end in limits.items()}


def exponential(value: float) -> float:
    """``exp(value)``; infinity where a float cannot hold it."""
    return math.exp(value) if value < 709.0 else math.inf


def number(value: float) -> str:
    """A measure with about five significant digits."""
    if value < 100:
        return f"{value:.4f}" if value < 10 else f"{value:.3f}"
    return f"{value:,.1f}" if value < 1e5 else f"{value:.3e}"


def count(value: float) -> str:
    """A count in three digits: 940, 12.3k, 8.19M."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.0f}"


def duration(seconds: float) -> str:
    """Seconds in the unit that suits them: 48 s, 12.5 min, 3.2 h."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


FORMATS: dict[str, Callable[[float], str]] = {
    "number": number,
    "integer": "{:,}".format,
    "count": count,
    "duration": duration,
    "percent": "{:.1%}".format,
    "change": lambda share: f"{share:+.1%}" if abs(share) < 1 else f"{share:+.0%}",
}
"""Formats by name, beside Python's own."""


def written(value: Any, form: str = "number", missing: str = NOT_KNOWN) -> str:
    """A number or an :class:`Estimate` as text.

    Args:
        form: a name of :data:`FORMATS`, or one of Python's format specifications.
        missing: what stands for None.
    """
    if value is None:
        return missing
    if isinstance(value, Estimate):
        return format(value, form)
    return FORMATS[form](value) if form in FORMATS else format(value, form)


def as_json(value: Any) -> Any:
    """Dataclasses, estimates, arrays and containers of them as JSON values; numbers that JSON cannot hold become None."""
    if isinstance(value, Estimate):
        return value.to_dict()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {part.name: as_json(getattr(value, part.name)) for part in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: as_json(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(part) for part in value]
    if isinstance(value, np.ndarray | np.generic):
        return as_json(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def listed(parts: list[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
