"""Scoring of separate sentences, those of the objective ``sentence``, each with its contexts if the model accepts contexts.

``[end-of-text] w1 ... wn`` is read and ``w1 ... wn [end-of-text]`` predicted: without its end as a target, a model could lower
its loss by never ending a sentence. A sentence with more targets than the model has positions is scored in overlapping windows,
so that models with different positions are compared on the same targets. Intervals and differences are drawn over articles.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from contextwise.base.errors import DataError
from contextwise.data.corpus import Corpus
from contextwise.evaluation.kernel.subject import DEFAULT_BATCH_TOKENS, Subject, positions
from contextwise.evaluation.scoring.scores import Scores, numbered
from contextwise.evaluation.scoring.windows import score_documents
from contextwise.models.losses import IGNORED
from contextwise.objectives.objective import generator
from contextwise.objectives.vocabulary import Vocabulary
from contextwise_papers.cue.contexts import Further, Texts
from contextwise_papers.objectives.text import SentenceIndex


@dataclass(frozen=True)
class Rows:
    """Sentences (tokens without their ends) in the form of documents, for :func:`score_documents`."""

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
    **options: Any,
) -> Scores:
    """Score every target of the sentences; ``nats`` (N,) are in the order of the sentences.

    Without ``further`` inputs (:meth:`.ContextSets.on`) a CUE model has the empty set of contexts. ``options`` are those of
    :func:`~contextwise.evaluation.scoring.windows.score_documents`.
    """
    window = window_of(model, rows)
    options |= {"batch_tokens": batch_tokens or DEFAULT_BATCH_TOKENS, "further": further}
    return score_documents(model, rows, window, max(1, window // 2), **options)


def window_of(model: PreTrainedModel, rows: Rows) -> int:
    """Window for scoring: the length of the longest sentence, limited to the model's positions."""
    return min(int(rows.lengths.max()), positions(model.config) or sys.maxsize)


class Sentences:
    """Sentences of the first documents of a corpus, in order: tokens (``rows``), document and number in it, (S,) each.

    ``index`` has the sentences of the whole split.
    """

    def __init__(self, corpus: Corpus, limit: int | None = None, language: str = "en") -> None:
        vocabulary = Vocabulary(corpus.tokenizer(), corpus.end_of_text)
        self.index = SentenceIndex(corpus, vocabulary.tokenizer, language)
        self.documents = min(len(corpus), limit or len(corpus))
        counts = np.diff(self.index.starts)[: self.documents]
        self.articles = np.repeat(np.arange(self.documents), counts)
        if not len(self.articles):
            raise DataError(
                f"the split {corpus.split!r} of {corpus.path} has no sentence to score: the first {self.documents:,} of its "
                "documents are empty or white space"
            )
        self.numbers = numbered(counts)
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
        return numbered(self.rows.lengths).astype(np.int32)

    def of_targets(self, values_S: np.ndarray) -> np.ndarray:
        """(N,) int32: the values of the sentences, repeated for each of their targets."""
        return np.repeat(values_S, self.rows.lengths).astype(np.int32)


def language_of(subject: Subject) -> str:
    """Language whose rules split the text of a run's sentences; English for a model that is no run."""
    objective = subject.run.recipe().get("objective", {}) if subject.run else {}
    return str(objective.get("language", "en"))


def dropped(sets: Sequence[Texts], probability: float, seed: int = 0) -> list[Texts]:
    """Drop each context with a probability; the draws of a sentence depend only on (seed, its number)."""
    results: list[Texts] = []
    for number, texts in enumerate(sets):
        draws = generator(seed, 0, number, "drop_contexts").random(len(texts))
        kept = zip(texts, draws >= probability, strict=True)
        results.append([text if keep else None for text, keep in kept])
    return results


def proxies(sentences: Sequence[np.ndarray], model: Any, seed: int = 0) -> Further:
    """The proxy of each sentence, made of the words that are to be predicted: an oracle (CUE, Table 5, row 2).

    Returns a function that gives ``proxy_targets`` (B, T) and ``proxy_noise`` (B, P), standard normal, of a batch; the noise
    depends on (seed, number of the sentence).
    """
    width = model.config.proxy.autoencoder.code_width

    def batch(numbers: np.ndarray) -> dict[str, torch.Tensor]:
        tokens = [torch.from_numpy(sentences[number].astype(np.int64)) for number in numbers]
        draws = [generator(seed, 0, int(number), "proxy_noise") for number in numbers]
        noise = np.stack([draw.standard_normal(width, dtype=np.float32) for draw in draws])
        targets = pad_sequence(tokens, batch_first=True, padding_value=IGNORED)
        noise_BP = torch.from_numpy(noise).to(model.device)
        return {"proxy_targets": targets.to(model.device), "proxy_noise": noise_BP}

    return batch
