"""Verdicts on what a document says, from estimates with intervals: it holds, it does not, or this scale cannot tell."""

from collections.abc import Iterable

from contextwise.base.estimates import Estimate


def all_hold(verdicts: Iterable[bool | None]) -> bool | None:
    """Of several: False if one is, True if all are, else None; None of none."""
    found = list(verdicts)
    if False in found:
        return False
    return True if found and None not in found else None


def point(x: float, found: Estimate) -> dict[str, float]:
    """A point of a :class:`~contextwise.reproductions.item.Plot`."""
    limits = {"low": found.low, "high": found.high} if found.has_interval else {}
    return {"x": x, "y": found.value, **limits}
