"""Scoring of separate sentences, each with its contexts if the model accepts contexts.

1. Documents are cut into the sentences that the objective ``sentence`` trains on.
2. Each sentence is a sequence of its own: ``[end-of-text] w1 ... wn`` is read and ``w1 ... wn [end-of-text]`` predicted. Its
   end is a target like any other: without it, a model could lower its loss by never ending a sentence.
3. A CUE model reads the set of contexts along with each sentence: values of the document's metadata columns, and the
   sentence before it. Their vectors come from the cache on disk (``CORPUS/encoded``).
4. A sentence with more targets than the model has positions is scored in overlapping windows, like a long document, so
   that models with different positions are compared on the same targets.

Intervals and differences are drawn over documents (articles): the tables have a row for each article, as those of
:mod:`contextwise.evaluation.measures.loss`, so ``contextwise compare`` pairs sentence models and CUE models.

Legend of shapes: N targets in all sentences, their ends included; S sentences; A articles.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from transformers import PreTrainedModel

from contextwise.base.errors import ConfigError, DataError
from contextwise.data.corpus import Corpus
from contextwise.evaluation.kernel.subject import DEFAULT_BATCH_TOKENS, positions
from contextwise.evaluation.measures.sentences.conditioning import Texts
from contextwise.evaluation.scoring.windows import Scores, score_documents
from contextwise.objectives.objective import generator
from contextwise.objectives.text import SentenceIndex
from contextwise.objectives.vocabulary import Vocabulary

Further = Callable[[np.ndarray], dict[str, torch.Tensor]]
"""Maps the numbers of a batch's sentences (B,) to the further inputs of a CUE model."""


@dataclass(frozen=True)
class Rows:
    """Sentences in the form of the documents that :func:`~evaluation.scoring.windows.score_documents` scores.

    Attributes:
        tokens: tokens of each sentence, without its end.
        end_of_text: id of the token that begins and ends each.
    """

    tokens: Sequence[np.ndarray]
    end_of_text: int

    @cached_property
    def lengths(self) -> np.ndarray:
        """(S,) number of targets of each sentence: its tokens and its end."""
        return np.array([len(tokens) + 1 for tokens in self.tokens], dtype=np.int64)

    def document(self, index: int, /) -> np.ndarray:
        """Token ids of the targets of a sentence."""
        return np.append(self.tokens[index], self.end_of_text)

    def ends(self) -> np.ndarray:
        """(N,) bool: whether each target is the end of a sentence."""
        ends = np.zeros(int(self.lengths.sum()), dtype=bool)
        ends[np.cumsum(self.lengths) - 1] = True
        return ends

    def sums(self, values_N: np.ndarray) -> np.ndarray:
        """(S,) float64: the sum over each sentence's targets."""
        sentences = np.repeat(np.arange(len(self.tokens)), self.lengths)
        return np.bincount(sentences, weights=values_N, minlength=len(self.tokens))


def score_rows(
    model: PreTrainedModel,
    rows: Rows,
    further: Further | None = None,
    *,
    batch_tokens: int | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Scores:
    """Score every target of the sentences; ``nats`` (N,) are in the order of the sentences.

    Args:
        model: a causal language model, or a CUE model.
        further: returns the contexts for a CUE model, such as
            :meth:`~evaluation.sentences.conditioning.ContextSets.batch`; the empty set of contexts if not given.
        batch_tokens: positions of a batch, padding included; 16384 if not given.

    Raises:
        ConfigError: ``batch_tokens`` is out of range.
        DataError: a token id is beyond the model's vocabulary.
        CheckpointError: a loss is not finite.
        Interrupted: the process received a request to stop.
    """
    window = window_of(model, rows)
    return score_documents(
        model,
        rows,
        window,
        max(1, window // 2),
        batch_tokens=DEFAULT_BATCH_TOKENS if batch_tokens is None else batch_tokens,
        on_progress=on_progress,
        further=further,
    )


def window_of(model: PreTrainedModel, rows: Rows) -> int:
    """Window for scoring: the length of the longest sentence, limited to the model's positions."""
    return min(int(rows.lengths.max()), positions(model.config) or sys.maxsize)


class Sentences:
    """Sentences of the first documents of a corpus, in order.

    Args:
        limit_documents: number of documents; all if not given.
        language: ISO 639 code of the language whose rules split the text.

    Attributes:
        index: the sentences of the whole split.
        rows: the sentences to score.
        articles: (S,) document of each sentence.

    Raises:
        ConfigError: the limit is out of range, or the corpus comes without a tokenizer or end-of-text.
        DataError: the documents hold no sentence.
    """

    def __init__(self, corpus: Corpus, limit_documents: int | None = None, language: str = "en") -> None:
        if limit_documents is not None and limit_documents < 1:
            raise ConfigError(f"--limit-documents is {limit_documents}; it must be at least 1")
        vocabulary = Vocabulary(corpus.tokenizer(), corpus.end_of_text)
        self.index = SentenceIndex(corpus, vocabulary, language)
        self.documents = min(len(corpus), limit_documents or len(corpus))
        counts = np.diff(self.index.starts)[: self.documents]
        self.articles = np.repeat(np.arange(self.documents), counts)
        if not len(self.articles):
            raise DataError(
                f"the split {corpus.split!r} of {corpus.path} has no sentence to score: the first {self.documents:,} of its "
                "documents are empty or white space"
            )
        # Number of each sentence within its document.
        self.numbers = np.arange(len(self.articles)) - np.repeat(np.cumsum(counts) - counts, counts)
        indices = zip(self.articles.tolist(), self.numbers.tolist(), strict=True)
        tokens = [self.index.read(document, number, number + 1) for document, number in indices]
        self.rows = Rows(tokens, vocabulary.end("sentence"))

    def __len__(self) -> int:
        return len(self.articles)

    def article_sums(self, values_N: np.ndarray) -> np.ndarray:
        """(A,) float64: the sum over the targets of each article."""
        return np.bincount(self.articles, weights=self.rows.sums(values_N), minlength=self.documents)

    def positions(self) -> np.ndarray:
        """(N,) int32: the position of each target in its sentence, from 0."""
        lengths = self.rows.lengths
        return (np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)).astype(np.int32)

    def of_targets(self, values_S: np.ndarray) -> np.ndarray:
        """(N,) int32: the values of the sentences, repeated for each of their targets."""
        return np.repeat(values_S, self.rows.lengths).astype(np.int32)


def dropped(sets: Sequence[Texts], probability: float, seed: int = 0) -> list[Texts]:
    """Drop each context with a probability; the draws of a sentence depend only on (seed, its number).

    Raises:
        ConfigError: the probability is not between 0 and 1.
    """
    if not 0 <= probability <= 1:
        raise ConfigError(f"--drop-contexts is {probability}; it must be between 0 and 1")
    results: list[Texts] = []
    for number, texts in enumerate(sets):
        draws = generator(seed, 0, number, "drop_contexts").random(len(texts))
        results.append(
            [None if draw < probability else text for text, draw in zip(texts, draws, strict=True)]
        )
    return results
