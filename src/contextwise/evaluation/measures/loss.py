"""Loss, perplexities and bits per byte of held-out documents: ``contextwise evaluate``."""

from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from pydantic import Field, field_validator
from rich.console import Group, RenderableType
from rich.text import Text

from contextwise.base.errors import ConfigError
from contextwise.base.estimates import Estimate
from contextwise.base.progress import progress_bar, say_once
from contextwise.base.tables import Column, Table
from contextwise.data.metadata import check_columns
from contextwise.evaluation.kernel import Measure, Outcome, Result, Subject, Work

if TYPE_CHECKING:
    import pyarrow as pa

    from contextwise.data import Corpus

MEASURES = {
    "loss": "loss (nats per token)",
    "perplexity": "perplexity",
    "word_perplexity": "word perplexity",
    "byte_perplexity": "byte perplexity",
    "bits_per_byte": "bits per byte",
}
PER_TEXT = ("word_perplexity", "byte_perplexity", "bits_per_byte")


class Evaluation(Result):
    """The loss of every token of a corpus, by document and by token."""

    @cached_property
    def documents(self) -> "pa.Table":
        """One row a document, with its ``tokens`` (targets), ``bytes``, ``words``, ``nats`` and whether its text is lost."""
        return self.table_of("documents")

    def tokens(self) -> "pa.Table":
        """One row a scored target: ``document``, ``position``, ``visible``, ``nats``."""
        return self.table_of("tokens")


