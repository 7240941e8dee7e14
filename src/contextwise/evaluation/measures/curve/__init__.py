"""The loss of a model at each number of visible tokens: ``contextwise curve``.

A trainer's average loss ranks models of different contexts wrongly (context scaling, Section 2). The contextwise loss curve
does not: it is the mean loss at each number of visible tokens, over the same documents.
"""

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, model_validator
from rich.console import Group, RenderableType
from rich.text import Text

from contextwise.base.errors import ConfigError
from contextwise.base.estimates import FEWEST_DOCUMENTS, NOT_KNOWN, Estimate, counted, written
from contextwise.base.tables import Column, Table
from contextwise.evaluation.kernel import Measure, Outcome, Result, Subject, Work
from contextwise.evaluation.measures.loss import ONE_DOCUMENT

if TYPE_CHECKING:
    import pyarrow as pa

    from contextwise.data import Corpus

DEFAULT_SAMPLES = 1024
BLOCKS = 32
"""In bands, the longest context over the targets of a block, and the fewest blocks of more than 32 targets: shorter and more
blocks come from more documents."""
FEWEST_BLOCKS = 16
"""The fewest blocks of several targets: few targets come from as many documents as an interval takes."""


class CurveResult(Result):
    """A measured contextwise loss curve."""

    @property
    def answer(self) -> str:
        """What the context is worth to the model, and how much of it counts."""
        first, lowest = self.bins[0], self.measures["lowest_bin"]
        measured = self.measures["effective_context"]
        effective, interval = _effective_cells(measured)
        known = f" {interval}" * (interval != NOT_KNOWN)
        if _is_beyond(measured):
            known = f": twice that still gains {measured['worth']:g} nats or more"
        elif measured["low"] is not None and measured["low"] <= measured["measured_from"] and measured["high"] is None:
            effective, known = "not determined", f" {interval}"  # any context may be enough
        name, plural = Path(self.summary["model"]).name, "s" * (first["visible_to"] > 1)
        falls = f"{first['loss']:.2f} nats per token with {_limits(first)} visible token{plural}, "
        falls += "the lowest" if _limits(lowest) == _limits(first) else f"{lowest['value']:.2f} with {_limits(lowest)}"
        return f"{name}: {falls}; effective context {effective}{known}"

    @property
    def bins(self) -> list[dict[str, Any]]:
        """``visible_from``, ``visible_to``, ``loss``, ``low``, ``high``, ``targets`` of each bin, in order.

        ``minus_longest`` is the loss minus that of the longest context, with its interval, paired by document, in
        ``minus_longest_low`` and ``minus_longest_high``.
        """
        return self.summary["bins"]

    @property
    def measures(self) -> dict[str, Any]:
        """``lowest_bin``, ``best_context_loss``, ``effective_context`` and ``average_loss``."""
        return self.summary["measures"]

    @cached_property
    def curve(self) -> "pa.Table":
        """One row for each number of visible tokens: ``visible``, ``loss``, ``targets``."""
        return self.table_of("curve")

    @cached_property
    def documents(self) -> "pa.Table":
        """One row for each document and bin: ``document``, ``bin`` (index in :attr:`bins`), ``nats``, ``targets``.

        In the running mode also ``tail_nats``, ``tail_targets``: the document's, in the last tenth of the training context.
        """
        return self.table_of("documents")


