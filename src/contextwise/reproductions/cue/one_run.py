"""Items that measure one run: CUE's Figures 3 and 6, and Section 7.

Legend of shapes: N sentences, K contexts of a set.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import Field, model_validator

from contextwise.base.errors import ConfigError
from contextwise.data import Corpus
from contextwise.evaluation.kernel import Subject
from contextwise.evaluation.scoring.sentences import (
    ContextSets,
    language_of,
    open_text_encoder,
    settings_of,
    trained_types,
)
from contextwise.models.cue.encoding import EncodedTexts
from contextwise.objectives.sentence import ContextTexts
from contextwise.objectives.text import SentenceIndex
from contextwise.objectives.vocabulary import Vocabulary
from contextwise.reproductions.cue.runs import CueRuns


class OneRun(CueRuns):
    """A run with contexts, and its parents."""

    run: str = Field(description="the run to measure")
    seed: int = 0

    @model_validator(mode="after")
    def _known(self) -> "OneRun":
        for run in self.wanted:
            if run not in self.runs:
                raise ConfigError(f"the run {run!r} is none of {', '.join(self.runs)}")
        return self

    @property
    def wanted(self) -> list[str]:
        return [self.run]

    @property
    def every_seed(self) -> list[int]:
        return [self.seed]


@dataclass(frozen=True)
class HeldOut:
    """Sentences with the contexts that a CUE model was trained with.

    Attributes:
        types: names of the contexts.
        articles: (N,) document of each sentence.
        texts: for each sentence the texts of its K contexts; None for a missing one.
        vectors: the same as tensors, a batch at a time.
    """

    types: list[str]
    articles: np.ndarray
    texts: list[list[str | None]]
    vectors: ContextSets


def sentences_of(corpus: Corpus, subject: Subject) -> SentenceIndex:
    """The sentences of a split, cut as for the training of a run."""
    return SentenceIndex(corpus, Vocabulary(corpus.tokenizer(), corpus.end_of_text), language_of(subject))


def given_contexts(subject: Subject, sentences: SentenceIndex, numbers: np.ndarray) -> HeldOut:
    """The contexts of some sentences, by number.

    Raises:
        CheckpointError: the model takes no contexts.
    """
    model = subject.model
    encoder = open_text_encoder(model, subject.source)
    types = trained_types(model.config)
    known = ContextTexts(sentences, settings_of(types))
    texts = [known.of(number) for number in numbers.tolist()]
    encoded = EncodedTexts(encoder, Path(sentences.corpus.path) / "encoded")
    articles = np.searchsorted(sentences.starts, numbers, side="right") - 1
    return HeldOut(known.types, articles, texts, ContextSets(texts, encoded.vectors, model))


def some(numbers: np.ndarray, count: int) -> np.ndarray:
    """At most so many of the numbers, drawn without replacement and with a fixed seed, in order."""
    if len(numbers) <= count:
        return numbers
    return np.sort(np.random.default_rng(0).choice(numbers, count, replace=False))
