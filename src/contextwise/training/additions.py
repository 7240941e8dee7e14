"""Additions of objectives and sections of ``data`` to the inputs of a run; importing it loads neither torch nor a corpus."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from contextwise.data.corpus import Corpus


class HeldOut(NamedTuple):
    """Examples to validate on, and their corpus."""

    corpus: Corpus
    examples: Any


class Addition:
    """What an objective or a section of ``data`` adds to the inputs of a run; a subclass overrides what it needs.

    Attributes:
        config: the model's configuration; None for that of the recipe's section ``model``.
        corpora: further corpora that are trained on, by role.
    """

    config: Any = None
    corpora: Mapping[str, Corpus] = MappingProxyType({})

    def stream(self, stream: Any) -> Any:
        """The training examples, given those without the addition."""
        return stream

    def held_out(self, sets: dict[str, HeldOut]) -> None:
        """Add or replace validation sets, by the name of their loss, given those without the addition."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """What ``summary.json`` says of it."""
        return {}

    @property
    def note(self) -> str:
        """A sentence for plans; empty if there is nothing to say."""
        return ""
