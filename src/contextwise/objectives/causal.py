"""Objectives of decoders over unchanged windows: causal (objectives, Section 6.2.1) and prefix (6.2.4) language modeling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from contextwise.objectives.kind import Kind
from contextwise.objectives.objective import NO_LOSS, Cut, Examples, SingleObjective, WindowExamples, generator
from contextwise.objectives.vocabulary import Vocabulary

if TYPE_CHECKING:
    from contextwise.data.corpus import Corpus


class Causal(SingleObjective):
    """Next-token prediction: L = -sum over t of log P(x_t | x_<t). Nothing is random; each token of a window is a target."""

    name: Literal["causal"] = "causal"
    kind: ClassVar[Kind] = "decoder"

    def examples(self, corpus: Corpus, cut: Cut, seed: int, vocabulary: Vocabulary) -> Examples:
        return WindowExamples(cut.windows(corpus, cut.context, vocabulary))


class PrefixLM(SingleObjective):
    """Of a window of T inputs the first P, uniform from 1 to T, are the prefix.

    ``prefix`` is True there: prefix positions see each other in both directions, later positions see all before them. The loss
    is on the suffix only: position P-1, the last of the prefix, predicts the first token of the suffix, and the labels before
    it are -100. P = 1 is causal language modeling; P = T leaves one target.

    With ``separate_documents`` each document's part of a window has a prefix of its own, uniform over the length of that
    part, because documents do not see each other. Otherwise a window has one prefix, whatever documents it contains.
    """

    name: Literal["prefix"] = "prefix"
    kind: ClassVar[Kind] = "decoder"
    has_prefix: ClassVar[bool] = True

    def examples(self, corpus: Corpus, cut: Cut, seed: int, vocabulary: Vocabulary) -> Examples:
        return PrefixExamples(cut.windows(corpus, cut.context, vocabulary), seed)


class PrefixExamples(WindowExamples):
    """Windows with prefixes drawn anew in each epoch."""

    def arrays(self, epoch: int, index: int) -> dict[str, Any]:
        item = self.window(index)
        context = len(item["input_ids"])
        positions = item["position_ids"] if "position_ids" in item else np.arange(context)
        starts = np.flatnonzero(positions == 0)
        lengths = np.diff(starts, append=context)
        prefixes = generator(self.seed, epoch, index, "prefix").integers(1, lengths + 1)
        position = np.arange(context) - np.repeat(starts, lengths)  # in the document's part of the window
        prefix = np.repeat(prefixes, lengths)
        labels = np.where(position < prefix - 1, NO_LOSS, item["labels"])
        return item | {"prefix": position < prefix, "labels": labels}
