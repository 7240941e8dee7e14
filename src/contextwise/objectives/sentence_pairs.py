"""Pairs of segments for encoders: BERT's next sentence and ALBERT's sentence order (objectives, Section 6.2.2).

1. Every document is read once and cut into sentences (:mod:`contextwise.objectives.splitting`).
2. Consecutive sentences of a document are gathered while they fit into a window with [CLS] and two [SEP]: a chunk, of two
   sentences at least. Of a chunk that does not fit (two long sentences) the longer one is cut: A at its front, B at its end,
   so that the border between them stays. A single sentence left at a document's end, and documents of one sentence, make
   no pair.
3. In each epoch a border between two sentences of the chunk is drawn, uniformly: A stands before it, B behind it. So a
   segment is mostly several sentences, as BERT's are (Devlin et al. 2019, Appendix A.2).
4. Half the pairs stay. Of the others B comes from another document (next sentence: as many whole sentences, from a
   uniformly drawn one on, as there is room for, which is how chunks are gathered), or A and B are swapped (sentence order).
5. ``[CLS] A [SEP] B [SEP]``, filled up with padding, then masked like all masked objectives.

``cross_documents`` and ``separate_documents`` have no effect: a segment is always from one document.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field

from contextwise.base.errors import ConfigError, DataError
from contextwise.objectives.masked import CLS, MASK, SEP, Masking, MaskSettings
from contextwise.objectives.objective import Cut, Examples, generator
from contextwise.objectives.splitting import SentenceIndex
from contextwise.objectives.vocabulary import SpecialToken, Vocabulary

if TYPE_CHECKING:
    from contextwise.data.corpus import Corpus

PAD = SpecialToken("[PAD]", "pad")
SHORTEST = 8  # [CLS], two [SEP], and something to see on both sides


class SentencePairs(MaskSettings):
    """Base class of both objectives; see the module. The pair's label is 0 for a true pair and 1 for a false one."""

    language: str = Field("en", description="whose rules cut the text into sentences, as an ISO 639 code")

    @property
    def special_tokens(self) -> list[SpecialToken]:
        return [MASK, CLS, SEP, PAD]

    @property
    def has_pairs(self) -> bool:
        return True

    def examples(self, corpus: Corpus, cut: Cut, seed: int, vocabulary: Vocabulary) -> PairExamples:
        if cut.context < SHORTEST:
            raise ConfigError(
                f"data.context is {cut.context}, but the objective {self.name!r} needs at least {SHORTEST}"
            )
        ids = vocabulary.ids(self.special_tokens, self.name)
        sentences = Sentences(corpus, vocabulary, self.language, cut.context - 3)
        if len(sentences.chunks) == 0:
            raise DataError(
                f"the objective {self.name!r} needs documents of at least two sentences, but all {len(corpus)} of the split "
                f"{corpus.split!r} of {corpus.path} have one or none; choose the objective 'masked'"
            )
        if self.name == "next_sentence" and len(sentences.documents) < 2:
            raise DataError(
                f"the objective 'next_sentence' takes sentences of other documents, but the split {corpus.split!r} of "
                f"{corpus.path} has one document; choose 'sentence_order'"
            )
        return PairExamples(self, sentences, Masking(self, vocabulary, ids[0]), ids, cut.context, seed)


class NextSentence(SentencePairs):
    """BERT's objective: does B follow A, or is it from another document?"""

    name: Literal["next_sentence"] = "next_sentence"


class SentenceOrder(SentencePairs):
    """ALBERT's objective: are A and B in order, or swapped?"""

    name: Literal["sentence_order"] = "sentence_order"


