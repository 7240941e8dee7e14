"""Models trained on the same batches and scored on the same held-out documents: most of ContextLM's tables and figures.

The models differ in settings of a recipe, written as on the command line (``model.extra_layers=2``). Every model is trained
with every seed. Differences are paired by document and by seed.
"""

from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from contextwise.base.estimates import Estimate
from contextwise.base.runs import RunFolder
from contextwise.base.tables import Table
from contextwise.comparison.compared_runs import evaluate_all
from contextwise.comparison.comparison import Comparison, Group, compare
from contextwise.data import Corpus
from contextwise.experiments.run_set import RunSet, RunSetSettings
from contextwise.models.sizes import readable_count
from contextwise.reproductions.claims import Better, Claim, Growing, below, check_names, higher
from contextwise.reproductions.corpora import CorpusSource
from contextwise.reproductions.item import Item, ItemMeasure, Outcome, registered


@registered("trained_models")
class TrainedModels(CorpusSource, ItemMeasure):
    """Models by name, each the shared recipe with some settings of its own."""

    recipe: dict[str, Any]
    models: dict[str, list[str]] = Field(min_length=1)
    seeds: list[int] = Field(default=[0], min_length=1)
    reference: str = Field(description="the model that the others are compared to")
    claims: list[Better] = Field(default_factory=list)
    growing: Growing | None = None
    curves: bool = Field(False, description="also show the validation losses along training")
    limit_documents: int | None = Field(None, ge=2, description="score only so many held-out documents")

    @model_validator(mode="after")
    def _known(self) -> "TrainedModels":
        named = {
            "reference": [self.reference],
            "claims": [name for claim in self.claims for name in (claim.better, claim.than)],
            "growing": [name for pair in self.growing.pairs for name in pair] if self.growing else [],
        }
        check_names(named, self.models)
        return self

    @property
    def with_seeds(self) -> str:
        """The number of seeds behind a mean, in words."""
        return f"mean of {len(self.seeds)} seeds" if len(self.seeds) > 1 else "one seed"

    def run_set(self, folder: Path) -> RunSet:
        settings = RunSetSettings(recipe=self.recipe, arms=self.models, seeds=self.seeds)
        prefix = self.recipe.get("name", "models")
        return RunSet.of(settings, folder, corpus=self.corpus_folder(folder), prefix=prefix)

    def train(self, folder: Path) -> dict[str, list[RunFolder]]:
        """Train the missing runs, and return each model's runs, seed by seed."""
        self.prepared(folder)
        runs = self.run_set(folder)
        runs.train_missing()
        return {name: runs.folders(name) for name in self.models}

    def measure(self, item: Item, folder: Path) -> Outcome:
        runs = self.train(folder)
        sources = [str(run.path) for seeds in runs.values() for run in seeds]
        held_out = Corpus.open(self.prepared(folder), split="validation")
        results = evaluate_all(sources, held_out, limit=self.limit_documents)
        comparison = compare(sources, results=results, reference=self.reference, all_pairs=True)
        tables = [losses_table(comparison, self.reference, self.with_seeds)]
        if self.curves:
            tables.append(curves_table(runs))
        figures = comparison.to_dict()
        figures["corpus"]["path"] = Path(figures["corpus"]["path"]).name
        for group in figures["groups"]:
            group["sources"] = [Path(source).name for source in group["sources"]]
        claims = [better_claim(claim, comparison) for claim in self.claims]
        if self.growing is not None:
            claims.append(growing_claim(self.growing, comparison))
        return Outcome(tables, claims, {"comparison": figures}, [Path(source) for source in sources])


def losses_table(comparison: Comparison, reference: str, seeds: str) -> Table:
    """Loss, perplexity, difference to the reference, and cost of each model."""
    rows = [_row(group, comparison, reference) for group in comparison.groups]
    return Table(
        f"{comparison.documents} held-out documents, {comparison.tokens:,} tokens; {seeds}; 95% intervals",
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
    difference = (
        "" if group.name == reference else f"{difference_between(comparison, group.name, reference):+.3f}"
    )
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


def difference_between(comparison: Comparison, name: str, than: str) -> Estimate:
    """Loss of one model minus that of another, nats per token, with its interval."""
    for each in comparison.differences:
        if (each.group, each.reference) == (name, than):
            return each.difference
        if (each.group, each.reference) == (than, name):
            return -each.difference
    raise KeyError((name, than))


def better_claim(claim: Better, comparison: Comparison) -> Claim:
    """Whether the loss of one model is lower than that of another."""
    difference = difference_between(comparison, claim.better, claim.than)
    evidence = f"{claim.better} minus {claim.than}: {difference:+.3f} nats per token"
    return Claim.of(claim.text, below(difference), evidence)


def growing_claim(claim: Growing, comparison: Comparison) -> Claim:
    """Whether the last pair's gain is larger than the first pair's; decided where their intervals do not overlap."""
    gains = [difference_between(comparison, *pair) for pair in claim.pairs]
    evidence = "; ".join(
        f"{name} minus {than}: {gain:+.3f}" for (name, than), gain in zip(claim.pairs, gains, strict=True)
    )
    return Claim.of(claim.text, higher(gains[0], gains[-1]), evidence)


def curves_table(runs: dict[str, list[RunFolder]]) -> Table:
    """Validation loss along training, mean over seeds, at the steps at which all were validated."""
    losses: dict[str, dict[int, list[float]]] = {}
    for name, seeds in runs.items():
        losses[name] = {}
        for run in seeds:
            for row in run.metrics("validation"):
                losses[name].setdefault(row["tokens"], []).append(row["loss"])
    shared = sorted(set.intersection(*(set(by_tokens) for by_tokens in losses.values())))
    rows = [
        [
            readable_count(tokens),
            *(f"{sum(by_tokens[tokens]) / len(by_tokens[tokens]):.4f}" for by_tokens in losses.values()),
        ]
        for tokens in shared
    ]
    return Table("Validation loss along training, nats per token", ["tokens", *losses], rows)
