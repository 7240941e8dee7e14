"""The models that items measure: a given one, or ones that are trained first on the item's corpus."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import Field, model_validator

from contextwise.base.runs import RunFolder
from contextwise.comparison.compared_runs import evaluate_all
from contextwise.comparison.comparison import compare
from contextwise.comparison.result import Comparison
from contextwise.comparison.tables import difference_table, model_table
from contextwise.data import Corpus
from contextwise.measures import Evaluation, Measure, measure
from contextwise.models.folders import model_folder
from contextwise.report import Table, as_json, count
from contextwise.runset import RecipeValues, RunCost, RunSet, RunSetSettings, cost_of
from contextwise.settings import ConfigError, Name, Seeds
from contextwise.stats import Estimate, estimate
from contextwise_papers.claims import Better, Claim, Growing, Marginal, above, below, check_names, within
from contextwise_papers.item import CorpusMeasure, Item, Outcome
from contextwise_papers.tables import seeds_behind, table_of

PREDICTOR = "model.context_predictor."
INJECTION = f"{PREDICTOR}injection"
GATE = ", gate"
COMPARED = ("claims", "marginal", "growing", "accuracy_claims", "throughput_claims", "pairs")
"""Settings that are lists of comparisons of models."""


class GivenModel(CorpusMeasure):
    """Settings of a measure of one model.

    A corpus that has to be prepared gets the tokenizer of a given model, unless ``tokenizer`` is set. ``several``: whether the
    models of several seeds are measured.
    """

    several: ClassVar[bool] = False
    name: Name = Field(default="model", description="name of the run, if a model is trained")
    model: str = Field(default="", description="a run, a model's folder or Hub name; if empty, `recipe` is trained")
    parameters: int | None = Field(default=None, gt=0, description="of a given model, for the plan")
    recipe: RecipeValues | None = Field(default=None, description="of the model that is trained if none is given")
    seeds: Seeds | None = Field(
        default=None, min_length=1, description="of the models that are trained; by default the recipe's seed"
    )

    @model_validator(mode="after")
    def _some_model(self) -> "GivenModel":
        if not self.model and self.recipe is None:
            raise ConfigError("neither model nor recipe is given; give a model, or the recipe to train one")
        if not self.several and self.models > 1:
            raise ConfigError(f"seeds has {self.models}, but this item measures one model; give one seed")
        return self

    def run_set(self, folder: Path) -> RunSet:
        if self.model:
            return RunSet(folder, [])
        recipe = self.recipe or {}
        seeds = self.seeds or [recipe.get("seed", 0)]
        settings = RunSetSettings(recipe=recipe, arms={self.name: []}, seeds=seeds)
        return RunSet.of(settings, folder, corpus=self.corpus_folder(folder))

    @property
    def models(self) -> int:
        """The number of models that are measured."""
        return 1 if self.model else len(self.seeds or [0])

    @property
    def corpus_tokenizer(self) -> str:
        if self.model and self.tokenizer == CorpusMeasure.model_fields["tokenizer"].default:
            return model_folder(self.model)
        return self.tokenizer

    def subject(self, folder: Path, index: int = 0) -> str:
        """The model to measure, as a path or a Hub name; models that are not given are trained first."""
        return self.model or self.train(folder).runs[index].source

    def measured(self, settings: Measure, folder: Path, index: int = 0) -> Any:
        """The result of a measure of the model, beside its run or below ``folder``, where other items find it again.

        ``index`` is the number of the model among those of several seeds.
        """
        subject = self.subject(folder, index)
        corpus = Corpus.open(self.prepared(folder), split="validation") if settings.on_corpus else None
        home = folder / "measured" / Path(self.model).name if self.model else None
        return measure(subject, settings, corpus, home=home)

    def tokens_read(self) -> int | None:
        """Tokens that the measurement reads; None if that depends on the corpus."""
        return None

    def passes(self, folder: Path) -> list[RunCost]:
        """Cost of the measurement: two operations for each parameter and token, weights in 16 bits.

        Attention does not count. Empty where only the corpus says how many tokens are read.
        """
        tokens, parameters = self.tokens_read(), self.parameters
        if not self.model:
            recipe = self.recipes(folder)[0]
            tokens = tokens and tokens * self.models
            parameters = cost_of(recipe, self.vocab_size).parameters
        if tokens is None or parameters is None:
            return []
        name = f"measure {self.model or self.name}"
        return [RunCost(name, parameters, 0, 0, tokens, 2.0 * parameters * tokens, 2 * parameters, 0)]


class TrainedModels(CorpusMeasure, name="trained_models"):
    """Models trained on the same batches and scored on the same held-out documents: most of ContextLM's tables and figures.

    Each is the shared recipe with some settings of its own, written as on the command line (``model.extra_layers=2``), and
    trained with every seed. Differences are paired by document and by seed.

    A ContextLM whose settings name no ``injection`` is trained in both forms: as the code of the document's authors has it
    (``paper``), under its own name, and with the gate, the package's default, as "NAME, gate". Claims are decided for both.
    """

    recipe: RecipeValues
    models: dict[str, list[str]] = Field(min_length=1)
    seeds: Seeds = Field(default=[0], min_length=1)
    reference: str = Field(description="the model that the others are compared to")
    claims: list[Better] = Field(default=[])
    marginal: list[Marginal] = Field(default=[])
    growing: list[Growing] = Field(default=[])
    curves: bool = Field(default=False, description="also show the validation losses along training")
    limit_documents: int | None = Field(default=None, ge=2, description="maximum number of held-out documents to score")

    @model_validator(mode="before")
    @classmethod
    def _both_forms(cls, data: Any) -> Any:
        return in_both_forms(data) if isinstance(data, dict) and isinstance(data.get("models"), dict) else data

    @model_validator(mode="after")
    def _known(self) -> "TrainedModels":
        named = {
            "reference": [self.reference],
            "claims": [name for claim in self.claims for name in claim.names],
            "marginal": [name for claim in self.marginal for name in claim.names],
            "growing": [name for growing in self.growing for name in growing.names],
        }
        check_names(named, self.models)
        return self

    @property
    def with_seeds(self) -> str:
        """The number of seeds behind a mean, in words."""
        return seeds_behind(len(self.seeds))

    @property
    def others(self) -> list[str]:
        """The models that are compared to the reference."""
        return [name for name in self.models if name != self.reference]

    def run_set(self, folder: Path) -> RunSet:
        return self.runs_of(self.models, folder)

    def runs_of(self, arms: Any, folder: Path) -> RunSet:
        """The runs of arms, as of :class:`RunSetSettings`, with the shared recipe, the seeds and the corpus."""
        settings = RunSetSettings(recipe=self.recipe, arms=arms, seeds=self.seeds)
        prefix = self.recipe.get("name", "models")
        return RunSet.of(settings, folder, corpus=self.corpus_folder(folder), prefix=prefix)

    def trained(self, folder: Path) -> dict[str, list[RunFolder]]:
        """Train the missing runs, and return each model's runs, seed by seed."""
        runs = self.train(folder)
        return {name: runs.folders(name) for name in self.models}

    def measure(self, item: Item, folder: Path) -> Outcome:
        runs = self.trained(folder)
        paths = paths_of(runs)
        sources = [str(path) for path in paths]
        held_out = Corpus.open(self.prepared(folder), split="validation")
        results = evaluate_all(sources, held_out, limit=self.limit_documents)
        comparison = compare(sources, results=results, reference=self.reference, all_pairs=True)
        tables = [model_table(comparison), difference_table(comparison)]
        if self.curves:
            tables.append(curves_table(runs))
        figures = as_json(comparison)
        figures["corpus"]["path"] = Path(figures["corpus"]["path"]).name
        for group in figures["groups"]:
            group["sources"] = [Path(source).name for source in group["sources"]]
        claims = []
        for better in self.claims:
            difference = difference_between(comparison, better.better, better.than)
            claims.append(better.decided(below(difference), f": {difference:+.3f} nats per token"))
        for marginal in self.marginal:
            difference = difference_between(comparison, marginal.better, marginal.than)
            evidence = f": {difference:+.3f} nats per token"
            most = marginal.most
            verdict = within(difference, -most, most) if marginal.both_sides else above(difference, -most)
            claims.append(marginal.decided(verdict, evidence))
        by_model = {name: results[i * len(self.seeds) : (i + 1) * len(self.seeds)] for i, name in enumerate(runs)}
        for growing in self.growing:
            leads = [
                f"{name} minus {than}: {difference_between(comparison, name, than):+.3f}"
                for name, than in growing.pairs
            ]
            change = difference_of_leads(by_model, growing.pairs[0], growing.pairs[-1])
            evidence = f"{'; '.join(leads)}; the last minus the first: {change:+.3f} nats per token"
            claims.append(Claim.of(growing.text, below(change), evidence))
        claims = [claim.over_seeds(len(self.seeds)) for claim in claims]
        return Outcome(tables, claims, {"comparison": figures}, paths)


