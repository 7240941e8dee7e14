"""The part of ``contextwise evaluate`` behind ``--contextwise``: how much of its context a model uses."""

from pathlib import Path
from typing import Any

from contextwise.base.config import validate
from contextwise.base.errors import ConfigError


def contexts_of(text: str) -> list[int]:
    """The lengths of ``16,32,64`` or ``16,32,…,2048``.

    Raises:
        ConfigError: something else stands there.
    """
    parts = [part.strip() for part in text.split(",")]
    found: list[int] = []
    try:
        for i, part in enumerate(parts):
            if part in ("…", "..."):
                first, second, last = found[i - 2], found[i - 1], int(parts[i + 1])
                if i != 2 or len(parts) != 4 or not 0 < first < second < last or second % first:
                    raise ValueError
                while found[-1] * (second // first) < last:
                    found.append(found[-1] * (second // first))
            else:
                found.append(int(part))
    except (ValueError, IndexError):
        raise ConfigError(
            f"--contexts is {text!r}; give whole numbers with commas between, such as 16,32,64 or 16,32,…,2048"
        ) from None
    return found


def evaluate_contextwise(
    model: str, corpus: Path | None, split: str, as_json: bool, curve: dict[str, Any], **options: Any
) -> None:
    """Measure, print and write a contextwise loss curve.

    Args:
        curve: values of :class:`contextwise.evaluation.measures.curve.CurveSettings`; those that are None were not given.
        options: of :func:`contextwise.evaluation.measures.curve.measure_contextwise`.
    """
    if corpus is None:
        raise ConfigError("there are no documents to measure on; give a prepared corpus with --corpus")
    from contextwise.cli.measuring import run_measure
    from contextwise.evaluation.measures.curve import Curve

    given = {name: value for name, value in curve.items() if value is not None}
    if given.get("mode") != "truncated" and "samples" in given:
        raise ConfigError("--samples is of the truncated mode; give --mode truncated too")
    given["limit"] = given.pop("limit_documents", None)
    run_measure(model, validate(Curve, given, "the command"), corpus, split, as_json, **options)
