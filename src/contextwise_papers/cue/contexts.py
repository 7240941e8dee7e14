"""The section ``data.contexts``: the contexts of each sentence (CUE, Section 3.1)."""

from collections.abc import Iterator
from typing import Any, ClassVar

from pydantic import Field, model_validator

from contextwise.base.errors import Problem
from contextwise.data.metadata import check_columns
from contextwise.training.settings import DataSection

PREVIOUS = "previous_sentence"


class ContextSettings(DataSection):
    """Names of the contexts of a sentence; their order has no effect on a model."""

    about: ClassVar[str] = "contexts of each sentence, for model.cue"

    columns: list[str] = Field(
        default=[], description="metadata columns; 'meta.title' is the field title of the column meta"
    )
    previous_sentence: bool = Field(
        default=False, description="the sentence before, of the same document, is a context as well"
    )

    @model_validator(mode="after")
    def _check(self) -> "ContextSettings":
        check_columns(self.columns)
        if PREVIOUS in self.columns:
            raise ValueError(f"{PREVIOUS!r} is not a column but the sentence before; set {PREVIOUS}: true instead")
        if not self.types:
            raise ValueError(f"there is no context; name columns, or set {PREVIOUS}: true")
        return self

    @property
    def types(self) -> list[str]:
        """Names of the contexts: the columns, then the previous sentence."""
        return [*self.columns, *([PREVIOUS] if self.previous_sentence else [])]

    @property
    def read(self) -> list[str]:
        return self.columns

    def problems(self, recipe: Any) -> Iterator[Problem]:
        if getattr(recipe.model, "cue", None) is None:
            yield Problem("is used by model.cue only", "data.contexts", fix="remove it")