def in_both_forms(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings of :class:`TrainedModels` with every ContextLM of no named injection, and the claims about it, in both forms."""
    models: dict[str, Any] = {}
    gated: dict[str, str] = {}
    for name, own in settings["models"].items():
        keys = [str(setting).partition("=")[0] for setting in own or []]
        if INJECTION in keys or not any(key.startswith(PREDICTOR) for key in keys):
            models[name] = own
            continue
        gated[name] = f"{name}{GATE}"
        models |= {name: [*own, f"{INJECTION}=paper"], gated[name]: [*own, f"{INJECTION}=gate"]}
    expanded = {**settings, "models": models}
    for key in COMPARED:
        if isinstance(settings.get(key), list):
            both = [(each, _with_gate(each, gated)) for each in settings[key]]
            expanded[key] = [form for each, other in both for form in ([each] if other == each else [each, other])]
    return expanded


def _with_gate(each: Any, gated: dict[str, str]) -> Any:
    """A comparison, or a part of it, with the names of the models with the gate; the same where none has both forms."""
    if isinstance(each, list | tuple):
        return [_with_gate(part, gated) for part in each]
    if not isinstance(each, dict):
        return gated.get(each, each) if isinstance(each, str) else each
    renamed = {key: value if key == "text" else _with_gate(value, gated) for key, value in each.items()}
    return renamed if renamed == each or "text" not in each else renamed | {"text": f"{each['text']} (gate)"}


def paths_of(runs: dict[str, list[RunFolder]]) -> list[Path]:
    """The folders of each model's runs."""
    return [run.path for folders in runs.values() for run in folders]


def measured_by_model(runs: dict[str, list[RunFolder]], settings: Measure) -> dict[str, list[Any]]:
    """Each model's results of a measure, seed by seed."""
    return {name: [measure(run.path, settings) for run in folders] for name, folders in runs.items()}


def difference_between(comparison: Comparison, name: str, than: str) -> Estimate:
    """Loss of one model minus that of another, nats per token, with its interval."""
    for each in comparison.differences:
        if (each.group, each.reference) == (name, than):
            return each.difference
        if (each.group, each.reference) == (than, name):
            return -each.difference
    raise KeyError((name, than))


def difference_of_leads(
    results: Mapping[str, Sequence[Evaluation]], first: tuple[str, str], last: tuple[str, str]
) -> Estimate:
    """How much more the last pair's (better, than) losses differ than the first pair's, nats per token.

    Paired by document and seed; ``results``: model -> its evaluations on the same documents, seed by seed.
    """
    nats = {name: np.stack([each.documents["nats"].to_numpy() for each in results[name]]) for name in {*first, *last}}
    block_SN = (nats[last[0]] - nats[last[1]]) - (nats[first[0]] - nats[first[1]])
    return estimate([block_SN], results[first[0]][0].documents["tokens"].to_numpy().astype(float))


def curves_table(runs: dict[str, list[RunFolder]]) -> Table:
    """Validation loss along training, mean over seeds, at the steps at which all were validated."""
    losses = [validation_losses(seeds) for seeds in runs.values()]
    rows = [[count(tokens), *(own[tokens] for own in losses)] for tokens in sorted(set.intersection(*map(set, losses)))]
    columns = ["tokens", *((name, ".4f") for name in runs)]
    return table_of("Validation loss along training, nats per token", columns, rows)


def validation_losses(runs: Sequence[RunFolder], name: str = "loss") -> dict[int, float]:
    """A validation loss by tokens of training, mean over seeds, where all were validated."""
    curves = [
        {row["tokens"]: row[name] for row in run.metrics("validation") if row.get(name) is not None} for run in runs
    ]
    shared = sorted(set.intersection(*map(set, curves)))
    return {tokens: sum(curve[tokens] for curve in curves) / len(curves) for tokens in shared}
