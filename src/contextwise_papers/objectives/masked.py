"""Objectives of encoders (objectives, Section 6.2.2): masked tokens, next sentence and sentence order.

The label of a pair must not show in anything but its meaning: not in the lengths of the segments, not in where they begin and
end, and for sentence order not in their words. The steps:

1. In each epoch a document is cut into segments of as few whole sentences as have half of the room in a window; two consecutive
   ones are a chunk. One chunk in ten is shorter, as in BERT's data; a rest that is too short is halved. For sentence order a
   document's first and last sentence are left out, whose ends look different from others.
2. A and B get the same visible length before the label is drawn, so that all segments are cut.
3. Sentence order: A and B are the fronts of the segments, in order or swapped. A rest that would be cut otherwise if its
   segments were swapped is left out.
4. Next sentence: labels are drawn first. A is the end of the first segment, B the front of the second, or of the second segment
   of a chunk of another document with the same label that is as like it as there is. These are exchanged, so that each segment
   is the B of one pair of the epoch. So no document may have more than half of the chunks; surplus ones are left out of the
   epoch. Where one has more than half of those with a label, some of the other label lend it their second segments.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from contextwise.base.progress import say_once
from contextwise.objectives import (
    NO_LOSS,
    Cut,
    Examples,
    Kind,
    SingleObjective,
    SpecialToken,
    Vocabulary,
    WindowExamples,
    generator,
)
from contextwise.settings import ConfigError, DataError
from contextwise_papers.objectives.text import SentenceIndex, TokenText

if TYPE_CHECKING:
    from contextwise.data import Corpus, Windows

MASK, CLS, SEP = SpecialToken("[MASK]", "mask"), SpecialToken("[CLS]", "cls"), SpecialToken("[SEP]", "sep")
PAD = SpecialToken("[PAD]", "pad")
SHORTEST_PAIR = 8  # [CLS], two [SEP], and something to see on both sides
SHORT_CHUNKS = 0.1
"""Share of the chunks with shorter segments: ``short_seq_prob`` of BERT's published code."""
NEAREST = 64
"""Half the number of segments, next to each other in length, whose false Bs are drawn from one another."""


class MaskSettings(SingleObjective):
    """Settings of the masked objectives: how tokens are chosen and masked (Devlin et al. 2019, Section 3.1).

    Each token is chosen independently with probability ``rate``, as in RoBERTa and transformers; BERT's code takes a fixed
    number of each sequence. Of the chosen tokens ``mask_share`` become the mask token, ``random_share`` a token drawn uniformly
    from all that are not special, and the rest stay. Special tokens are never chosen. A short window may have no target.
    """

    kind: ClassVar[Kind] = "encoder"
    rate: float = Field(default=0.15, gt=0, lt=1, description="share of the tokens that are targets")
    mask_share: float = Field(default=0.8, ge=0, le=1, description="of the targets: replaced by the mask token")
    random_share: float = Field(default=0.1, ge=0, le=1, description="of the targets: replaced by a random token")

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
        masking = Masking(self, vocabulary)
        return MaskedExamples(cut.windows(corpus, cut.context - 2, vocabulary), masking, seed)


