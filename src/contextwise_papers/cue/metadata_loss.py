"""Loss of held-out documents given their metadata: ``contextwise measure evaluate-metadata``."""

from typing import TYPE_CHECKING, Any, Self

import numpy as np
from pydantic import Field, field_validator
from rich.console import Group, RenderableType
from rich.text import Text

from contextwise.base.errors import ConfigError
from contextwise.evaluation.kernel import Outcome, Subject, Work
from contextwise.evaluation.measures.loss import MEASURES, Loss, evaluation_table, heading
from contextwise_papers.cue.metadata_texts import LARGEST_SHARE, DocumentsWithMetadata, MetadataTexts, check_columns

if TYPE_CHECKING:
    from contextwise.data import Corpus


class MetadataLoss(Loss):
    """Score every token of held-out documents, with metadata once before each document, as in training.

    The metadata are not scored, and take up to a quarter of the context. Windows that begin later in a document do not see
    them: the share of the text that does, and its loss, are printed.
    """

    name = "evaluate-metadata"
    version = 1
    compared = (*Loss.compared, "metadata")

    metadata: list[str] = Field(min_length=1, description="Metadata columns of the corpus, separated by commas.")

    @field_validator("metadata")
    @classmethod
    def _different(cls, columns: list[str]) -> list[str]:
        check_columns(columns)
        return columns

    def resolved(self, subject: Subject, corpus: "Corpus | None") -> Self:
        from contextwise.models.prefix import prompt_form

        if prompt_form(subject.config) is not None:
            raise ConfigError(
                f"metadata is given, but {subject.source} reads a prompt as a prefix, and was not trained with metadata in it"
            )
        return super().resolved(subject, corpus)

    @property
    def metadata_columns(self) -> list[str]:
        return self.metadata

    def run(self, subject: Subject, corpus: "Corpus | None", work: Work) -> Outcome:
        from contextwise.base.intervals import ratios
        from contextwise_papers.cue.metadata_scores import behind, conditioned

        assert corpus is not None and self.context is not None
        texts = MetadataTexts(corpus, self.metadata, "prepend", self.context // LARGEST_SHARE, self.limit)
        texts.check_any()
        read = DocumentsWithMetadata(corpus, texts, np.ones(len(texts.lengths), bool))
        scores = behind(self.score(subject, read, work), texts.lengths)
        sees = conditioned(scores, texts.lengths)
        nats_D, counts_D = scores.document_sums(scores.nats * sees), scores.document_sums(sees)
        loss = ratios(nats_D[counts_D > 0], {"loss": counts_D[counts_D > 0]})["loss"]
        outcome = self.outcome(corpus, scores)
        summary = {
            "metadata_cut": texts.cut,
            "conditioned_share": float(sees.mean()),
            "conditioned_loss": loss.to_dict(),
        }
        tokens = outcome.files["tokens"].append_column("conditioned", [sees])
        return Outcome(outcome.summary | summary, {**outcome.files, "tokens": tokens})

    @classmethod
    def remark(cls, summary: dict[str, Any]) -> str:
        return f"scored with metadata before each document. {_in_view(summary)}"

    @classmethod
    def table(cls, summary: dict[str, Any]) -> RenderableType:
        columns = ", ".join(summary["settings"]["metadata"])
        further = f" Each document begins with its metadata ({columns}), which are not scored"
        further += f", cut in {summary['metadata_cut']:,} of them." if summary["metadata_cut"] else "."
        known = {"conditioned_loss": "loss with the metadata in view"} if summary["conditioned_share"] < 1 else {}
        text = heading(summary, f"{further} {_in_view(summary)}")
        return Group(Text(text), evaluation_table(summary, MEASURES | known))


def _in_view(summary: dict[str, Any]) -> str:
    """How much of the scored text sees its document's metadata."""
    if summary["conditioned_share"] == 1:
        return "All of the text's tokens are predicted with it in view."
    return (
        f"{summary['conditioned_share']:.1%} of the text's tokens are predicted with it in view; the others are in documents "
        "that have none, or too late in a document for a window that begins with it."
    )