class Curve(Measure):
    """Measure the loss at each number of visible tokens: how much of its context a model uses.

    Prints the loss by visible tokens, the lowest bin and the effective context, with 95% intervals over documents; in the
    running mode also the best-context loss (the mean over the last tenth of the training context) and the average loss. A
    stopped measurement resumes.
    """

    name = "curve"
    version = 7
    changes_model = True
    result = CurveResult

    mode: Literal["bands", "truncated", "running"] = Field(
        default="bands",
        description="bands: the same targets at every context l, each with 7l/8 to l tokens visible; truncated: with exactly "
        "l, at many times the cost; running: one pass over windows, with other targets at each.",
    )
    context: int | None = Field(
        default=None,
        ge=1,
        description="Tokens of a window, or the longest context; may exceed the training context where positions are rotary; "
        "default: the training context, else the model's, up to 1024; in bands, at most the length that six documents have.",
    )
    contexts: list[int] | None = Field(
        default=None,
        min_length=1,
        description="Most visible tokens of the points; default: the powers of two up to the context. Not in running mode.",
    )
    samples: int | None = Field(
        default=None, ge=1, description=f"Targets; default: {DEFAULT_SAMPLES}. Not in running mode, which takes all."
    )
    seed: int = Field(default=0, ge=0, description="Of the choice of targets.")
    worth: float = Field(
        default=0.01, gt=0, description="Nats per token; from the effective context on, no doubling is worth as much."
    )
    rope: Literal["none", "linear", "dynamic", "yarn"] = Field(
        default="none", description="How rotary positions are extended beyond the training context."
    )
    rope_factor: float | None = Field(
        default=None, ge=1, description="Factor of the extension; default: the context over the training context."
    )
    bos: bool | None = Field(
        default=None,
        description="Put the tokenizer's start token (else the corpus's end-of-text) before every window, not counted as "
        "visible; default: if the tokenizer itself puts one before a text. Not in running mode.",
    )
    limit: int | None = Field(default=None, ge=1, description="Score only the first N documents.")

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        for name in ("samples", "contexts", "bos"):
            if self.mode == "running" and getattr(self, name):
                end = f"set `mode` to bands, or leave `{name}` out"
                raise ValueError(f"the running mode takes no {name}; {end}")
        if self.contexts is None:
            return self
        if self.context not in (None, max(self.contexts)):
            raise ValueError("`context` is given together with `contexts`; leave one of the two out")
        if min(self.contexts) < 1:
            raise ValueError(f"contexts holds {min(self.contexts)}; each must be at least 1")
        return self

    def resolved(self, subject: Subject, corpus: "Corpus | None") -> Self:
        from contextwise.evaluation.scoring.truncated import check_longest

        start = None if self.mode == "running" or corpus is None else corpus.window_start(self.bos)
        usual = subject.context()
        if start is not None and subject.positions is not None:
            usual = max(1, min(usual, subject.positions - 1))
        context = max(self.contexts) if self.contexts else self.context or self._reached(usual, corpus)
        if self.mode == "running":
            return self.model_copy(update={"context": context, "bos": False})
        if corpus is not None:  # before the weights are loaded
            check_longest(corpus, context, self.limit, subject.positions)
        powers = [*(2**i for i in range((context - 1).bit_length())), context]
        contexts = sorted(set(self.contexts)) if self.contexts else powers
        further = {"samples": self.samples or DEFAULT_SAMPLES, "bos": start is not None}
        return self.model_copy(update={"context": context, "contexts": contexts, **further})

    @property
    def block(self) -> int:
        """Consecutive targets that are chosen together, of resolved settings."""
        from contextwise.evaluation.scoring.truncated import power_of_two

        assert self.context is not None and self.samples is not None
        if self.mode != "bands":
            return 1
        of_few = min(BLOCKS, self.samples // FEWEST_BLOCKS)
        return power_of_two(max(1, min(self.context // BLOCKS, max(of_few, self.samples // BLOCKS))))

    def _reached(self, context: int, corpus: "Corpus | None") -> int:
        """``context``, or the largest power of two that as many documents reach as an interval takes, else the longest does."""
        from contextwise.evaluation.scoring.truncated import power_of_two

        if self.mode != "bands" or corpus is None:
            return context
        longest, *others = *sorted(corpus.lengths[: self.limit].tolist(), reverse=True), 0
        sixth = others[FEWEST_DOCUMENTS - 2] if len(others) >= FEWEST_DOCUMENTS else 0
        reached = sixth if sixth > BLOCKS else longest
        return context if reached > context else power_of_two(max(1, reached - 1))

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
            targets = choose_targets(corpus, self.context, self.samples, self.seed, self.limit, self.block)
            start = corpus.window_start(self.bos)
            sums = truncated_pass(subject.model, corpus, targets, self.contexts, work, start=start, batch_tokens=tokens)
        bins, measures = curve_measures(sums, self.worth)
        summary = {
            "trained_context": trained,
            "rope_factor": factor,
            "documents": len(sums.documents),
            "targets": int(sums.targets) * len(sums.visible),
            "bins": bins,
            "measures": measures,
        }
        return Outcome(summary, {"curve": sums.curve_table(), "documents": sums.documents_table()})

    def _extend_positions(self, subject: Subject) -> float | None:
        """Give the model positions for the longest context; returns the factor of the extension, None without one."""
        from contextwise.models.rope import extend_positions, rotary_modules

        assert self.context is not None
        if rotary_modules(subject.model) or self.rope != "none" or self.rope_factor is not None:
            length = self.context + bool(self.bos)  # the start token has a position of its own
            return extend_positions(subject.model, length, self.rope, self.rope_factor, subject.trained_context)
        limit = subject.positions
        start = " behind a start token" if self.bos else ""
        if limit is not None and self.context + bool(self.bos) > limit:
            raise ConfigError(
                f"a context of {self.context:,} tokens is longer than the {limit:,} positions that {subject.source} has "
                f"learned; give at most {limit - bool(self.bos):,}{start}, or a model with rotary positions"
            )
        return None

    @classmethod
    def table(cls, summary: dict[str, Any]) -> RenderableType:
        settings, documents = summary["settings"], counted(summary["documents"], "document")
        head = f"{summary['model']} on {summary['corpus']['path']}, split {summary['corpus']['split']}: "
        if settings["mode"] == "running":
            head += f"{summary['targets'] // settings['context']:,} windows of {settings['context']:,} tokens in {documents}"
        else:
            contexts = len(summary["bins"])
            head += (
                f"the same {summary['targets'] // contexts:,} targets at {counted(contexts, 'context')}, in {documents}"
            )
            ways = ["bands"] * (settings["mode"] == "bands") + ["a start token before each window"] * settings["bos"]
            head += f" ({', '.join(ways)})" if ways else ""
        if summary["trained_context"]:
            known = "it was trained with" if summary["run"] else "the model has positions for"
            head += f"; {known} {summary['trained_context']:,} tokens"
        if settings["rope"] != "none":
            head += f"; positions extended by {settings['rope']}, factor {written(summary['rope_factor'], 'g')}"
        if summary["documents"] == 1:
            head += f". {ONE_DOCUMENT}"
        elif summary["documents"] < FEWEST_DOCUMENTS:
            more = "documents" if settings["mode"] == "running" else "--samples, or documents that are longer"
            head += f". {FEWEST_DOCUMENTS} documents are the fewest for an interval of the effective context; take more {more}"
        elif _is_wide(summary["measures"]["effective_context"]):
            more = "documents" if settings["mode"] == "running" else "targets (--samples)"
            head += f". More {more} narrow the interval of the effective context"
        return Group(Text(f"{head}."), _bins_table(summary), measures_table(summary))


def _bins_table(summary: dict[str, Any]) -> Table:
    """Loss by visible tokens, and its difference to the longest context, which is paired by document."""
    bins, trained = summary["bins"], summary["trained_context"]
    beyond = any(trained and row["visible_to"] > trained for row in bins)
    rows: list[list[Any]] = []
    for row in bins:
        mark = " *" if trained and row["visible_to"] > trained else "  " if beyond else ""
        difference = minus_longest(row, summary["documents"])
        rows.append([_limits(row) + mark, Estimate(row["loss"], row["low"], row["high"]), difference])
    columns = [
        Column("visible\ntokens", align="right"),
        Column("nats/\ntoken", "estimate", ".4f", interval="own"),
        Column("minus\nlongest", "difference", interval="own"),
    ]
    if summary["settings"]["mode"] == "running":  # in the others they are the same in all
        columns.append(Column("targets", "integer"))
        rows = [[*cells, row["targets"]] for cells, row in zip(rows, bins, strict=True)]
    return Table("", columns, rows, [f"* beyond the training context of {trained:,}"] if beyond else [])


def minus_longest(row: dict[str, Any], documents: int) -> Estimate | None:
    """The loss of a bin minus that of the longest context, with an interval paired by document; None for the longest itself."""
    value, low, high = (row[f"minus_longest{of}"] for of in ("", "_low", "_high"))
    return None if value is None else Estimate(value, low, high, documents=documents)


def measures_table(summary: dict[str, Any], title: str = "") -> Table:
    """Lowest bin, best-context loss, effective context and average, with the bins that each is read from."""
    measures = summary["measures"]
    best, tenth, average = (measures[name] for name in ("lowest_bin", "best_context_loss", "average_loss"))
    effective = measures["effective_context"]

    def loss(values: dict[str, Any]) -> tuple[str, str]:
        estimate = Estimate.from_dict(values)
        return f"{estimate.value:.4f}", estimate.interval("number", NOT_KNOWN)

    rows: list[list[Any]] = [["lowest bin", *loss(best), f"at {_limits(best)} visible"]]
    if tenth is not None:
        rows.append(["best-context loss", *loss(tenth), f"mean of {_limits(tenth)}"])
    last, worth = effective["measured_to"], f"from there a doubling gains < {effective['worth']:g}"
    if effective["value"] is None and last is not None:
        worth = (
            f"from {last:,.0f} a doubling {'gains' if _is_beyond(effective) else 'may gain'} ≥ {effective['worth']:g}"
        )
    if last is None:
        worth = "needs a context and its double"
    rows.append(["effective context", *_effective_cells(effective), worth])
    if average is not None:
        rows.append(["average loss", *loss(average), f"mean of 1–{summary['settings']['context']:,}"])
    return Table(title, ["", "value", "95% interval", Column("", align="left")], rows)


def _effective_cells(effective: dict[str, Any]) -> tuple[str, str]:
    """The effective context and its interval, in tokens; what was not reached is beyond the longest that was measured."""
    first, last = effective["measured_from"], effective["measured_to"]
    if first is None or last is None:
        return NOT_KNOWN, NOT_KNOWN

    def shown(limit: float | None) -> str:
        if limit is None:
            return f"> {last:,.0f}"
        return f"{limit:,.0f}" if limit > max(first, 1) else f"≤ {limit:,.0f}" if first > 1 else "1"

    value, low, high = (effective[name] for name in ("value", "low", "high"))
    if low is None:
        return shown(value), shown(low) if _is_beyond(effective) else NOT_KNOWN
    return shown(value), f"[{shown(low)}, {shown(high)}]"


def _is_beyond(effective: dict[str, Any]) -> bool:
    """Whether the whole interval of the effective context is beyond what was measured."""
    return "method" in effective and effective["low"] is None


def _is_wide(effective: dict[str, Any]) -> bool:
    """Whether the interval of the effective context spans more than a factor of four."""
    low, high = effective["low"], effective["high"]
    return low is not None and (high is None or high > 4 * max(low, 1))


def _limits(values: dict[str, Any]) -> str:
    return visible(values["visible_from"], values["visible_to"])


def visible(low: int, high: int) -> str:
    """A bin of visible tokens."""
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"
