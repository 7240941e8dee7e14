"""A measured value with its interval, and number formats shared by the terminal, pages and messages."""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

LARGEST = 1e100
"""Of a number in a file, where larger ones are null: their sums and squares overflow."""
NOT_IN_JSON = {"in_json": False}
"""The ``metadata`` of a dataclass's field that is left out of its JSON."""
CONFIDENCE = 0.95
NOT_KNOWN = "–"
Documents = Literal["fixed", "random"]
"""The documents that a difference is about: the held-out ones that were scored, or any like them."""
FEWEST_DOCUMENTS = 6
"""Fewer documents decide nothing: a t-interval holds for a mean of few values only if they have no outliers, and few values
cannot show whether they have."""

_ABOUT = ("method", "documents", "seeds", "n")


def joint_freedom(parts: Sequence[tuple[float, float]], confidence: float = CONFIDENCE) -> float:
    """Degrees of freedom of the sum of independent variances, for a t-interval at a confidence.

    Those of Welch and Satterthwaite, with each variance weighted by (t / z)^1.25, the quantiles of Student's t at its degrees
    of freedom and of the normal distribution. Unweighted, a variance that was estimated from two or three values is often far
    too small, and then counts too little: intervals at 95% with two values cover 87% at worst, and 94% with weights; with four
    and more 94.5% to 95.9%, whichever variance is the larger.

    Args:
        parts: (variance, degrees of freedom) of each.
    """
    from scipy.special import ndtri, stdtrit  # takes a tenth of a second, which most commands do not need

    level, largest = (1 + confidence) / 2, max(variance for variance, _ in parts) or 1.0
    weighted = [
        (variance / largest * (stdtrit(freedom, level) / ndtri(level)) ** 1.25, freedom) for variance, freedom in parts
    ]
    spread = sum(variance**2 / freedom for variance, freedom in weighted)
    total = sum(variance for variance, _ in weighted)
    if spread == 0:  # all that varies is known exactly, or nothing varies
        return math.inf if total > 0 else min(freedom for _, freedom in parts)
    return float(total**2 / spread)