class Loss(Measure):
    """Score every token of held-out documents.

    Prints loss, perplexities and bits per byte with 95% intervals over documents, and writes them with the loss of each
    document and each token. Each target is predicted from at least ``context - stride`` tokens, or from all before it in its
    document.
    """

    name = "evaluate"
    numbers = "contextwise.evaluation.scoring.windows:TotalsJson"
    version = 5
    result = Evaluation

    context: int | None = Field(
        default=None,
        ge=1,
        description="Tokens of a window; default: the training context, else the model's, up to 1024.",
    )
    stride: int | None = Field(
        default=None,
        ge=1,
        description="Tokens between the starts of two windows: each token is predicted from CONTEXT - STRIDE tokens at "
        "least, or from all that precede it; default: half the context.",
    )
    full_windows: bool = Field(
        default=False,
        description="Let the last window of a document reach back to CONTEXT tokens; with a stride of the whole context, the "
        "totals are those of lm-evaluation-harness's loglikelihood_rolling.",
    )
    limit: int | None = Field(default=None, ge=1, description="Score only the first N documents.")
    metadata: list[str] = Field(
        default=[],
        description="Metadata columns to put before each document, as in training; they are not scored, and take up to a "
        "quarter of the context. Windows that begin later in a document do not see them: the share of the text that does, "
        "and its loss, are printed.",
    )

    @field_validator("metadata")
    @classmethod
    def _different(cls, columns: list[str]) -> list[str]:
        check_columns(columns)
        return columns

    def resolved(self, subject: Subject, corpus: "Corpus | None") -> Self:
        from contextwise.models.prefix import prompt_form

        if (measure := subject.spec.loss_measure) != self.name:
            raise ConfigError(f"{subject.source} does not read whole documents; score it with contextwise {measure}")
        context = subject.context(self.context)
        stride = max(1, context // 2) if self.stride is None else self.stride
        if stride > context:
            raise ConfigError(f"stride is {stride}; it must be between 1 and the context, {context}")
        if self.metadata and prompt_form(subject.config) is not None:
            raise ConfigError(
                f"metadata is given, but {subject.source} reads a prompt as a prefix, and was not trained with metadata in it"
            )
        return self.model_copy(update={"context": context, "stride": stride})

    @property
    def metadata_columns(self) -> list[str]:
        return self.metadata

    def run(self, subject: Subject, corpus: "Corpus | None", work: Work) -> Outcome:
        from contextwise.base.intervals import ratios
        from contextwise.data.metadata import LARGEST_SHARE, DocumentsWithMetadata, MetadataTexts
        from contextwise.evaluation.scoring.windows import documents_table, score_documents, totals

        assert corpus is not None and self.context is not None and self.stride is not None
        read: Any = corpus  # what the windows are cut from
        if self.metadata:
            texts = MetadataTexts(corpus, self.metadata, "prepend", self.context // LARGEST_SHARE, self.limit)
            texts.check_any()
            read = DocumentsWithMetadata(corpus, texts, np.ones(len(texts.lengths), bool))
        tokens = int(np.sum(read.lengths[: self.limit]))
        with progress_bar(f"evaluate {subject.name}", tokens, "tokens") as advance:
            options: dict[str, Any] = {"full_windows": self.full_windows, "limit": self.limit}
            options |= {"batch_tokens": subject.batch_tokens, "on_progress": advance}
            scores = score_documents(subject.model, read, self.context, self.stride, **options)
        summary: dict[str, Any] = {"first_token_scored": scores.first_position == 0, "metadata_cut": 0}
        summary |= {"conditioned_share": None, "conditioned_loss": None}
        tokens_table = scores.table()
        if self.metadata:
            _note_other_training(subject, self.metadata)
            scores = scores.behind(texts.lengths)
            sees = scores.conditioned(texts.lengths)
            tokens_table = scores.table().append_column("conditioned", [sees])
            nats_D, counts_D = scores.document_sums(scores.nats * sees), scores.document_sums(sees)
            loss = ratios(nats_D[counts_D > 0], {"loss": counts_D[counts_D > 0]})["loss"]
            summary |= {"metadata_cut": texts.cut, "conditioned_share": float(sees.mean())}
            summary["conditioned_loss"] = loss.to_dict()
        documents = documents_table(corpus, scores)
        return Outcome(summary | totals(documents), {"documents": documents, "tokens": tokens_table})

    @classmethod
    def table(cls, summary: dict[str, Any]) -> RenderableType:
        context, stride = summary["settings"]["context"], summary["settings"]["stride"]
        heading = (
            f"{summary['model']} on {summary['label']}: {summary['documents']:,} documents, "
            f"{summary['tokens']:,} tokens; windows of {context:,}, stride {stride:,}: "
            f"each token is predicted from {context - stride:,} tokens or more, or from all before it in its document."
        )
        if not summary["first_token_scored"]:
            heading += " The corpus has no end-of-text token, so the first token of each document is not scored."
        if columns := summary["settings"]["metadata"]:
            heading += f" Each document begins with its metadata ({', '.join(columns)}), which are not scored"
            heading += f", cut in {summary['metadata_cut']:,} of them." if summary["metadata_cut"] else "."
            heading += f" {conditioned_sentence(summary['conditioned_share'])}"
        heading += lost_note(summary)
        if summary["documents"] == 1:
            heading += " One document allows no interval."
        measures = MEASURES
        if (summary["conditioned_share"] or 1) < 1:
            measures = MEASURES | {"conditioned_loss": "loss with the metadata in view"}
        return Group(Text(heading), evaluation_table(summary, measures))


def _note_other_training(subject: Subject, columns: list[str]) -> None:
    """Say so if the run's training had metadata in another form than the columns before the text."""
    trained = None if subject.run is None else (subject.run.recipe().get("data") or {}).get("metadata")
    if trained and (trained["columns"], trained.get("form", "prepend")) != (columns, "prepend"):
        where = "before" if trained.get("form", "prepend") == "prepend" else "behind"
        say_once(
            f"note: {subject.source} was trained with {', '.join(trained['columns'])} {where} the text, and is given "
            f"{', '.join(columns)} before it"
        )


def conditioned_sentence(share: float) -> str:
    """How much of the scored text sees its document's metadata."""
    if share == 1:
        return "All of the text's tokens are predicted with it in view."
    return (
        f"{share:.1%} of the text's tokens are predicted with it in view; the others are in documents that have none, or too "
        "late in a document for a window that begins with it."
    )


def lost_note(summary: dict[str, Any]) -> str:
    """Note on figures per byte and word whose documents have lost or unknown texts; empty if all texts are held."""
    lost, documents = summary.get("lost_texts"), summary["documents"]
    if lost is None:
        return " The corpus does not say which text its tokens hold, so there is no figure per byte or word."
    if lost == documents:
        return " No figure per byte or word is given: the tokenizer loses text, and the tokens of no document decode to it."
    if lost:
        return (
            f" Figures per byte and word leave out {lost:,} of the documents, whose tokens do not decode to their text: the "
            "tokenizer loses some."
        )
    return ""


def evaluation_table(
    summary: dict[str, Any], measures: dict[str, str] = MEASURES, title: str = "", known_only: bool = False
) -> Table:
    """Build a table of the measures of an evaluation; a figure per byte or word says if it leaves out documents.

    Args:
        measures: key in the summary -> name of its row.
        known_only: omit unknown measures.
    """
    rows: list[list[Any]] = []
    for key, name in measures.items():
        known = summary[key] is not None and summary[key]["value"] is not None
        if summary.get("lost_texts") and key in PER_TEXT:
            name += f" ({summary['documents'] - summary['lost_texts']:,} documents)"
        if known or not known_only:
            rows.append([name, Estimate.from_dict(summary[key]) if known else None])
    return Table(title, ["", Column("value", "estimate", interval="own")], rows)
