"""Several models trained on the same batches and scored on the same held-out documents: most of ContextLM's tables and figures.

What the models differ in are settings of a recipe, written as on the command line (``model.extra_layers=2``). Every model is
trained with every seed. A claim that one model's loss is lower than another's holds where the 95% interval of their
difference, paired by document and by seed, lies below zero; it does not hold where the interval lies above; where zero is
inside, this scale cannot tell.
"""

import re
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from contextwise.base.config import Settings, validate, with_overrides
from contextwise.base.errors import ConfigError
from contextwise.base.estimates import Estimate
from contextwise.base.runs import RunFolder
from contextwise.comparison.compared_runs import evaluate_all
from contextwise.comparison.comparison import Comparison, Difference, Group, compare
from contextwise.data import Corpus
from contextwise.models.sizes import readable_count
from contextwise.reproductions.corpora import CorpusSource
from contextwise.reproductions.item import Claim, Item, ItemMeasure, Outcome, Table, registered
from contextwise.training.recipe import Recipe
from contextwise.training.run import train


class Lower(Settings):
    """A claim: one model's loss is lower than another's."""

    text: str
    lower: str = Field(description="a model")
    than: str = Field(description="another")


class Growing(Settings):
    """A claim: the lead of one model over another grows from pair to pair."""

    text: str
    pairs: list[tuple[str, str]] = Field(min_length=2)


@registered("trained_models")
class TrainedModels(CorpusSource, ItemMeasure):
    """Models by name, each the shared recipe with some settings of its own."""

    recipe: dict[str, Any]
    models: dict[str, list[str]] = Field(min_length=1)
    seeds: list[int] = Field(default=[0], min_length=1)
    reference: str = Field(description="the model that the others are compared to")
    claims: list[Lower] = Field(default_factory=list)
    growing: Growing | None = None
    curves: bool = Field(False, description="also show the validation losses along training")
    limit_documents: int | None = Field(None, ge=2, description="score only so many held-out documents")

    @model_validator(mode="after")
    def _known(self) -> "TrainedModels":
        pairs = self.growing.pairs if self.growing else []
        named = {
            "reference": [self.reference],
            "claims": [name for claim in self.claims for name in (claim.lower, claim.than)],
            "growing": [name for pair in pairs for name in pair],
        }
        for where, names in named.items():
            for name in names:
                if name not in self.models:
                    raise ConfigError(f"{where} names {name!r}, which is none of {', '.join(self.models)}")
        return self

    def one(self, folder: Path, name: str, seed: int) -> Recipe:
        """The run of one model and seed."""
        values = with_overrides({"data": {}, **self.recipe}, self.models[name])
        values["data"]["corpus"] = str(self.corpus_folder(folder))
        slug = re.sub(r"[^\w.=]+", "-", name).strip("-").lower()
        tag = self.recipe.get("name", "models")
        values |= {"name": name, "seed": seed, "output": str(folder / "runs" / f"{tag}-{slug}-seed{seed}")}
        return validate(Recipe, values, f"the run {name}")

    def recipes(self, folder: Path) -> list[Recipe]:
        # Seed by seed, so that a reproduction that was stopped has whole seeds.
        return [self.one(folder, name, seed) for seed in self.seeds for name in self.models]

    def train(self, folder: Path) -> dict[str, list[RunFolder]]:
        """Train all, or use what has finished: each model's runs, seed by seed."""
        self.prepared(folder)
        runs: dict[str, list[RunFolder]] = {name: [] for name in self.models}
        for recipe in self.recipes(folder):
            runs[recipe.name].append(train(recipe))
        return runs

    def measure(self, item: Item, folder: Path) -> Outcome:
        runs = self.train(folder)
        sources = [str(run.path) for members in runs.values() for run in members]
        held_out = Corpus.open(self.prepared(folder), split="validation")
        results = evaluate_all(sources, held_out, limit=self.limit_documents)
        comparison = compare(sources, results=results, reference=self.reference, all_pairs=True)
        tables = [losses_table(comparison, self.reference, len(self.seeds))]
        if self.curves:
            tables.append(curves_table(runs))
        figures = comparison.to_dict()
        figures["corpus"]["path"] = Path(figures["corpus"]["path"]).name
        for group in figures["groups"]:
            group["sources"] = [Path(source).name for source in group["sources"]]
        claims = [lower_claim(claim, comparison) for claim in self.claims]
        if self.growing is not None:
            claims.append(growing_claim(self.growing, comparison))
        return Outcome(tables, claims, {"comparison": figures}, [Path(source) for source in sources])


