"""The runs of a trial's arms: their recipes, what is equal between them, and checks before anything is trained."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from contextwise.base.config import with_overrides
from contextwise.base.errors import ConfigError, DataError, Problem
from contextwise.base.estimates import count, counted
from contextwise.base.files import expanded
from contextwise.data import Corpus
from contextwise.data.document_lengths import short_documents_note
from contextwise.evaluation.kernel.subject import positions
from contextwise.experiments.causality import refuse_leak
from contextwise.experiments.folder import PlannedRun
from contextwise.experiments.grid import rate_settings
from contextwise.experiments.run_set import Arm, RunSet, RunSetSettings
from contextwise.experiments.trial.documents import ScoredDocuments
from contextwise.experiments.trial.settings import DEFAULT_TOKENS, TrialSettings
from contextwise.models.tokenizers import corpus_tokenizer_hash
from contextwise.training.recipe import FEWEST_STEPS, Recipe
from contextwise.training.settings import CorpusData

LENGTHS = ("tokens", "steps", "epochs")
UNEQUAL = 0.02
"""Runs that differ by a larger share in what should be equal have a note."""


@dataclass(frozen=True)
class Length:
    """The runs of an arm at one budget."""

    arm: str
    budget: int  # tokens of the reference's runs
    tokens: int
    steps: int
    tokens_per_step: int
    epochs: float  # how many times as many tokens one run reads as the training text has
    tokens_per_parameter: float
    flops: float
    seconds: float  # of the training of one run, from timed steps
    scoring: (
        float  # seconds of the held-out documents: forward passes over windows that overlap by half, 2/3 of training
    )


class Arms:
    """The arms of a trial, as runs.

    Attributes:
        recipes: of each arm, with the length that its file gives.
        text, held_out: the training and the held-out documents of the reference, which all arms read; ``fingerprints``: their
            content hashes.
        inputs: of each arm, the content hashes of all that its runs start from.
        documents: the held-out documents that are scored.
        budgets: tokens of the reference's runs: those given, else the length of its recipe; in whole steps.
    """

    def __init__(self, settings: TrialSettings) -> None:
        self.settings, self.path = settings, settings.folder
        self.corpus = expanded(settings.corpus).absolute()  # a run may start in another folder
        self.as_given = self.runs_of(0, {name: (name, []) for name in settings.arms})
        self.recipes: dict[str, Recipe] = {run.arm: run.recipe() for run in self.as_given.runs}
        self.inputs = {run.arm: dict(run.inputs) for run in self.as_given.runs}
        self._check_comparable()
        reference = self.recipes[settings.baseline]
        assert isinstance(reference.data, CorpusData)
        self.data = reference.data
        self.text = Corpus.open(self.data.corpus, split=self.data.split)
        self.held_out = Corpus.open(self.data.corpus, split=self.data.validation_split)
        self.fingerprints = [self.text.fingerprint, self.held_out.fingerprint]
        self._check_splits()
        trained = self.text if self.data.tokens is None else self.text.first(self.data.tokens)
        self.documents = ScoredDocuments(settings, trained, self.held_out, self.fingerprints)
        given = settings.tokens or [reference.total_tokens]
        if min(given) < reference.tokens_per_step:
            why = f"but one step of {settings.baseline} reads {reference.tokens_per_step:,} tokens, and a run takes hundreds"
            raise ConfigError(Problem(why, "tokens", min(given), "give more tokens"))
        self.budgets = sorted({whole_steps(tokens, reference) for tokens in given})

    def runs_of(self, seed: int, named: dict[str, tuple[str, list[str]]], prefix: str = "") -> RunSet:
        """The run set with one seed of some runs: name -> its arm, and settings beyond the arm's."""
        runs = {}
        for name, (arm, own) in named.items():
            settings = self.settings.arms[arm]
            recipe = None if settings.recipe is None else _with_length(settings.recipe)
            whole = self.settings.recipe if settings.recipe is None else settings.recipe
            training = whole.get("training") or {}
            shared = (self.settings.recipe.get("training") or {}).get("paired_initialization", True)
            further = [] if "paired_initialization" in training else [f"training.paired_initialization={shared}"]
            own_validation = any(setting.startswith("training.evaluate_every=") for setting in settings.settings)
            if not own_validation and not training.get("evaluate_every"):
                further.append("training.evaluation_tokens=0")  # the trial scores whole documents itself
            runs[name] = Arm(settings=[*further, *settings.settings, *own], recipe=recipe)
        values = RunSetSettings(recipe=_with_length(self.settings.recipe), arms=runs, seeds=[seed])
        return RunSet.of(values, self.path, corpus=self.corpus, prefix=prefix)

    def _check_comparable(self) -> None:
        """Refuse arms with another corpus, tokenizer or kind of model than the reference."""
        base, fingerprints = self.settings.baseline, {}
        for name, recipe in self.recipes.items():
            data = recipe.data
            if not isinstance(data, CorpusData) or recipe.objective.kind != "decoder":
                raise ConfigError(
                    f"the arm {name!r} is no causal language model of a corpus; a trial compares their held-out losses"
                )
            if recipe.objective.reads_sentences:
                raise ConfigError(
                    f"the arm {name!r} is a model of single sentences, and a trial scores whole documents; train it by itself, "
                    "score it with a measure of single sentences, and compare the evaluations with --unit byte"
                )
            if recipe.training.patience is not None:
                raise ConfigError(
                    f"the arm {name!r} stops early (training.patience), so its runs are not as long as the trial makes them; "
                    "remove patience"
                )
            if corpus_tokenizer_hash(Path(data.corpus)) != corpus_tokenizer_hash(self.corpus):
                raise ConfigError(
                    f"the arm {name!r} has another tokenizer ({data.corpus}) than the trial's corpus ({self.corpus}), and "
                    "losses per token of two tokenizers do not compare; train runs of each, and compare them in bits per byte: "
                    "contextwise compare RUN RUN --corpus CORPUS --unit byte"
                )
            fingerprints[name] = Corpus.open(data.corpus, split=data.split).fingerprint, data.tokens
        different = [name for name in fingerprints if fingerprints[name] != fingerprints[base]]
        if different:
            raise ConfigError(
                f"the arms {base!r} and {different[0]!r} are trained on different documents; use one corpus"
            )

    def _check_splits(self) -> None:
        """Refuse held-out documents that are the training documents."""
        # A file without splits opens under every name.
        if self.text.split == self.held_out.split or len(set(self.fingerprints)) == 1:
            raise DataError(
                f"the corpus {self.corpus} holds out the documents that the arms are trained on (its split "
                f"{self.held_out.split!r}); name a corpus with a split of its own for each"
            )

    def notes(self, lengths: Sequence[Length]) -> list[str]:
        """What is not equal or not paired between the arms, and what a reader has to know of the documents."""
        base = self.settings.baseline
        reference, notes = self.recipes[base], []
        for name, recipe in self.recipes.items():
            if (recipe.data.context, recipe.tokens_per_step) != (reference.data.context, reference.tokens_per_step):
                notes.append(
                    f"{name} reads other batches than {base} (windows of {recipe.data.context} tokens, "
                    f"{recipe.tokens_per_step} a step): seeds pair less."
                )
        spent = {"flops": "flops", "time": "seconds", "tokens": "tokens"}[self.settings.equal]
        reached = {(each.arm, each.budget): getattr(each, spent) for each in lengths}
        for (name, budget), value in reached.items():
            share = value / reached[base, budget] - 1
            if abs(share) > UNEQUAL:
                notes.append(
                    f"Runs are whole steps, so those of {name} at {count(budget)} tokens have {abs(share):.1%} "
                    f"{'more' if share > 0 else 'less'} {'FLOPs' if spent == 'flops' else spent} than those of {base}; longer "
                    "runs or smaller steps are closer."
                )
        if self.settings.rates and self.settings.rates.share < 1:
            fewest = min(self.short_steps(each) for each in lengths if each.budget == self.budgets[0])
            if fewest < FEWEST_STEPS:
                notes.append(
                    f"The runs of the search over rates have {counted(fewest, 'step')}: the best rates of so short runs "
                    "may not be those of whole ones (rates.share=1 searches with whole runs)."
                )
        times = max(each.epochs for each in lengths)
        if times > 1:
            notes.append(f"The longest runs read the corpus {times:.1f} times.")
        notes += self.documents.notes
        contexts = dict.fromkeys(recipe.data.context for recipe in self.recipes.values())
        return notes + [note for context in contexts if (note := short_documents_note(self.documents.trained, context))]

    @property
    def scored_tokens(self) -> int:
        """Tokens of the held-out documents."""
        return int(self.held_out.lengths[: self.documents.count].sum())

    def lengths(self, step_seconds: dict[str, float]) -> list[Length]:
        """The length of every arm's runs at every budget, so that FLOPs, time (by ``step_seconds``) or tokens are equal."""
        base, equal = self.settings.baseline, self.settings.equal
        seconds = {name: step_seconds[name] / recipe.tokens_per_step for name, recipe in self.recipes.items()}
        per_token = {"flops": self.flops_per_token, "time": seconds, "tokens": dict.fromkeys(self.recipes, 1.0)}[equal]
        result, scored = [], 2 / 3 * self.scored_tokens
        for budget in self.budgets:
            for name, recipe in self.recipes.items():
                tokens = whole_steps(budget * per_token[base] / per_token[name], recipe)
                result.append(
                    Length(
                        arm=name,
                        budget=budget,
                        tokens=tokens,
                        steps=_steps(tokens, recipe),
                        tokens_per_step=recipe.tokens_per_step,
                        epochs=tokens / self.documents.trained.tokens,
                        tokens_per_parameter=tokens / self.planned[name].parameters,
                        flops=tokens * self.flops_per_token[name],
                        seconds=tokens * seconds[name],
                        scoring=scored * seconds[name],
                    )
                )
        return result

    @cached_property
    def planned(self) -> dict[str, PlannedRun]:
        """The cost of a run of each arm with the length of its recipe."""
        return dict(zip(self.recipes, self.as_given.plan, strict=True))

    @cached_property
    def flops_per_token(self) -> dict[str, float]:
        return {name: run.flops / run.tokens for name, run in self.planned.items()}

    def check_causality(self) -> None:
        """Refuse an arm whose predictions see later tokens."""
        for name, recipe in self.recipes.items():
            refuse_leak(recipe, f"the arm {name!r}")

    def check_positions(self, context: int) -> None:
        """Refuse arms that have fewer positions than the windows in which they are scored."""
        from contextwise.training.inputs import TrainingInputs

        for name, recipe in self.recipes.items():
            limit = positions(TrainingInputs.open(recipe).config)
            if limit is not None and context > limit:
                why = f"but the arm {name!r} has only {limit} positions"
                raise ConfigError(Problem(why, "score.context", context, f"give at most {limit}"))

    def run_set(self, lengths: Sequence[Length], seed: int, factors: dict[str, float]) -> RunSet:
        """The runs of one seed, in the order of ``lengths``, with ``factors`` of each arm's learning rates."""
        named = {}
        for length in lengths:
            rates = rate_settings(self.recipes[length.arm], factors.get(length.arm, 1.0))
            named[self.run_name(length)] = length.arm, [*length_settings(length.tokens), *rates]
        return self.runs_of(seed, named)

    def run_name(self, length: Length) -> str:
        """The name of an arm's run in its run set."""
        return f"{length.arm}-{length.budget}" if len(self.budgets) > 1 else length.arm

    def short_steps(self, length: Length) -> int:
        """Optimizer steps of a short run of the search over rates."""
        assert self.settings.rates is not None
        recipe = self.recipes[length.arm]
        return _steps(whole_steps(self.settings.rates.share * length.tokens, recipe), recipe)


