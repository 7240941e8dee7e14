"""Evaluations sentence by sentence, and ranked lists, as tables that read well in 80 columns."""

from typing import Any

from rich.text import Text

from contextwise.base.estimates import Estimate, number
from contextwise.base.tables import Column, Table
from contextwise.evaluation.measures.sentences.cache_effect import ALL, BINS
from contextwise.evaluation.measures.sentences.conditioning import PROXY
from contextwise.evaluation.tables import MEASURES

SENTENCE_MEASURES = MEASURES | {
    "loss_without_ends": "loss without ends",
    "perplexity_without_ends": "perplexity without ends",
}


def sentences_heading(summary: dict[str, Any]) -> Text:
    """What was scored, and with which contexts."""
    about = summary["sentences"]
    heading = (
        f"{summary['model']} on {summary['label']}: {about['count']:,} sentences of {summary['documents']:,} documents, each "
        f"on its own; {summary['tokens']:,} tokens, the end-of-text that ends each sentence among them. {_given(summary)}"
    )
    if about["in_windows"]:
        heading += (
            f" {about['in_windows']:,} sentences are longer than the model's {about['positions']:,} positions; they were "
            "scored in overlapping windows."
        )
    if summary["documents"] == 1:
        heading += " One document allows no interval."
    return Text(heading)


def _given(summary: dict[str, Any]) -> str:
    contexts = summary.get("contexts")
    if contexts is None:
        return "The model takes no contexts."
    if contexts["types"] == [PROXY]:
        return f"In place of contexts: proxies of the sentences' own words, noise {contexts['noise']:g} (an oracle)."
    if not contexts["types"]:
        return "No contexts."
    missing = contexts["missing"]
    given = [f"{name} ({1 - missing[name]:.0%})" for name in contexts["types"]]
    words = f"Contexts (of the sentences, so many have it): {', '.join(given)}."
    if contexts["dropped"]:
        words += f" {contexts['dropped']:.0%} of them withheld at random."
    foreign = [name for name in contexts["types"] if name not in contexts["trained"]]
    if foreign:
        words += f" Not trained with: {', '.join(foreign)}."
    if contexts["truncated"]:
        were = "was" if contexts["truncated"] == 1 else "were"
        words += f" {contexts['truncated']:,} of {contexts['texts']:,} texts {were} longer than the text encoder takes,"
        words += " and cut."
    return words


def against_sentence(summary: dict[str, Any]) -> Text | None:
    """How a CUE model compares with its sentence encoder alone; None for other models."""
    found = summary.get("sentence_encoder")
    if found is None:
        return None
    gain, loss = Estimate.from_dict(found["relative_perplexity"]), found["difference"]
    return Text(
        f"Its sentence encoder alone: perplexity {number(found['perplexity']['value'])}. Relative to that: "
        f"{gain:change}, {loss['value']:+.4f} nats per token."
    )


def cache_table(summary: dict[str, Any]) -> Table | None:
    """The gain for tokens of words that stand in the contexts, and for others; None without contexts."""
    effect = summary.get("cache_effect")
    if effect is None:
        return None
    rows = [
        [
            name,
            None if row["share"] is None else row["share"]["value"],
            row["loss_without"],
            row["loss_with"],
            Estimate.from_dict(row["log_likelihood_gain"]),
            Estimate.from_dict(row["likelihood_gain"]),
        ]
        for name in (*BINS, ALL)
        if (row := effect["bins"].get(name)) is not None
    ]
    columns: list[Column | str] = [
        "",
        Column("of all\ntokens", "percent"),
        Column("nats\nalone", "estimate", ".4f"),
        Column("nats\nwith", "estimate", ".4f"),
        Column("gain in log-\nlikelihood", "difference", "change", interval="below"),
        Column("gain in\nlikelihood", "difference", "change", interval="below"),
    ]
    title = "gain over the sentence encoder alone (contexts and decoder together), by word"
    return Table(title, columns, rows)


def types_sentence(summary: dict[str, Any]) -> Text | None:
    """In which contexts the words of the sentences stand."""
    effect = summary.get("cache_effect")
    if effect is None:
        return None
    shares = sorted(effect["types"].items(), key=lambda item: -item[1]["value"])
    return Text(
        "Tokens whose word stands in the context: "
        + ", ".join(f"{name} {share['value']:.1%}" for name, share in shares)
        + "."
    )
