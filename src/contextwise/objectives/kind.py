"""The kinds of language model that examples are made for, and the form of a prompt; standalone exports include this module."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["decoder", "encoder", "encoder-decoder"]
TRAINED_POOLING = "embedding_pooling"
"""Attribute of the configuration of a model with trained embeddings: their pooling, which is its default."""


@dataclass(frozen=True)
class PromptForm:
    """The prompt of a decoder that was trained with a prefix: token ids around the text that is continued.

    Attributes:
        before, after: of the prefix, in which positions see each other in both directions: before and after the text.
        opening: the first tokens of the continuation, which are given, too.
    """

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    opening: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        """Number of tokens beside the text."""
        return len(self.before) + len(self.after) + len(self.opening)
