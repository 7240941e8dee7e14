"""Causal language modeling: every token from those before it (objectives, Section 6.2.1)."""

from typing import Literal

import torch

from contextwise.data.corpus import Corpus
from contextwise.data.windows import Windows
from contextwise.objectives.objective import Cut, Examples, Kind, Objective
from contextwise.objectives.vocabulary import Vocabulary


class Causal(Objective):
    """Next-token prediction: L = -sum over t of log P(x_t | x_<t). Nothing is drawn; every token is a target once."""

    name: Literal["causal"] = "causal"

    @property
    def kind(self) -> Kind:
        return "decoder"

    def examples(self, corpus: Corpus, cut: Cut, seed: int, vocabulary: Vocabulary) -> Examples:
        return PlainWindows(cut.windows(corpus, cut.context, vocabulary))


class PlainWindows(Examples):
    """Windows as they are, the same in every epoch."""

    def __init__(self, windows: Windows) -> None:
        self.windows = windows

    def count(self, epoch: int) -> int:
        return len(self.windows)

    def example(self, epoch: int, index: int) -> dict[str, torch.Tensor]:
        return self.windows[index]