class Masking:
    """Chooses and masks tokens; ``others`` are the ids of the objective's special tokens behind [MASK]."""

    def __init__(self, settings: MaskSettings, vocabulary: Vocabulary) -> None:
        self.settings = settings
        self.mask, *self.others = vocabulary.ids(settings.special_tokens, settings.name)
        self.special, self.ordinary = vocabulary.special, vocabulary.ordinary

    def apply(self, ids: np.ndarray, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Input and labels, (tokens,) each, of a sequence of token ids."""
        settings, n = self.settings, len(ids)
        chosen = (draw.random(n) < settings.rate) & ~np.isin(ids, self.special)
        treatment = draw.random(n)
        random = self.ordinary[draw.integers(len(self.ordinary), size=n)]
        hidden = chosen & (treatment < settings.mask_share)
        replaced = chosen & ~hidden & (treatment < settings.mask_share + settings.random_share)
        inputs = np.where(hidden, self.mask, np.where(replaced, random, ids))
        return inputs, np.where(chosen, ids, NO_LOSS)


class MaskedExamples(WindowExamples):
    """Masked windows."""

    def __init__(self, windows: Windows, masking: Masking, seed: int) -> None:
        super().__init__(windows, seed)
        self.masking = masking

    def arrays(self, epoch: int, index: int) -> dict[str, Any]:
        item, (cls, sep) = self.window(index), self.masking.others
        ids = np.concatenate([[cls], item["input_ids"], [sep]])
        inputs, labels = self.masking.apply(ids, generator(self.seed, epoch, index, "masked"))
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
    skipped: ClassVar[int] = 0  # sentences at each end of a document that are in no pair
    language: str = Field(
        default="en",
        pattern="^[a-z]{2,3}(-[a-z]+)*$",
        description="whose rules cut the text into sentences, as an ISO 639 code",
    )

    def examples(self, corpus: Corpus, cut: Cut, seed: int, vocabulary: Vocabulary) -> PairExamples:
        if cut.context < SHORTEST_PAIR:
            raise ConfigError(
                f"data.context is {cut.context}, but the objective {self.name!r} needs at least {SHORTEST_PAIR}"
            )
        masking = Masking(self, vocabulary)
        sentences = SentenceIndex(corpus, vocabulary.tokenizer, self.language)
        least = 2 + 2 * self.skipped
        pairs = int((np.diff(sentences.starts) >= least).sum())
        if pairs == 0:
            raise DataError(
                f"the objective {self.name!r} needs documents of at least {'two' if least == 2 else 'four'} sentences, but "
                f"all {len(corpus)} of the split {corpus.split!r} of {corpus.path} have fewer; choose the objective 'masked'"
            )
        if self.name == "next_sentence" and pairs == 1:
            raise DataError(
                f"the objective 'next_sentence' takes sentences of other documents, but the split {corpus.split!r} of "
                f"{corpus.path} has one document of at least two sentences; choose 'sentence_order'"
            )
        return PairExamples(sentences, masking, cut.context, seed, self.skipped)


class NextSentence(SentencePairs):
    """BERT's next-sentence prediction: classify whether B follows A, or is from another document."""

    name: Literal["next_sentence"] = "next_sentence"


class SentenceOrder(SentencePairs):
    """ALBERT's sentence-order prediction: classify whether A and B are in order, or swapped."""

    name: Literal["sentence_order"] = "sentence_order"
    skipped: ClassVar[int] = 1


class PairExamples(Examples):
    """Masked pairs, cut and drawn anew in each epoch.

    Attributes:
        chunks: int64, (chunks, 5), of the epoch that was read last: the document, the first token of each of two segments, the
            token after them, and the tokens that are wanted of each segment.
        others, labels: int64, (chunks,), for next sentences the chunk with the false B, and the label, of each.
    """

    def __init__(self, sentences: SentenceIndex, masking: Masking, context: int, seed: int, skipped: int) -> None:
        self.sentences, self.masking, self.settings = sentences, masking, masking.settings
        self.context, self.seed, self.skipped = context, seed, skipped
        text = TokenText(sentences.tokenizer)
        self._pieces = [text.piece(token) for token in range(len(sentences.tokenizer))]
        self._blank = np.array([not piece.strip() for piece in self._pieces])  # tokens of white space
        self._epoch = -1
        self._cut_documents(0)
        if self._surplus:
            corpus = sentences.corpus
            say_once(
                f"note: one document of {corpus.path} ({corpus.split}) has more than half of the sentence pairs; "
                f"{self._surplus:,} of them are left out of an epoch, because a pair needs one of another document"
            )

    def count(self, epoch: int) -> int:
        self._cut_documents(epoch)
        return len(self.chunks)

    def _cut_documents(self, epoch: int) -> None:
        """Cut all documents into the chunks of an epoch."""
        if epoch == self._epoch:
            return
        draw = generator(self.seed, epoch, 0, f"{self.settings.name} chunks")
        chunks: list[tuple[int, ...]] = []
        while not chunks:  # a corpus of a few rests may leave all of them out
            for document in range(len(self.sentences.corpus)):
                chunks += self._cut_document(document, draw)
        rows, self._surplus = np.array(chunks, dtype=np.int64), 0
        if self.settings.name == "next_sentence":
            most = np.flatnonzero(rows[:, 0] == np.bincount(rows[:, 0]).argmax())
            self._surplus = max(0, 2 * len(most) - len(rows))
            rows = np.delete(rows, draw.choice(most, self._surplus, replace=False), axis=0)
        self.chunks = rows[:, :5]
        if self.settings.name == "next_sentence":
            self._draw_others(rows, draw)
        self._epoch = epoch

    def _draw_others(self, rows: np.ndarray, draw: np.random.Generator) -> None:
        """Draw the labels of next sentences, and exchange second segments among the chunks with the same label."""
        documents, read = rows[:, 0], self.sentences.corpus.document
        seams = np.array([self._seam(read(document), middle) for document, _, middle, *_ in self.chunks.tolist()])
        self.labels = (draw.random(len(rows)) < 0.5).astype(np.int64)
        self.others = np.empty(len(rows), dtype=np.int64)
        for label in (0, 1):
            chosen = np.flatnonzero(self.labels == label)
            most = np.bincount(documents[chosen], minlength=1).argmax()
            lenders = np.flatnonzero((self.labels != label) & (documents != most))
            lacking = max(0, 2 * int((documents[chosen] == most).sum()) - len(chosen))
            pool = np.append(chosen, draw.choice(lenders, lacking, replace=False))
            others = of_other_documents(documents[pool], seams[pool].tolist(), rows[pool, 5:], draw)
            self.others[chosen] = pool[others][: len(chosen)]

    def _cut_document(self, document: int, draw: np.random.Generator) -> list[tuple[int, ...]]:
        """A document's chunks: the columns of ``chunks``, whether a rest, sentences of the second segment, and its length."""
        borders = self.sentences.of(document)
        borders = borders[: len(borders) - self.skipped]
        first, count = self.skipped, len(borders) - 1
        if first + 1 >= count:
            return []
        ends = self._visible_ends(self.sentences.corpus.document(document), borders)
        half = (self.context - 2) // 2  # of the room, rounded up
        begins, shown = borders.tolist(), ends.tolist()
        chunks: list[tuple[int, ...]] = []
        while first + 1 < count:
            wanted = half if draw.random() >= SHORT_CHUNKS else int(draw.integers(2, half + 1))
            found = two_segments(begins, shown, first, wanted)
            middle, last = found or ((first + count + int(draw.integers(2))) // 2, count)
            if found or self.settings.name == "next_sentence" or self._stays_rest(borders, ends, first, middle, wanted):
                size = wanted if found else begins[last] - begins[middle]
                where = document, begins[first], begins[middle], begins[last], wanted
                chunks.append((*where, found is None, last - middle, size))
            first = last
        return chunks

    @staticmethod
    def _stays_rest(borders: np.ndarray, ends: np.ndarray, first: int, middle: int, wanted: int) -> bool:
        """Whether a rest with its two segments swapped is a rest too."""
        sentences = np.r_[middle : len(borders) - 1, first:middle]
        begins = np.cumsum([0, *np.diff(borders)[sentences]])
        shown = np.append(0, begins[1:] - (borders - ends)[sentences + 1])
        return two_segments(begins.tolist(), shown.tolist(), 0, wanted) is None

    def _visible_ends(self, ids: np.ndarray, borders: np.ndarray) -> np.ndarray:
        """For each border in a document, the token after the last visible one before it, int64."""
        visible = np.where(self._blank[ids], 0, np.arange(1, len(ids) + 1))
        return np.append(0, np.maximum.accumulate(visible))[borders]

    def _seam(self, ids: np.ndarray, border: int) -> str:
        """The white space before a border, and that with which the token after it begins."""
        begin = border
        while begin and self._blank[ids[begin - 1]]:
            begin -= 1
        after = self._pieces[ids[border]]
        before = "".join(self._pieces[i] for i in ids[begin:border].tolist())
        return f"{before}|{after[: len(after) - len(after.lstrip())]}"

    def pair(self, index: int, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray, int]:
        """Tokens of A and B, and the label, of a chunk of the epoch that was read last."""
        document, first, middle, last, wanted = self.chunks[index].tolist()
        tokens = self.sentences.corpus.document(document)
        segments = [tokens[first:middle], tokens[middle:last]]
        if self.settings.name == "next_sentence":
            document, _, first, last, _ = self.chunks[self.others[index]].tolist()
            segments.append(self.sentences.corpus.document(document)[first:last])
        shortest = min(int(self._visible_ends(ids, np.array([len(ids)]))[0]) for ids in segments)
        if shortest < wanted:
            wanted = int(draw.integers(-(-shortest // 2), max(shortest, 2)))
        rest = min(wanted, self.context - 3 - wanted)
        length_a, length_b = (wanted, rest) if draw.random() < 0.5 else (rest, wanted)
        if self.settings.name == "next_sentence":
            label = int(self.labels[index])
            a, b = segments[0][-length_a:], segments[1 + label]
        else:
            label = int(draw.random() < 0.5)
            a, b = segments[label][:length_a], segments[1 - label]
        return a.astype(np.int64), b[:length_b].astype(np.int64), label

    def arrays(self, epoch: int, index: int) -> dict[str, Any]:
        self._cut_documents(epoch)
        draw = generator(self.seed, self._epoch, index, self.settings.name)
        a, b, label = self.pair(index, draw)
        cls, sep, pad = self.masking.others
        ids = np.concatenate([[cls], a, [sep], b, [sep]])
        positions = np.arange(self.context)
        padding = np.full(self.context - len(ids), pad)
        inputs, labels = self.masking.apply(np.concatenate([ids, padding]), draw)
        return {
            "input_ids": inputs,
            "labels": labels,
            "token_type_ids": ((positions >= len(a) + 2) & (positions < len(ids))).astype(np.int64),
            "attention_mask": (positions < len(ids)).astype(np.int64),
            "pair_label": label,
            "window": index,
        }


def two_segments(begins: list[int], ends: list[int], first: int, wanted: int) -> tuple[int, int] | None:
    """Cut two segments of at least ``wanted`` visible tokens, of as few sentences as possible, from sentence ``first`` on.

    ``begins`` are the first tokens of the sentences and the document's length, ``ends`` the token after the last visible one
    before each. Returns the sentence with which the second segment begins and the one after it; None if there are no two.
    """
    middle = bisect_left(ends, begins[first] + wanted, first + 1)
    if middle >= len(begins) - 1:
        return None
    last = bisect_left(ends, begins[middle] + wanted, middle + 1)
    return (middle, last) if last < len(begins) else None


def of_other_documents(
    documents: np.ndarray, seams: list[str], cuts: np.ndarray, draw: np.random.Generator
) -> np.ndarray:
    """The index of a chunk of another document for each chunk, one that is cut like it: a permutation, int64, (chunks,).

    No document has more than half of the chunks. ``seams`` is the white space where segments meet; ``cuts``, (chunks, 3):
    whether it is a rest, the sentences of its second segment, and a length.
    """
    seam, (rest, sentences, size), count = np.unique(seams, return_inverse=True)[1], cuts.T, len(documents)
    order = np.lexsort((draw.random(count), size, sentences, rest, seam))
    keys, documents = np.stack([seam, rest, sentences], axis=1)[order], documents[order]
    ranges = []  # of ranks with equal keys: all, two, one and none of them
    for level in (3, 2, 1, 0):
        new = np.append(True, (np.diff(keys[:, :level], axis=0) != 0).any(axis=1))
        starts, group = np.flatnonzero(new), np.cumsum(new) - 1
        ranges.append((starts[group], np.append(starts[1:], count)[group]))
    low = ranges[0][0]
    others = np.lexsort((draw.random(count), low + (np.arange(count) - low) // (2 * NEAREST) * 2 * NEAREST))

    def exchange(rank: int) -> int:
        """A rank near to ``rank`` that can exchange its chunk with it, so that neither has one of its own document."""
        own, reach, level = documents[rank], NEAREST, 0
        while True:  # there is such a rank where no document has more than half of the chunks
            low, high = (int(side[rank]) for side in ranges[level])
            first, last = max(low, rank - reach), min(high, rank + reach + 1)
            able = np.flatnonzero((documents[first:last] != own) & (documents[others[first:last]] != own))
            if len(able):
                return first + int(draw.choice(able))
            level, reach = (level + 1, reach) if (first, last) == (low, high) else (level, 2 * reach)

    for rank in np.flatnonzero(documents[others] == documents).tolist():
        if documents[others[rank]] == documents[rank]:  # no earlier exchange has changed it
            both = [rank, exchange(rank)]
            others[both] = others[both[::-1]]
    result = np.empty(count, dtype=np.int64)
    result[order] = order[others]
    return result