def losses_table(comparison: Comparison, reference: str, seeds: int) -> Table:
    """Loss, perplexity, difference to the reference, and cost of each model."""
    rows = [_row(group, comparison, reference) for group in comparison.groups]
    many = f"mean of {seeds} seeds" if seeds > 1 else "one seed"
    return Table(
        f"{comparison.documents} held-out documents, {comparison.tokens:,} tokens; {many}; 95% intervals",
        [
            "model",
            "size",
            "tokens",
            "loss",
            "ppl",
            f"minus {reference}",
            "train tok/s",
            "ms/token",
        ],
        rows,
    )


def _row(group: Group, comparison: Comparison, reference: str) -> list[str]:
    difference = "" if group.name == reference else interval(find(comparison, group.name, reference))
    speed, latency = group.tokens_per_second, group.ms_per_token
    return [
        group.name,
        readable_count(group.parameters),
        "" if group.training_tokens is None else readable_count(round(group.training_tokens)),
        f"{group.loss.value:.4f}",
        f"{group.perplexity.value:.2f}",
        difference,
        "" if speed is None else readable_count(round(speed)),
        "" if latency is None else f"{latency:.2f}",
    ]


def find(comparison: Comparison, name: str, than: str) -> Estimate:
    """Loss of one model minus that of another, nats per token, with its interval."""
    for one in comparison.differences:
        if (one.group, one.reference) == (name, than):
            return one.difference
        if (one.group, one.reference) == (than, name):
            return _negated(one)
    raise KeyError((name, than))


def _negated(difference: Difference) -> Estimate:
    found = difference.difference
    ends = (None if end is None else -end for end in (found.high, found.low))
    return Estimate(-found.value, *ends)


def interval(found: Estimate) -> str:
    """``-0.046 [-0.084, -0.008]``."""
    ends = "" if found.low is None or found.high is None else f" [{found.low:+.3f}, {found.high:+.3f}]"
    return f"{found.value:+.3f}{ends}"


def lower_claim(claim: Lower, comparison: Comparison) -> Claim:
    """What the interval says of a claim."""
    found = find(comparison, claim.lower, claim.than)
    return Claim(
        claim.text, below_zero(found), f"{claim.lower} minus {claim.than}: {interval(found)} nats per token"
    )


def growing_claim(claim: Growing, comparison: Comparison) -> Claim:
    """Told only where the intervals of the first and the last pair do not overlap."""
    leads = [find(comparison, *pair) for pair in claim.pairs]
    evidence = "; ".join(
        f"{name} minus {than}: {interval(lead)}"
        for (name, than), lead in zip(claim.pairs, leads, strict=True)
    )
    first, last = leads[0], leads[-1]
    holds = None
    if None not in (first.low, first.high, last.low, last.high):
        if last.high < first.low:  # type: ignore[operator]
            holds = True
        elif last.low > first.high:  # type: ignore[operator]
            holds = False
    return Claim(claim.text, holds, evidence)


def below_zero(found: Estimate) -> bool | None:
    """Whether an interval lies below zero: True, False where it lies above, None where zero is inside or there is none."""
    if found.low is None or found.high is None or found.low <= 0 <= found.high:
        return None
    return found.high < 0


def curves_table(runs: dict[str, list[RunFolder]]) -> Table:
    """Validation loss along training, mean over seeds, at the steps at which all were validated."""
    losses: dict[str, dict[int, list[float]]] = {}
    for name, members in runs.items():
        losses[name] = {}
        for run in members:
            for row in run.metrics("validation"):
                losses[name].setdefault(row["tokens"], []).append(row["loss"])
    shared = sorted(set.intersection(*(set(found) for found in losses.values())))
    rows = [
        [
            readable_count(tokens),
            *(f"{sum(found[tokens]) / len(found[tokens]):.4f}" for found in losses.values()),
        ]
        for tokens in shared
    ]
    return Table("Validation loss along training, nats per token", ["tokens", *losses], rows)