def held_fixed(arms: Arms) -> dict[str, Any]:
    """What all arms have in common, for the page."""
    resolved = {name: recipe.resolved() for name, recipe in arms.recipes.items()}
    return {
        f"{section}.{key}": value
        for section in ("data", "model", "training")
        for key, value in resolved[arms.settings.baseline][section].items()
        if all(each[section].get(key) == value for each in resolved.values())
        and value not in (None, [], "")
        and key not in LENGTHS
    }


def total_nats(result: Any) -> tuple[np.ndarray, np.ndarray]:
    """(N,) summed nats, and (N,) scored tokens of each document of an evaluation."""
    table = result.documents
    return table["nats"].to_numpy().astype(np.float64), table["tokens"].to_numpy().astype(np.float64)


def _with_length(recipe: dict[str, Any]) -> dict[str, Any]:
    """A recipe with the default length where it has none."""
    recipe = copy.deepcopy(recipe)
    training = recipe.get("training") or {}
    if isinstance(training, dict) and not any(training.get(name) for name in LENGTHS):
        recipe = with_overrides(recipe, [f"training.tokens={DEFAULT_TOKENS}"])
    return recipe


def length_settings(tokens: int) -> list[str]:
    return [f"training.tokens={tokens}", "training.steps=null", "training.epochs=null"]


def _steps(tokens: int, recipe: Recipe) -> int:
    """Optimizer steps of a run of so many tokens."""
    return recipe.of_length(tokens).total_steps


def whole_steps(tokens: float, recipe: Recipe) -> int:
    """The nearest number of whole steps, in tokens."""
    return max(1, round(tokens / recipe.tokens_per_step)) * recipe.tokens_per_step