class Sentences(SentenceIndex):
    """The sentences of a corpus, and its chunks for windows with room for ``room`` tokens.

    Attributes:
        chunks: int64, (chunks, 3): document, first sentence, and the sentence behind the last.
        documents: int64, documents that have a sentence.
        skipped: documents that make no pair because they have one sentence or none.
    """

    def __init__(self, corpus: Corpus, vocabulary: Vocabulary, language: str, room: int) -> None:
        super().__init__(corpus, vocabulary, language)
        chunks = [
            (document, a, b)
            for document in range(len(corpus))
            for a, b in _chunks(self.of(document).tolist(), room)
        ]
        self.chunks = np.array(chunks, dtype=np.int64).reshape(-1, 3)
        counts = np.diff(self.starts)
        self.documents = np.flatnonzero(counts >= 1)
        self.skipped = int((counts < 2).sum())


class PairExamples(Examples):
    """Masked pairs, drawn anew in each epoch (once, if ``static``)."""

    def __init__(
        self,
        settings: SentencePairs,
        sentences: Sentences,
        masking: Masking,
        ids: list[int],
        context: int,
        seed: int,
    ) -> None:
        self.settings, self.sentences, self.masking = settings, sentences, masking
        _, self.cls, self.sep, self.pad = ids
        self.context, self.seed = context, seed

    def count(self, epoch: int) -> int:
        return len(self.sentences.chunks)

    def pair(self, index: int, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray, int]:
        """Tokens of A and B, and the pair's label."""
        sentences, room = self.sentences, self.context - 3
        document, first, last = self.sentences.chunks[index].tolist()
        border = int(draw.integers(first + 1, last))
        a, b = sentences.read(document, first, border), sentences.read(document, border, last)
        false = int(draw.random() < 0.5)
        if false and self.settings.name == "next_sentence":
            a, _ = _cut(a, b, room)
            b = self._elsewhere(document, room - len(a), draw)
        a, b = _cut(a, b, room)
        return (b, a, 1) if false and self.settings.name == "sentence_order" else (a, b, false)

    def _elsewhere(self, document: int, room: int, draw: np.random.Generator) -> np.ndarray:
        """Sentences of another document, from a drawn one on, while they fit; at least one."""
        others = self.sentences.documents
        own = np.searchsorted(others, document)
        other = int(others[(own + 1 + draw.integers(len(others) - 1)) % len(others)])
        borders = self.sentences.of(other)
        first = int(draw.integers(len(borders) - 1))
        last = int(np.searchsorted(borders, borders[first] + room, side="right")) - 1
        return self.sentences.read(other, first, max(last, first + 1))

    def arrays(self, epoch: int, index: int) -> dict[str, Any]:
        draw = generator(self.seed, 0 if self.settings.static else epoch, index, self.settings.name)
        a, b, label = self.pair(index, draw)
        ids = np.concatenate([[self.cls], a, [self.sep], b, [self.sep]])
        positions = np.arange(self.context)
        padding = np.full(self.context - len(ids), self.pad)
        inputs, labels = self.masking.apply(np.concatenate([ids, padding]), draw)
        return {
            "input_ids": inputs,
            "labels": labels,
            "token_type_ids": ((positions >= len(a) + 2) & (positions < len(ids))).astype(np.int64),
            "attention_mask": (positions < len(ids)).astype(np.int64),
            "pair_label": label,
            "window": index,
        }


def _cut(a: np.ndarray, b: np.ndarray, room: int) -> tuple[np.ndarray, np.ndarray]:
    """A and B cut to ``room`` tokens together: the longer one first, A at its front and B at its end."""
    keep_a = min(len(a), max(room - len(b), room - room // 2))
    return a[len(a) - keep_a :], b[: room - keep_a]


def _chunks(borders: list[int], room: int) -> list[tuple[int, int]]:
    """Runs of sentences (first, behind the last) that fit ``room`` tokens, of two sentences at least."""
    chunks, first, count = [], 0, len(borders) - 1
    while first + 1 < count:
        last = first + 2
        while last < count and borders[last + 1] - borders[first] <= room:
            last += 1
        chunks.append((first, last))
        first = last
    return chunks
