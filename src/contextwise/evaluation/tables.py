"""Heading and table of an evaluation, for the terminal and for pages."""

from typing import Any

from rich.text import Text

from contextwise.base.estimates import Estimate
from contextwise.base.tables import Column, Table

MEASURES = {
    "loss": "loss (nats per token)",
    "perplexity": "perplexity",
    "word_perplexity": "word perplexity",
    "byte_perplexity": "byte perplexity",
    "bits_per_byte": "bits per byte",
}


def evaluation_heading(summary: dict[str, Any]) -> Text:
    """Build the heading: model, documents, tokens and context of the evaluation."""
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


def evaluation_table(
    summary: dict[str, Any], measures: dict[str, str] = MEASURES, title: str = "", known_only: bool = False
) -> Table:
    """Build a table of the measures of an evaluation.

    Args:
        summary: summary of the evaluation.
        measures: key in the summary -> name of its row.
        known_only: omit unknown measures.
    """
    rows: list[list[str | Estimate | None]] = []
    for key, name in measures.items():
        measure = summary[key]
        known = measure is not None and measure["value"] is not None
        if known or not known_only:
            rows.append([name, Estimate.from_dict(measure) if known else None])
    return Table(title, ["", Column("value", "estimate", interval="own")], rows)
