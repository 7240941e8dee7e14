"""CUE's training runs: templates, overrides, and ``@name`` for the folder of another run that a run starts from.

``joint`` may be ``[joint, model.cue.sentence_encoder=@sentence LM]``: the template of that name, with settings as on the
command line.
"""

import re
from abc import abstractmethod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import Field, model_validator

from contextwise.data import Corpus
from contextwise.measures import Subject
from contextwise.runset import Arm, RunSet, RunSetSettings
from contextwise.settings import ConfigError, Seeds, with_overrides
from contextwise.training import CorpusData
from contextwise_papers.claims import check_names
from contextwise_papers.cue.contexts import ContextTexts, Further, encoded_sets, encoder_config, trained_types
from contextwise_papers.cue.english import column_texts
from contextwise_papers.cue.sentences.running import language_of
from contextwise_papers.item import ItemMeasure
from contextwise_papers.objectives.text import SentenceIndex

REFERENCE = re.compile(r"@([^@]+)$")


class CueRuns(ItemMeasure):
    """A measure of CUE's runs: sentence language models, joint training and adaptation, each from the runs before it."""

    name: str = Field(description="prefix of the runs' folders; items with the same name share runs")
    corpus: str = Field(default="corpora/news", description="a prepared corpus with metadata columns")
    vocabulary: int = Field(default=8192, ge=2, description="size, for --dry-run before the corpus exists")
    split: str = "test"
    templates: dict[str, dict[str, Any]] = Field(description="recipes, whose objective is `sentence` if they name none")
    runs: dict[str, list[str]]
    seeds: Seeds = Field(default=[0], min_length=1, description="seeds of the runs")
    columns: list[str] | None = Field(
        default=None,
        min_length=1,
        description="metadata columns of another corpus, in every template that has contexts",
    )

    @property
    @abstractmethod
    def wanted(self) -> list[str]:
        """Names of the runs that are measured."""

    @property
    def needed_corpus(self) -> str | None:
        return self.corpus

    @property
    def vocab_size(self) -> int:
        return self.vocabulary

    @model_validator(mode="after")
    def _templates_known(self) -> "CueRuns":
        named = {f"the run {run!r}": settings[:1] or [""] for run, settings in self.runs.items()}
        check_names(named, self.templates, "the template ")
        return self

    def run_set(self, folder: Path) -> RunSet:
        """The measured runs, each after its parents."""
        arms = {
            run: Arm(recipe=self._template(template), settings=settings)
            for run, (template, *settings) in self.runs.items()
        }
        settings, corpus = RunSetSettings(arms=arms, seeds=self.seeds), Path(self.corpus)
        return RunSet.of(settings, folder, corpus=corpus, prefix=self.name, wanted=self.wanted)

    def _template(self, name: str) -> dict[str, Any]:
        """A template, with the columns of this corpus."""
        template = {"objective": "sentence", **self.templates[name]}
        if self.columns is None or not template.get("data", {}).get("contexts"):
            return template
        return with_overrides(template, {"data.contexts.columns": self.columns})

    def prepared(self, folder: Path) -> Path:
        """The folder of the corpus, which must exist and have the columns that the runs and rows read."""
        corpus = self.held_out()
        for name in self._read_columns(folder):
            column_texts(corpus, name)  # says which there are
        return corpus.path

    def _read_columns(self, folder: Path) -> list[str]:
        """The metadata columns that are read, each once."""
        for name, (_, *settings) in self.runs.items():
            own = [each for each in settings if each.startswith("data.contexts.columns=[") and not each.endswith("[]")]
            if self.columns is not None and own:
                raise ConfigError(f"columns is given, but the run {name!r} has its own ({own[0]}); change runs instead")
        data = [recipe.data for recipe in self.recipes(folder)]
        contexts = [each.contexts for each in data if isinstance(each, CorpusData) and each.contexts is not None]
        return list(dict.fromkeys(name for each in contexts for name in each.columns))

    def held_out(self) -> Corpus:
        """The documents that are scored."""
        return Corpus.open(self.corpus, split=self.split)


class OneRun(CueRuns):
    """A run with contexts and its parents, with each seed: CUE's Figures 3 and 6, and Section 7."""

    run: str = Field(description="the run to measure")

    @model_validator(mode="after")
    def _known(self) -> "OneRun":
        check_names({"the item": self.wanted}, self.runs, "the run ")
        return self

    @property
    def wanted(self) -> list[str]:
        return [self.run]


class HeldOut(NamedTuple):
    """Sentences, their documents (N,), and the contexts that a CUE model was trained with: names, texts, and as tensors."""

    types: list[str]
    articles: np.ndarray
    texts: list[list[str | None]]
    batch: Further


def sentences_of(corpus: Corpus, run: Path) -> tuple[Subject, SentenceIndex]:
    """A run's model, and the sentences of a split, cut as for its training."""
    subject = Subject(run, dtype="float32")
    subject.check_corpus(corpus)
    return subject, SentenceIndex(corpus, corpus.tokenizer(), language_of(subject))


def given_contexts(subject: Subject, sentences: SentenceIndex, numbers: np.ndarray) -> HeldOut:
    """The contexts of some sentences, by number."""
    encoder_config(subject.model, subject.source)  # refuses a model without one
    known = ContextTexts(sentences, trained_types(subject.config))
    texts = [known.of(number) for number in numbers.tolist()]
    sets = encoded_sets(subject.model, subject.source, texts, sentences.corpus)
    articles = np.searchsorted(sentences.starts, numbers, side="right") - 1
    return HeldOut(known.types, articles, texts, sets.on(subject.model))


def some(numbers: np.ndarray, count: int) -> np.ndarray:
    """At most ``count`` of the numbers, drawn without replacement and with a fixed seed, in order."""
    if len(numbers) <= count:
        return numbers
    return np.sort(np.random.default_rng(0).choice(numbers, count, replace=False))
