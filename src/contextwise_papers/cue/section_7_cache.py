"""Gain of contexts for words that recur in them and for other words (CUE, Section 7).

The bins and gains are those of :mod:`contextwise_papers.cue.sentences.cache_effect`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from contextwise.report import Table
from contextwise.settings import ConfigError
from contextwise.stats import Estimate
from contextwise_papers.claims import Claim, above, higher, undecided
from contextwise_papers.cue.runs import OneRun
from contextwise_papers.cue.sentences.cache_effect import ALL, BINS, effect_between
from contextwise_papers.cue.tables_3_to_6_perplexity import Row, evaluated
from contextwise_papers.item import Item, Outcome
from contextwise_papers.tables import seeds_behind, table_of

_IN, _NOT_IN = BINS[:2]


class CacheOfWords(OneRun, name="cache_of_words"):
    """The gain of contexts for tokens of words that are in them, and for others."""

    control: str | None = Field(default=None, description="a run that never saw a context, to compare to as well")
    limit_documents: int | None = Field(default=None, ge=2)

    @property
    def wanted(self) -> list[str]:
        return [self.run] if self.control is None else [self.run, self.control]

    def measure(self, item: Item, folder: Path) -> Outcome:
        runs = self.train(folder)
        held_out, limit = self.held_out(), self.limit_documents
        evaluations = [
            [evaluated(of_seed.path, held_out, Row(run=run), limit) for of_seed in runs.folders(run)]
            for run in self.wanted
        ]
        summary = evaluations[0][0].summary
        if "cache_effect" not in summary:
            raise ConfigError(f"the run {self.run!r} has no contexts; name one that was trained with some")
        types = summary["cache_effect"]["types"]
        bins = {"its sentence encoder alone": effect_between(evaluations[0])}
        if self.control is not None:
            bins[self.control] = effect_between(*evaluations)
        about = f"{summary['documents']:,} articles of the split {self.split}; {seeds_behind(len(self.seeds))}; 95% intervals"
        tables = [
            bins_table(f"{self.run} against {name}: {about}", effect_bins, item.printed)
            for name, effect_bins in bins.items()
        ]
        tables.append(types_table(types, item.printed.get("types", {})))
        claims = [claim for name, effect_bins in bins.items() for claim in cache_claims(effect_bins, name)]
        claims = [claim.over_seeds(len(self.seeds)) for claim in claims]
        return Outcome(tables, claims, {"bins": bins, "types": types}, runs.paths)


def bins_table(title: str, bins: Mapping[str, Any], printed: Mapping[str, Any]) -> Table:
    """Share of each bin and its gains, beside the printed ``shares`` and ``gains`` by name of the bin."""
    shares, gains = printed.get("shares", {}), printed.get("gains", {})
    rows = []
    for name in (*BINS, ALL):
        if name in bins:
            effect = bins[name]
            share = effect["share"] and effect["share"]["value"]
            ours = (effect["gain"], effect["likelihood_gain"], effect["log_likelihood_gain"]["value"])
            rows.append([name, share, shares.get(name), *ours, gains.get(name)])
    return table_of(
        title,
        ["tokens", ("share", ".1%"), ("printed", ".0%"), ("nats saved", "+.3f"), ("likelihood", "+.1%"),
         ("log-lik.", "+.1%"), ("printed", ".0%")],
        rows,
    )  # fmt: skip


def types_table(types: Mapping[str, Any], printed: Mapping[str, float]) -> Table:
    """Shares of tokens whose word is in each context, the most frequent first."""
    ordered = sorted(types.items(), key=lambda pair: -pair[1]["value"])
    rows = [[name, share, printed.get(name)] for name, share in ordered]
    columns = ["context", ("share", ".1%"), ("printed", ".0%")]
    return table_of("Tokens whose word is in the context", columns, rows)


def cache_claims(bins: Mapping[str, Any], against: str) -> list[Claim]:
    """The document's claims on the two bins, by the intervals of the nats that a token saves."""
    recurring = f"against {against}, tokens of words that are in the contexts gain more than others"
    others = f"against {against}, tokens of words that are not in them gain too"
    if _IN not in bins or _NOT_IN not in bins:
        missing = _IN if _IN not in bins else _NOT_IN
        return [Claim.of(text, undecided(f"no token is {missing}")) for text in (recurring, others)]
    inside, outside = (Estimate.from_dict(bins[name]["gain"]) for name in (_IN, _NOT_IN))
    saved = "nats saved a token: "
    return [
        Claim.of(recurring, higher(inside, outside), f"{saved}{inside:+.3f} against {outside:+.3f}"),
        Claim.of(others, above(outside), f"{saved}{outside:+.3f}"),
    ]
