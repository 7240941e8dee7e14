"""Objectives of encoders (objectives, Section 6.2.2): masked tokens, next sentence and sentence order.

The pairs of the last two (BERT's next sentence, ALBERT's sentence order) are made in these steps:

1. Every document is read once and cut into sentences (:mod:`contextwise.objectives.text`).
2. Consecutive sentences of a document are gathered while they fit into a window with [CLS] and two [SEP]: a chunk, of at
   least two sentences. If a chunk does not fit (two long sentences), the longer one is cut: A at its front, B at its end,
   so that the border between them stays. A single sentence left at a document's end, and documents of one sentence, make
   no pair.
3. In each epoch a border between two sentences of the chunk is drawn, uniformly: A is before it, B after it. So a
   segment is mostly several sentences, as BERT's are (Devlin et al. 2019, Appendix A.2).
4. Half the pairs stay. In the others B comes from another document (next sentence: as many whole sentences as there is
   room for, starting at a uniformly drawn one, which is how chunks are gathered), or A and B are swapped (sentence order).
5. ``[CLS] A [SEP] B [SEP]``, padded, then masked like all masked objectives.

For pairs ``cross_documents`` and ``separate_documents`` have no effect: a segment is always from one document.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from contextwise.base.errors import ConfigError, DataError
from contextwise.objectives.kind import Kind
from contextwise.objectives.objective import (
    NO_LOSS,
    Cut,
    Examples,
    SingleObjective,
    WindowExamples,
    generator,
)
from contextwise.objectives.text import SentenceIndex, TokenText
from contextwise.objectives.vocabulary import SpecialToken, Vocabulary

if TYPE_CHECKING:
    from contextwise.data.corpus import Corpus
    from contextwise.data.windows import Windows

MASK, CLS, SEP = SpecialToken("[MASK]", "mask"), SpecialToken("[CLS]", "cls"), SpecialToken("[SEP]", "sep")
PAD = SpecialToken("[PAD]", "pad")
SHORTEST_PAIR = 8  # [CLS], two [SEP], and something to see on both sides


class MaskSettings(SingleObjective):
    """Settings of the masked objectives: how tokens are chosen and masked (Devlin et al. 2019, Section 3.1).

    Each token (with ``whole_words`` each word) is chosen independently with probability ``rate``, as in RoBERTa and
    transformers. BERT's code shuffles a sequence's positions and takes the first round(rate * length): the same share, but a
    fixed number for each sequence, so that its positions depend on each other; its paper says only "15% of all WordPiece tokens
    in each sequence at random". Of the chosen tokens ``mask_share`` become the mask token, ``random_share`` a token drawn
    uniformly from all that are not special, and the rest stay; each token of a chosen word is treated separately, as in
    BERT's code. Special tokens are never chosen. A short window may have no target.
    """

    kind: ClassVar[Kind] = "encoder"
    rate: float = Field(0.15, gt=0, lt=1, description="share of the tokens that are targets")
    mask_share: float = Field(0.8, ge=0, le=1, description="of the targets: replaced by the mask token")
    random_share: float = Field(0.1, ge=0, le=1, description="of the targets: replaced by a random token")
    whole_words: bool = Field(False, description="choose words, not tokens")
    static: bool = Field(False, description="the same draws in every epoch, as BERT's prepared data had")

    @model_validator(mode="after")
    def _shares(self) -> MaskSettings:
        if self.mask_share + self.random_share > 1 + 1e-9:
            raise ConfigError(
                f"mask_share is {self.mask_share} and random_share {self.random_share}, more than 1 together; "
                "lower one of them"
            )
        return self


class Masked(MaskSettings):
    """Windows of the stream between [CLS] and [SEP]; every token of the stream is in one window per epoch.

    With ``separate_documents`` the positions restart at each document; [CLS] belongs to the window's first document and
    [SEP] to its last.
    """

    name: Literal["masked"] = "masked"
    special_tokens: ClassVar[list[SpecialToken]] = [MASK, CLS, SEP]

    def examples(self, corpus: Corpus, cut: Cut, seed: int, vocabulary: Vocabulary) -> Examples:
        if cut.context < 3:
            raise ConfigError(
                f"data.context is {cut.context}, but the objective 'masked' needs at least 3: [CLS], a token and [SEP]"
            )
        mask, cls, sep = vocabulary.ids(self.special_tokens, self.name)
        masking = Masking(self, vocabulary, mask)
        return MaskedExamples(cut.windows(corpus, cut.context - 2, vocabulary), masking, cls, sep, seed)


class Masking:
    """Chooses and masks tokens."""

    def __init__(self, settings: MaskSettings, vocabulary: Vocabulary, mask: int) -> None:
        self.settings, self.mask = settings, mask
        self.special, self.ordinary = vocabulary.special, vocabulary.ordinary
        tokenizer = vocabulary.tokenizer if settings.whole_words else None
        self.text = TokenText(tokenizer) if tokenizer is not None else None

    def apply(self, ids: np.ndarray, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Input and labels, (tokens,) each, of a sequence of token ids."""
        settings, n = self.settings, len(ids)
        if self.text is None:
            chosen = draw.random(n) < settings.rate
        else:
            words = self.text.words(ids)
            chosen = (draw.random(int(words[-1]) + 1) < settings.rate)[words]
        chosen &= ~np.isin(ids, self.special)
        treatment = draw.random(n)
        random = self.ordinary[draw.integers(len(self.ordinary), size=n)]
        hidden = chosen & (treatment < settings.mask_share)
        replaced = chosen & ~hidden & (treatment < settings.mask_share + settings.random_share)
        inputs = np.where(hidden, self.mask, np.where(replaced, random, ids))
        return inputs, np.where(chosen, ids, NO_LOSS)


