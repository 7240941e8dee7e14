"""Contrastive training of embeddings: the neighbouring segment of a document is to be nearer than segments of other documents.

Objectives, Section 6.2.2, names contrastive training as what turns pooled states into semantic embeddings; two neighbouring
segments of a document are the pair (the cropping of Contriever, Izacard et al. 2022). The steps:

1. A document is divided into the fewest chunks of equal length that two segments can hold, the same in every epoch.
2. In each epoch a chunk is cut at a position drawn uniformly. A is what comes before, B what comes after, cut to the room in
   a window at their far ends. A segment is one example; A and B of a pair follow each other in every step.
3. A segment's vector is the mean over its tokens, of length 1. The loss of a pair is -log softmax(cos(A, B) / t) over all B
   of the step, averaged with the same for A and B exchanged (InfoNCE). Other segments of a pair's own document are no
   negatives.

So a step cannot be split into micro-batches, or among processes: such a run is refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from contextwise.data.documents import check_ids
from contextwise.objectives import NO_LOSS, Cut, Examples, Kind, SingleObjective, SpecialToken, Vocabulary, generator
from contextwise.settings import ConfigError, DataError, Problem
from contextwise_papers.objectives.masked import CLS, PAD, SEP

if TYPE_CHECKING:
    from contextwise.data import Corpus


class Contrastive(SingleObjective):
    """Neighbouring segments of a document against those of other documents in the same step; see the module."""

    name: Literal["contrastive"] = "contrastive"
    kind: ClassVar[Kind] = "encoder"
    special_tokens: ClassVar[list[SpecialToken]] = [CLS, SEP, PAD]
    whole_steps: ClassVar[bool] = True
    together: ClassVar[int] = 2
    temperature: float = Field(default=0.05, ge=0.001, description="divides the cosines; SimCSE's")
    least: int = Field(default=8, ge=1, description="tokens of a segment at least")

    def problems(self, recipe: Any) -> Iterator[Problem]:
        unit, given = recipe.data.context, recipe.training.evaluation_tokens
        if len(recipe.singles) > 1 or any(section.others for section in recipe.data.sections.values()):
            why = "compares all examples of a step, which cannot hold another objective or corpus"
            fix = "train them one after the other, with model.pretrained"
            yield Problem(f"the objective {self.name!r} {why}", fix=fix)
        if 0 < given < 4 * unit:  # 0: no validation
            why = f"which is less than two pairs of the objective {self.name!r}"
            yield Problem(why, "training.evaluation_tokens", given, f"make it at least {4 * unit}")
        if recipe.examples_per_step % 2 or recipe.examples_per_step < 4:
            why = f"but the objective {self.name!r} has pairs of examples, and needs two pairs or more in each step"
            fix = f"make it a multiple of {2 * unit}, at least {4 * unit}"
            yield Problem(why, "training.tokens_per_step", recipe.tokens_per_step, fix)

    def examples(self, corpus: Corpus, cut: Cut, seed: int, vocabulary: Vocabulary) -> SegmentExamples:
        special = vocabulary.ids(self.special_tokens, self.name)
        room = cut.context - 2  # [CLS] and [SEP]
        if room < 2 * self.least:
            raise ConfigError(
                f"data.context is {cut.context}, but the objective 'contrastive' needs at least {2 * self.least + 2}: twice "
                "its setting least, and special tokens"
            )
        return SegmentExamples(self, corpus, room, special, seed, vocabulary.size)


class SegmentExamples(Examples):
    """Segments: A of pair i is example 2 i, B is 2 i + 1.

    Attributes:
        chunks: int64, (pairs, 3): document, first token, and the token after the last.
    """

    def __init__(
        self,
        settings: Contrastive,
        corpus: Corpus,
        room: int,
        special: list[int],
        seed: int,
        vocab_size: int | None = None,
    ) -> None:
        self.settings, self.corpus, self.room, self.seed, self.vocab_size = settings, corpus, room, seed, vocab_size
        self.cls, self.sep, self.padding = special
        chunks = []
        for document, tokens in enumerate(np.asarray(corpus.lengths).tolist()):
            if tokens >= 2 * settings.least:
                count = -(-tokens // (2 * room))
                borders = [number * tokens // count for number in range(count + 1)]
                chunks += [(document, *pair) for pair in itertools.pairwise(borders)]
        self.chunks = np.array(chunks, dtype=np.int64).reshape(-1, 3)
        if len(np.unique(self.chunks[:, 0])) < 2:
            raise DataError(
                f"the objective 'contrastive' needs two documents of at least {2 * settings.least} tokens, but the split "
                f"{corpus.split!r} of {corpus.path} has {len(np.unique(self.chunks[:, 0]))}; lower its setting least"
            )

    def count(self, epoch: int) -> int:
        return 2 * len(self.chunks)

    def arrays(self, epoch: int, index: int) -> dict[str, Any]:
        number, side = divmod(index, 2)
        document, first, last = self.chunks[number].tolist()
        draw = generator(self.seed, epoch, number, self.settings.name)
        cut = first + int(draw.integers(self.settings.least, last - first - self.settings.least + 1))
        first, last = (cut, min(last, cut + self.room)) if side else (max(first, cut - self.room), cut)
        tokens = self.corpus.document(document)[first:last].astype(np.int64)
        check_ids(tokens, self.vocab_size, self.corpus.path)
        ids = np.concatenate([[self.cls], tokens, [self.sep]])
        context = self.room + 2
        inputs = np.full(context, self.padding, dtype=np.int64)
        inputs[: len(ids)] = ids
        return {
            "input_ids": inputs,
            "labels": np.full(context, NO_LOSS, dtype=np.int64),
            "attention_mask": (np.arange(context) < len(ids)).astype(np.int64),
            "document": document,
            "temperature": np.float32(self.settings.temperature),
            "counted": 1 - side,  # a pair is one target
            "window": index,
        }
