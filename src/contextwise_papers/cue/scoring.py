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

Legend of shapes: N targets in all sentences, their ends included; S sentences, B of a batch; A articles; K contexts of a set;
C channels of the frozen text encoder; P of a proxy's code.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedConfig, PreTrainedModel

from contextwise.base.errors import CheckpointError, DataError
from contextwise.data.corpus import Corpus
from contextwise.evaluation.kernel.subject import DEFAULT_BATCH_TOKENS, Subject, positions
from contextwise.evaluation.scoring.scores import Scores
from contextwise.evaluation.scoring.windows import score_documents
from contextwise.models.losses import IGNORED
from contextwise.objectives.objective import generator
from contextwise.objectives.vocabulary import Vocabulary
from contextwise_papers.cue import CueContextConfig, CueContextEncoder
from contextwise_papers.cue.encoding import TextEncoder, check_encoder
from contextwise_papers.cue.settings import PREVIOUS, ContextSettings
from contextwise_papers.objectives.text import SentenceIndex

Texts = Sequence[str | None]
"""The texts of one sentence's contexts, one for each type; None where a context is missing."""
Further = Callable[[np.ndarray], dict[str, torch.Tensor]]
"""Maps the numbers of a batch's sentences (B,) to the further inputs of a CUE model."""


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

    ``further`` returns the contexts for a CUE model (:meth:`ContextSets.batch`); without it, it has the empty set of contexts.
    ``options``, and errors, are those of :func:`~contextwise.evaluation.scoring.windows.score_documents`.
    """
    window = window_of(model, rows)
    options |= {"batch_tokens": batch_tokens or DEFAULT_BATCH_TOKENS, "further": further}
    return score_documents(model, rows, window, max(1, window // 2), **options)


def window_of(model: PreTrainedModel, rows: Rows) -> int:
    """Window for scoring: the length of the longest sentence, limited to the model's positions."""
    return min(int(rows.lengths.max()), positions(model.config) or sys.maxsize)


class Sentences:
    """Sentences of the first documents of a corpus, in order.

    Args:
        limit: number of documents; all if not given.
        language: ISO 639 code of the language whose rules split the text.

    Attributes:
        index: the sentences of the whole split.
        rows: the sentences to score.
        articles: (S,) document of each sentence.
        numbers: (S,) number of each sentence within its document.
    """

    def __init__(self, corpus: Corpus, limit: int | None = None, language: str = "en") -> None:
        vocabulary = Vocabulary(corpus.tokenizer(), corpus.end_of_text)
        self.index = SentenceIndex(corpus, vocabulary, language)
        self.documents = min(len(corpus), limit or len(corpus))
        counts = np.diff(self.index.starts)[: self.documents]
        self.articles = np.repeat(np.arange(self.documents), counts)
        if not len(self.articles):
            raise DataError(
                f"the split {corpus.split!r} of {corpus.path} has no sentence to score: the first {self.documents:,} of its "
                "documents are empty or white space"
            )
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


def language_of(subject: Subject) -> str:
    """Language whose rules split the text of a run's sentences; English for a model that is no run."""
    objective = subject.run.recipe().get("objective", {}) if subject.run else {}
    return str(objective.get("language", "en"))


# Contexts


def trained_types(config: PreTrainedConfig) -> list[str]:
    """Names of the contexts that a CUE model's context encoder, or a context encoder alone, was last trained with."""
    encoder = _context_config(config)
    return ContextSettings(**encoder.contexts).types if encoder is not None and encoder.contexts else []


def _context_config(config: Any) -> CueContextConfig | None:
    return config if isinstance(config, CueContextConfig) else getattr(config, "context_encoder", None)


def settings_of(types: Sequence[str]) -> ContextSettings:
    """The settings whose contexts have these names."""
    columns = [name for name in types if name != PREVIOUS]
    return ContextSettings(columns=columns, previous_sentence=PREVIOUS in types)


def dropped(sets: Sequence[Texts], probability: float, seed: int = 0) -> list[Texts]:
    """Drop each context with a probability; the draws of a sentence depend only on (seed, its number)."""
    results: list[Texts] = []
    for number, texts in enumerate(sets):
        draws = generator(seed, 0, number, "drop_contexts").random(len(texts))
        kept = zip(texts, draws >= probability, strict=True)
        results.append([text if keep else None for text, keep in kept])
    return results


def open_text_encoder(model: PreTrainedModel, source: str) -> TextEncoder:
    """The encoder of the vectors that a context encoder was trained on, or which is a part of it, on the model's device."""
    config = _context_config(model.config)
    if config is None:
        raise CheckpointError(f"{source} has no context encoder, so it takes no contexts")
    name, pooling, tokens = (config.text_encoder[key] for key in ("name", "pooling", "max_tokens"))
    part: Any = model if isinstance(model, CueContextEncoder) else model.context_encoder
    encoder = TextEncoder.open(name, pooling, max_tokens=tokens, device=model.device, model=part.text_model)
    check_encoder(encoder, config.text_encoder)
    return encoder


class ContextSets:
    """The encoded contexts of many sentences, in the batches of the scoring pass.

    Args:
        sets: for each sentence the texts of its contexts.
        vectors: gives the vectors (N, C) of N different texts.
        model: its device and number format are those of the batches.

    ``texts`` are all different texts.
    """

    def __init__(
        self, sets: Sequence[Texts], vectors: Callable[[list[str]], torch.Tensor], model: PreTrainedModel
    ) -> None:
        self.texts = list(dict.fromkeys(text for texts in sets for text in texts if text is not None))
        rows: dict[str | None, int] = {text: i for i, text in enumerate(self.texts)} | {None: -1}
        self._vectors_NC = vectors(self.texts) if self.texts else None
        self._rows_SK = np.array([[rows[text] for text in texts] for texts in sets], dtype=np.int64)
        self._device, self._dtype = model.device, model.dtype

    def batch(self, sentences: np.ndarray) -> dict[str, torch.Tensor]:
        """``contexts`` (B, K, C), zero where one is missing, and ``context_mask`` (B, K); empty where no text is known."""
        if self._vectors_NC is None:
            return {}
        rows_BK = torch.from_numpy(self._rows_SK[sentences])
        present_BK = rows_BK >= 0
        contexts_BKC = self._vectors_NC[rows_BK.clamp(min=0)] * present_BK[..., None]
        mask_BK = present_BK.to(self._device)
        return {"contexts": contexts_BKC.to(self._device, self._dtype), "context_mask": mask_BK}


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