class MaskedExamples(WindowExamples):
    """Masked windows."""

    def __init__(self, windows: Windows, masking: Masking, cls: int, sep: int, seed: int) -> None:
        super().__init__(windows, seed)
        self.masking, self.cls, self.sep = masking, cls, sep

    def arrays(self, epoch: int, index: int) -> dict[str, Any]:
        item = self.window(index)
        ids = np.concatenate([[self.cls], item["input_ids"], [self.sep]])
        draw = generator(self.seed, 0 if self.masking.settings.static else epoch, index, "masked")
        inputs, labels = self.masking.apply(ids, draw)
        example = {"input_ids": inputs, "labels": labels, "window": item["window"]}
        if "position_ids" in item:
            positions = item["position_ids"]
            first = np.cumsum(positions == 0) == 1
            last = positions[-1] + first[-1] + 1
            example["position_ids"] = np.concatenate([[0], positions + first, [last]])
        return example


class SentencePairs(MaskSettings):
    """Base class of the objectives of pairs; see the module. The label is 0 for a true pair and 1 for a false one."""

    special_tokens: ClassVar[list[SpecialToken]] = [MASK, CLS, SEP, PAD]
    has_pairs: ClassVar[bool] = True
    language: str = Field("en", description="whose rules cut the text into sentences, as an ISO 639 code")

    def examples(self, corpus: Corpus, cut: Cut, seed: int, vocabulary: Vocabulary) -> PairExamples:
        if cut.context < SHORTEST_PAIR:
            raise ConfigError(
                f"data.context is {cut.context}, but the objective {self.name!r} needs at least {SHORTEST_PAIR}"
            )
        special = vocabulary.ids(self.special_tokens, self.name)
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
        masking = Masking(self, vocabulary, special[0])
        return PairExamples(sentences, masking, special[1:], cut.context, seed)


class NextSentence(SentencePairs):
    """BERT's next-sentence prediction: classify whether B follows A, or is from another document."""

    name: Literal["next_sentence"] = "next_sentence"


class SentenceOrder(SentencePairs):
    """ALBERT's sentence-order prediction: classify whether A and B are in order, or swapped."""

    name: Literal["sentence_order"] = "sentence_order"


class Sentences(SentenceIndex):
    """The sentences of a corpus, and its chunks for windows with room for ``room`` tokens.

    Attributes:
        chunks: int64, (chunks, 3): document, first sentence, and the sentence after the last.
        documents: int64, documents that have a sentence.
        skipped: number of documents that make no pair, having one sentence or none.
    """

    def __init__(self, corpus: Corpus, vocabulary: Vocabulary, language: str, room: int) -> None:
        super().__init__(corpus, vocabulary, language)
        chunks: list[tuple[int, int, int]] = []
        for document in range(len(corpus)):
            borders = self.of(document).tolist()
            first, count = 0, len(borders) - 1
            while first + 1 < count:
                last = first + 2
                while last < count and borders[last + 1] - borders[first] <= room:
                    last += 1
                chunks.append((document, first, last))
                first = last
        self.chunks = np.array(chunks, dtype=np.int64).reshape(-1, 3)
        counts = np.diff(self.starts)
        self.documents = np.flatnonzero(counts >= 1)
        self.skipped = int((counts < 2).sum())


class PairExamples(Examples):
    """Masked pairs, drawn anew in each epoch (once, if ``static``)."""

    def __init__(
        self, sentences: Sentences, masking: Masking, special: list[int], context: int, seed: int
    ) -> None:
        self.sentences, self.masking, self.settings = sentences, masking, masking.settings
        self.cls, self.sep, self.pad = special
        self.context, self.seed = context, seed

    def count(self, epoch: int) -> int:
        return len(self.sentences.chunks)

    def pair(self, index: int, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray, int]:
        """Tokens of A and B, and the pair's label."""
        sentences, room = self.sentences, self.context - 3
        document, first, last = sentences.chunks[index].tolist()
        border = int(draw.integers(first + 1, last))
        a, b = sentences.read(document, first, border), sentences.read(document, border, last)
        false = int(draw.random() < 0.5)
        if false and self.settings.name == "next_sentence":
            a, _ = _cut(a, b, room)
            others = sentences.documents
            own = np.searchsorted(others, document)
            other = int(others[(own + 1 + draw.integers(len(others) - 1)) % len(others)])
            borders = sentences.of(other)
            first = int(draw.integers(len(borders) - 1))
            last = int(np.searchsorted(borders, borders[first] + room - len(a), side="right")) - 1
            b = sentences.read(other, first, max(last, first + 1))  # the sentences that fit, at least one
        a, b = _cut(a, b, room)
        return (b, a, 1) if false and self.settings.name == "sentence_order" else (a, b, false)

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
