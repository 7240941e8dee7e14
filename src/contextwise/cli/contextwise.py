"""The part of ``contextwise evaluate`` behind ``--contextwise``: how much of its context a model uses."""

import json
from pathlib import Path
from typing import Any

from contextwise.base.config import validate
from contextwise.base.errors import ConfigError
from contextwise.base.progress import say


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
    from rich.console import Console

    from contextwise.data import Corpus
    from contextwise.evaluation.measures.curve import CurveSettings, measure_contextwise
    from contextwise.evaluation.measures.curve.tables import bins_table, curve_heading, measures_table, notes
    from contextwise.evaluation.opening import trained_on
    from contextwise.training.signals import StopRequest

    given = {name: value for name, value in curve.items() if value is not None}
    if given.get("mode") != "truncated" and "samples" in given:
        raise ConfigError("--samples is of the truncated mode; give --mode truncated too")
    settings = validate(CurveSettings, given, "the command")
    documents = Corpus.open(corpus, split=split)
    with StopRequest().listening() as stop:
        found = measure_contextwise(model, documents, settings, **options, should_stop=lambda: bool(stop))
    if trained_on(model, documents):
        say("note: the run was trained on these very documents; they are not held out")
    if as_json:
        print(json.dumps(found.summary, indent=2, ensure_ascii=False))
        return
    printed = Console(highlight=False)
    printed.print(curve_heading(found.summary))
    printed.print(bins_table(found.summary))
    printed.print(measures_table(found.summary))
    for note in notes(found.summary):
        printed.print(f"Note: {note}", markup=False)
    printed.print(f"written to {found.path}/", markup=False, soft_wrap=True)
