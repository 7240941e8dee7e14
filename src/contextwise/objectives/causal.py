"""Causal language modeling: every token from those before it (objectives, Section 6.2.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from contextwise.objectives.objective import (
    Cut,
    Examples,
    Kind,
    SingleObjective,
    WindowExamples,
    window_arrays,
)
from contextwise.objectives.vocabulary import Vocabulary

if TYPE_CHECKING:
    from contextwise.data.corpus import Corpus


class Causal(SingleObjective):
    """Next-token prediction: L = -sum over t of log P(x_t | x_<t). Nothing is random; every token is a target once."""

    name: Literal["causal"] = "causal"

    @property
    def kind(self) -> Kind:
        return "decoder"

    def examples(self, corpus: Corpus, cut: Cut, seed: int, vocabulary: Vocabulary) -> Examples:
        return CausalExamples(cut.windows(corpus, cut.context, vocabulary))


class CausalExamples(WindowExamples):
    """Unchanged windows."""

    def arrays(self, epoch: int, index: int) -> dict[str, Any]:
        return window_arrays(self.windows, index)