@dataclass(frozen=True)
class Estimate:
    """A value with the limits of its confidence interval, None if the data allow no interval.

    ``f"{estimate:+.4f}"`` is the value with its interval, ``−0.0025 [−0.0100, +0.0050]``; the format is a Python format
    specification, or a name of :data:`FORMATS`.
    """

    value: float
    low: float | None = None
    high: float | None = None
    unit: str = dataclasses.field(default="", compare=False)  # such as "nats per token"; empty for a share or a count
    method: str = dataclasses.field(default="", compare=False)  # of the interval, such as "t" or "bootstrap"
    documents: int | None = dataclasses.field(default=None, compare=False)  # number that the interval is over
    seeds: int | None = dataclasses.field(default=None, compare=False)
    n: int | None = dataclasses.field(default=None, compare=False)  # of other observations
    confidence: float = dataclasses.field(default=CONFIDENCE, compare=False)
    freedom: float | None = dataclasses.field(default=None, compare=False)  # of the interval; None: by the counts
    # Of single seeds, where the interval is over them.
    deviation: float | None = dataclasses.field(default=None, compare=False)
    parts: tuple[tuple[float, float], ...] = dataclasses.field(default=(), compare=False)  # (variance, freedom), summed
    # The estimate that an increasing function was applied to, and the function.
    mapped: "tuple[Estimate, Callable[[float], float]] | None" = dataclasses.field(
        default=None, compare=False, repr=False
    )

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Estimate":
        """Read an estimate from a result file; other keys are ignored, null values are NaN.

        A function that was applied (:meth:`map`) is not known any more: :meth:`at` then widens on the scale of its values.
        """
        value, about = values["value"], {name: values[name] for name in (*_ABOUT, "confidence") if name in values}
        if "freedom" in values:
            about["freedom"] = _or_infinite(values["freedom"])
        about["parts"] = tuple((variance, _or_infinite(freedom)) for variance, freedom in values.get("parts", ()))
        return cls(math.nan if value is None else value, values.get("low"), values.get("high"), **about)

    @property
    def has_interval(self) -> bool:
        """Whether both limits are known."""
        return self.low is not None and self.high is not None

    @property
    def limits(self) -> tuple[float, float]:
        """The limits as numbers, NaN if unknown."""
        low, high = (math.nan if limit is None else float(limit) for limit in (self.low, self.high))
        return low, high

    @property
    def degrees_of_freedom(self) -> float:
        """Those of the interval; where they are not given, one fewer than the fewest observations, infinite without a count."""
        counts = [count for count in (self.seeds, self.documents, self.n) if count is not None]
        return self.freedom if self.freedom is not None else max(1, min(counts) - 1) if counts else math.inf

    def at(self, confidence: float) -> "Estimate":
        """The estimate with its interval at another confidence: each side longer as Student's t says.

        With the degrees of freedom that its parts (documents, seeds) have there, and before a function that was applied.
        """
        if not self.has_interval or confidence == self.confidence:
            return self
        if self.mapped is not None:
            inner, function = self.mapped
            return dataclasses.replace(inner.at(confidence).map(function), unit=self.unit)
        from scipy.special import stdtrit  # takes a tenth of a second, which most commands do not need

        before, after = (
            stdtrit(joint_freedom(self.parts, each) if self.parts else self.degrees_of_freedom, (1 + each) / 2)
            for each in (self.confidence, confidence)
        )
        longer = float(after / before)
        low, high = (self.value + (limit - self.value) * longer for limit in self.limits)
        return dataclasses.replace(self, low=low, high=high, confidence=confidence)

    @property
    def too_few(self) -> str:
        """Why the documents are too few for any verdict, as a clause; empty if there are enough."""
        if self.documents is None or self.documents >= FEWEST_DOCUMENTS:
            return ""
        allow = "1 document allows" if self.documents == 1 else f"{self.documents} documents allow"
        return f"{allow} no verdict, which takes {FEWEST_DOCUMENTS} or more"

    @property
    def basis(self) -> str:
        """Method and observations of the interval: ``t over 3 seeds and 22 documents``."""
        counts = {"seed": self.seeds, "document": self.documents, "value": self.n}
        parts = [counted(count, name) for name, count in counts.items() if count]
        return " over ".join(part for part in (self.method, " and ".join(parts)) if part)

    def above(self, bound: float) -> bool | None:
        """True if the interval is above a bound, False if below; None if it contains the bound or decides nothing."""
        low, high = self.limits
        return low > bound if (low > bound or high < bound) and not self.too_few else None

    @property
    def decided(self) -> bool:
        """Whether the interval excludes zero, so that a difference is significant; all verdicts use this property."""
        return self.above(0.0) is not None

    def map(self, function: Callable[[float], float]) -> "Estimate":
        """Apply an increasing function to the value and both limits (percentile intervals carry over)."""
        low, high = (None if limit is None else function(limit) for limit in (self.low, self.high))
        about: dict[str, Any] = {"deviation": None, "parts": (), "mapped": (self, function)}
        return dataclasses.replace(self, value=function(self.value), low=low, high=high, **about)

    def __neg__(self) -> "Estimate":
        low, high = (None if limit is None else -limit for limit in (self.high, self.low))
        mapped = self.mapped and (-self.mapped[0], functools.partial(_mirrored, self.mapped[1]))
        return dataclasses.replace(self, value=-self.value, low=low, high=high, mapped=mapped)

    def scaled(self, factor: float) -> "Estimate":
        """Multiply the estimate by a positive number."""
        deviation = None if self.deviation is None else factor * self.deviation
        parts = tuple((factor**2 * variance, freedom) for variance, freedom in self.parts)
        return dataclasses.replace(self.map(lambda number: factor * number), deviation=deviation, parts=parts)

    def interval(self, form: str = "number", missing: str = "") -> str:
        """Format the interval as ``[low, high]``, or return ``missing`` without an interval."""
        if self.low is None or self.high is None:
            return missing
        return f"[{self.shown(self.low, form)}, {self.shown(self.high, form)}]"

    def shown(self, number: float, form: str = "number") -> str:
        """Format the value or a limit, with further decimals where it would read as zero and the interval excludes zero."""
        text, wanted = written(number, form), DECIMALS.fullmatch(PRECISIONS.get(form, form))
        if wanted is None or not self.decided or not 1e-12 < abs(number) < 1:
            return text
        sign, decimals, kind = wanted.groups()
        for more in range(int(decimals) + 1, 16):
            if any(digit in text for digit in "123456789"):
                break
            text = written(number, f"{sign}.{more}{kind}")
        return text

    def __format__(self, form: str) -> str:
        return f"{self.shown(self.value, form or 'number')} {self.interval(form or 'number')}".rstrip()

    def to_dict(self) -> dict[str, Any]:
        """``{"value", "low", "high"}``; of an interval also its method, counts and parts, its degrees of freedom if they are
        not those of the counts, and its confidence if that is not 95%.

        Numbers that are not finite (JSON has no infinity), or beyond :data:`LARGEST`, are None: infinite degrees of freedom,
        too.
        """
        numbers = {"value": self.value, "low": self.low, "high": self.high}
        finite: dict[str, Any] = {
            name: x if x is not None and abs(x) <= LARGEST else None for name, x in numbers.items()
        }
        if not self.has_interval:
            return finite
        about: dict[str, Any] = {name: value for name in _ABOUT if (value := getattr(self, name))}
        freedom = self.degrees_of_freedom
        if not (
            math.isnan(freedom) or math.isclose(freedom, dataclasses.replace(self, freedom=None).degrees_of_freedom)
        ):
            about["freedom"] = _finite(freedom)
        if self.parts:
            about["parts"] = [[_finite(number) for number in part] for part in self.parts]
        if self.confidence != CONFIDENCE:
            about["confidence"] = self.confidence
        return finite | about


