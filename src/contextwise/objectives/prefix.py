"""Prefix language modeling: a prefix that sees itself in both directions, a suffix that is predicted (objectives, 6.2.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from contextwise.objectives.objective import (
    NO_LOSS,
    Cut,
    Examples,
    Kind,
    SingleObjective,
    WindowExamples,
    generator,
    window_arrays,
)
from contextwise.objectives.vocabulary import Vocabulary

if TYPE_CHECKING:
    from contextwise.data.corpus import Corpus
    from contextwise.data.windows import Windows


class PrefixLM(SingleObjective):
    """Of a window of T inputs the first P, uniform from 1 to T, are the prefix.

    ``prefix`` is True at them: each sees all of them, the others see what stands before them. The loss is on the suffix
    only: position P-1, the prefix's last, predicts the suffix's first token, so the labels before it are -100. P = 1 is
    causal language modeling, P = T leaves one target.

    With ``separate_documents`` every document's piece of a window has a prefix of its own, uniform over the piece's
    length: documents do not see each other, so a prefix across them could not be one. Else a window has one prefix,
    whatever documents are in it.
    """

    name: Literal["prefix"] = "prefix"

    @property
    def kind(self) -> Kind:
        return "decoder"

    @property
    def has_prefix(self) -> bool:
        return True

    def examples(self, corpus: Corpus, cut: Cut, seed: int, vocabulary: Vocabulary) -> Examples:
        return PrefixExamples(cut.windows(corpus, cut.context, vocabulary), seed)


class PrefixExamples(WindowExamples):
    """Windows with prefixes drawn anew in each epoch."""

    def __init__(self, windows: Windows, seed: int) -> None:
        super().__init__(windows)
        self.seed = seed

    def arrays(self, epoch: int, index: int) -> dict[str, Any]:
        item = window_arrays(self.windows, index)
        context = len(item["input_ids"])
        positions = item["position_ids"] if "position_ids" in item else np.arange(context)
        starts = np.flatnonzero(positions == 0)
        lengths = np.diff(starts, append=context)
        prefixes = generator(self.seed, epoch, index, "prefix").integers(1, lengths + 1)
        position = np.arange(context) - np.repeat(starts, lengths)  # in the document's piece
        prefix = np.repeat(prefixes, lengths)
        labels = np.where(position < prefix - 1, NO_LOSS, item["labels"])
        return item | {"prefix": position < prefix, "labels": labels}
