"""The loss of a model at each number of visible tokens: ``contextwise curve``.

A trainer's average loss ranks models of different contexts wrongly (context scaling, Section 2). The contextwise loss curve
does not: it is the mean loss at each number of visible tokens, over the same documents.
"""

from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, model_validator
from rich.console import RenderableType

from contextwise.base.errors import ConfigError
from contextwise.evaluation.kernel import Measure, Outcome, Result, Subject, Work

if TYPE_CHECKING:
    import pyarrow as pa

    from contextwise.data import Corpus


DEFAULT_SAMPLES = 2048


class CurveResult(Result):
    """A measured contextwise loss curve."""

    @property
    def bins(self) -> list[dict[str, Any]]:
        """``visible_from``, ``visible_to``, ``loss``, ``low``, ``high``, ``targets`` of each bin, in order."""
        return self.summary["bins"]

    @property
    def measures(self) -> dict[str, Any]:
        """``best_context_loss``, ``last_tenth``, ``effective_context`` and ``average_loss``."""
        return self.summary["measures"]

    @cached_property
    def curve(self) -> "pa.Table":
        """One row for each number of visible tokens: ``visible``, ``loss``, ``low``, ``high``, ``targets``."""
        return self.table_of("curve")

    @cached_property
    def documents(self) -> "pa.Table":
        """One row for each document and bin: ``document``, ``bin`` (index in :attr:`bins`), ``nats``, ``targets``.

        In the running mode also ``tail_nats``, ``tail_targets``: the document's, in the last tenth of the training context.
        """
        return self.table_of("documents")


class Curve(Measure):
    """Measure the loss at each number of visible tokens: how much of its context a model uses.

    Prints the loss by visible tokens, the best-context loss and the effective context, with 95% intervals over documents. A
    stopped measurement resumes.
    """

    name = "curve"
    numbers = "evaluation.measures.curve.readings:CurveJson"
    changes_model = True
    result = CurveResult

    mode: Literal["running", "truncated"] = Field(
        default="running", description="running: one pass over windows; truncated: the same targets at every context."
    )
    context: int | None = Field(
        default=None,
        ge=1,
        description="Tokens of a window, or the longest context; may exceed the training context where positions are rotary; "
        "default: the training context, else the model's, up to 1024.",
    )
    contexts: list[int] | None = Field(
        default=None,
        min_length=1,
        description="Visible tokens of the truncated mode; default: the powers of two up to the context.",
    )
    samples: int | None = Field(
        default=None, ge=1, description=f"Targets of the truncated mode; default: {DEFAULT_SAMPLES}."
    )
    seed: int = Field(default=0, ge=0, description="Of the choice of targets.")
    worth: float = Field(
        default=0.01, gt=0, description="Nats per token that a doubling is worth at least, below the effective context."
    )
    rope: Literal["none", "linear", "dynamic", "yarn"] = Field(
        default="none", description="How rotary positions are extended beyond the training context."
    )
    rope_factor: float | None = Field(
        default=None, ge=1, description="Factor of the extension; default: the context over the training context."
    )
    limit: int | None = Field(default=None, ge=1, description="Score only the first N documents.")

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        for name in ("samples", "contexts"):
            if self.mode == "running" and getattr(self, name) is not None:
                end = f"set mode to truncated, or leave {name} out"
                raise ValueError(f"{name} belong to the truncated mode; {end}")
        if self.contexts is None:
            return self
        if self.context not in (None, max(self.contexts)):
            raise ValueError("context is given together with contexts; leave one of the two out")
        if min(self.contexts) < 1:
            raise ValueError(f"contexts holds {min(self.contexts)}; each must be at least 1")
        return self

    def resolved(self, subject: Subject, corpus: "Corpus | None") -> Self:
        context = max(self.contexts) if self.contexts else self.context or subject.context()
        if self.mode == "running":
            return self.model_copy(update={"context": context})
        powers = [*(2**i for i in range((context - 1).bit_length())), context]
        contexts = sorted(set(self.contexts)) if self.contexts else powers
        samples = self.samples or DEFAULT_SAMPLES
        return self.model_copy(update={"context": context, "contexts": contexts, "samples": samples})

    def run(self, subject: Subject, corpus: "Corpus | None", work: Work) -> Outcome:
        from contextwise.evaluation.measures.curve.passes import running_pass, truncated_pass, whole_windows
        from contextwise.evaluation.measures.curve.readings import curve_measures
        from contextwise.evaluation.scoring.truncated import choose_targets

        assert corpus is not None and self.context is not None
        factor, trained = self._extend_positions(subject), subject.trained_context
        tokens = subject.batch_tokens
        if self.contexts is None:
            plan = whole_windows(corpus, self.context, self.limit)
            sums = running_pass(subject.model, corpus, plan, trained, work, batch_tokens=tokens)
        else:
            assert self.samples is not None
            targets = choose_targets(corpus, self.context, self.samples, self.seed, self.limit)
            sums = truncated_pass(subject.model, corpus, targets, self.contexts, work, batch_tokens=tokens)
        bins, measures = curve_measures(sums, self.worth)
        summary = {
            "trained_context": trained,
            "rope_factor": factor,
            "documents": len(sums.documents),
            "targets": int(sums.targets.sum()),
            "bins": bins,
            "measures": measures,
        }
        return Outcome(summary, {"curve": sums.curve_table(), "documents": sums.documents_table()})

    def _extend_positions(self, subject: Subject) -> float | None:
        """Give the model positions for the longest context; returns the factor of the extension, None without one."""
        from contextwise.models.rope import extend_positions, rotary_modules

        assert self.context is not None
        if rotary_modules(subject.model) or self.rope != "none" or self.rope_factor is not None:
            return extend_positions(subject.model, self.context, self.rope, self.rope_factor, subject.trained_context)
        limit = subject.positions
        if limit is not None and self.context > limit:
            raise ConfigError(
                f"a context of {self.context:,} tokens is longer than the {limit:,} positions that {subject.source} has "
                f"learned; give at most {limit:,}, or a model with rotary positions"
            )
        return None

    @classmethod
    def table(cls, summary: dict[str, Any]) -> RenderableType:
        from contextwise.evaluation.measures.curve.readings import curve_tables

        return curve_tables(summary)
