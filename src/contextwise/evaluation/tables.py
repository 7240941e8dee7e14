"""Evaluations and comparisons as tables that read well in 80 columns."""

from collections.abc import Callable
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

NOT_KNOWN = "–"
MEASURES = {
    "loss": "loss (nats per token)",
    "perplexity": "perplexity",
    "word_perplexity": "word perplexity",
    "byte_perplexity": "byte perplexity",
    "bits_per_byte": "bits per byte",
}


def evaluation_heading(summary: dict[str, Any]) -> Text:
    """What was scored, and how: model, documents, tokens, context."""
    settings = summary["settings"]
    context, stride = settings["context"], settings["stride"]
    heading = (
        f"{summary['model']} on {summary['label']}: {summary['documents']:,} documents, "
        f"{summary['tokens']:,} tokens; windows of {context:,}, stride {stride:,}: "
        f"each token is predicted from {context - stride:,} tokens or more, or from all before it in its document."
    )
    if not summary["first_token_scored"]:
        heading += " The corpus has no end-of-text token, so the first token of each document is not scored."
    if summary["documents"] == 1:
        heading += " One document allows no interval."
    return Text(heading)


def evaluation_table(summary: dict[str, Any], measures: dict[str, str] = MEASURES) -> Table:
    """The measures of one evaluation, from its summary; ``measures``: key there -> what it is called here."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    table.add_column("value", justify="right")
    table.add_column("95% interval", justify="right")
    for key, name in measures.items():
        measure = summary[key]
        if measure is None or measure["value"] is None:
            table.add_row(name, NOT_KNOWN, NOT_KNOWN)
            continue
        table.add_row(name, number(measure["value"]), interval(measure["low"], measure["high"]))
    return table


def number(value: float) -> str:
    """A measure with about five significant digits."""
    if value < 100:
        return f"{value:.4f}" if value < 10 else f"{value:.3f}"
    return f"{value:,.1f}" if value < 1e5 else f"{value:.3e}"


def interval(low: float | None, high: float | None) -> str:
    """``[low, high]``, or a dash where there is none."""
    return NOT_KNOWN if low is None or high is None else f"[{number(low)}, {number(high)}]"


def count(value: float) -> str:
    """A count in three digits: 940, 12.3k, 8.19M."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.0f}"


def duration(seconds: float) -> str:
    """Seconds as people say them: 48 s, 12.5 min, 3.2 h."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def known(value: float | None, shown: Callable[[float], str]) -> str:
    return NOT_KNOWN if value is None else shown(value)