def _finite(number: float) -> float | None:
    """A number as JSON has it: None for infinity."""
    return float(number) if math.isfinite(number) else None


def _or_infinite(number: float | None) -> float:
    """A number of JSON that may be infinite."""
    return math.inf if number is None else number


def _mirrored(function: Callable[[float], float], number: float) -> float:
    """The increasing function whose values at -x are those of ``function`` at x, negated."""
    return -function(-number)


def exponential(value: float) -> float:
    """``exp(value)``; infinity on overflow."""
    return math.exp(value) if value < 709.0 else math.inf


def number(value: float) -> str:
    """Format a measured value with five significant digits, and all digits before the point up to ten million."""
    if value < 100:
        return f"{value:.4f}" if value < 10 else f"{value:.3f}"
    return f"{value:,.1f}" if value < 9999.95 else f"{value:,.0f}" if value < 1e7 else f"{value:.3e}"


def count(value: float) -> str:
    """Format a count with three significant digits: 940, 12.3k, 8.19M."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * size:  # the number before it would be 1000
            return f"{value / size:.3g}{letter}"
    return f"{value:.0f}"


def duration(seconds: float) -> str:
    """Format seconds in a suitable unit: 0.31 s, 48 s, 12.5 min, 3.2 h."""
    if 0 < seconds < 0.01:
        return "< 0.01 s"
    if seconds < 120:
        return f"{seconds:.2g} s" if seconds < 9.95 else f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


FORMATS: dict[str, Callable[[float], str]] = {
    "number": number,
    "integer": "{:,}".format,
    "count": count,
    "duration": duration,
    "percent": "{:.1%}".format,
    "change": lambda share: f"{share:+.1%}" if abs(share) < 1 else f"{share:+.0%}",
}
"""Named formats, in addition to Python's format specifications."""
PRECISIONS = {"number": ".4f", "percent": ".1%", "change": "+.1%"}
"""Python's specifications of named formats, for small numbers."""
DECIMALS = re.compile(r"([ ,+-]*)\.(\d+)([f%])")


def written(value: Any, form: str = "number", missing: str = NOT_KNOWN) -> str:
    """Format a number or an :class:`Estimate` by a name of :data:`FORMATS` or a Python format; ``missing`` for None.

    A negative number has a minus sign (U+2212), on the terminal as on pages; files for programs have plain numbers.
    """
    if value is None:
        return missing
    if isinstance(value, Estimate):
        return format(value, form)
    text = FORMATS[form](value) if form in FORMATS else format(value, form)
    return f"−{text[1:]}" if text.startswith("-") else text  # a minus sign, as wide as the plus


def as_json(value: Any) -> Any:
    """Convert dataclasses, estimates, arrays, paths and containers of them to JSON values; NaN, infinities and numbers beyond
    :data:`LARGEST` become None.

    A dataclass becomes its fields, but for those that are :data:`NOT_IN_JSON`, and the properties that its class variable
    ``IN_JSON`` names; another object what its method ``to_dict`` returns.
    """
    if isinstance(value, Estimate):
        return value.to_dict()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [each.name for each in dataclasses.fields(value) if each.metadata != NOT_IN_JSON]
        return {name: as_json(getattr(value, name)) for name in [*names, *getattr(value, "IN_JSON", ())]}
    to_dict = getattr(value, "to_dict", None)
    if to_dict is not None:
        return as_json(to_dict())
    if isinstance(value, dict):
        return {key: as_json(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(part) for part in value]
    if hasattr(value, "tolist"):  # of numpy, which this module does not import
        return as_json(value.tolist())
    if isinstance(value, Path):
        return str(value)
    return None if isinstance(value, float) and not abs(value) <= LARGEST else value


def counted(number: int, noun: str) -> str:
    """A number with its noun: ``1 document``, ``1,200 documents``."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def listed(parts: list[str], last: str = "and") -> str:
    """Join texts as a list: ``a``, ``a and b``, ``a, b and c``; ``last`` is the word before the last one."""
    return f" {last} ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
