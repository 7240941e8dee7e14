"""Check for leaks of later tokens into earlier predictions of a causal language model: ``contextwise measure causality``."""

from typing import TYPE_CHECKING, Any

from pydantic import Field
from rich.console import RenderableType

from contextwise.base.estimates import as_json
from contextwise.evaluation.kernel import Measure, Outcome, Result, Subject, Work
from contextwise.evaluation.measures.causality.effects import Causality

if TYPE_CHECKING:
    from contextwise.data import Corpus


class CausalityResult(Result):
    """A finished check for leaks."""

    @property
    def answer(self) -> str:
        """The model, and what was found."""
        return f"{super().answer}: {Causality.from_dict(self.summary).verdict}"


class CausalityCheck(Measure):
    """Check that later tokens, padding, packed neighbours and the cache do not reach the past.

    Measured on random tokens, in float32 by default, and again in float64 what is found there: in types of
    lower precision small leaks cannot be distinguished from rounding. Exit status 1 if there is a leak, or
    other logits with a cache.
    """

    name = "causality"
    version = 2  # what float32 shows is measured again in float64
    on_corpus = False
    result = CausalityResult
    gives_contexts = True
    default_dtype = "float32"

    lengths: list[int] | None = Field(
        default=None,
        min_length=1,
        description="Tokens of the rows; default: four lengths at and around multiples of the chunk.",
    )
    chunk_size: int | None = Field(
        default=None,
        ge=1,
        description="Period of the borders that are tested; default: the model's chunk size, else 4.",
    )
    packed: bool | None = Field(
        default=None,
        description="Whether a packed document that sees the ones before it is a leak; default: for this package's models.",
    )
    tolerance: float | None = Field(
        default=None,
        ge=0,
        description="Largest effect that counts as rounding, as a share of the largest logit; default: by number format.",
    )
    seed: int = Field(default=0, ge=0, description="Of the tokens.")

    def run(self, subject: Subject, corpus: "Corpus | None", work: Work) -> Outcome:
        from contextwise.evaluation.measures.causality.perturbations import measure_causality

        return Outcome(as_json(measure_causality(subject.model, **self.model_dump())))

    @classmethod
    def passed(cls, summary: dict[str, Any]) -> bool:
        return summary["causal"]

    @classmethod
    def table(cls, summary: dict[str, Any]) -> RenderableType:
        return Causality.from_dict(summary)
