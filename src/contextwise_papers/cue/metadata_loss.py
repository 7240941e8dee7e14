"""Loss of held-out documents given their metadata: ``contextwise measure evaluate-metadata``."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from pydantic import Field
from rich.console import Group, RenderableType
from rich.text import Text

from contextwise.evaluation.measures.loss import MEASURES, evaluation_table, heading
from contextwise.measures import Loss, Outcome, Subject, Work
from contextwise.settings import ConfigError
from contextwise_papers.cue.metadata_texts import LARGEST_SHARE, Columns, DocumentsWithMetadata, MetadataTexts

if TYPE_CHECKING:
    from contextwise.data import Corpus
    from contextwise.evaluation.scoring.scores import Scores


class MetadataLoss(Loss):
    """Score every token of held-out documents, with metadata once before each document, as in training.

    The metadata are not scored, and take up to a quarter of the context. Windows that begin later in a document do not see
    them.
    """

    name = "evaluate-metadata"
    version = 1
    compared = (*Loss.compared, "metadata")

    metadata: Columns = Field(min_length=1, description="Metadata columns of the corpus, separated by commas.")

    def resolved(self, subject: Subject, corpus: "Corpus | None") -> Self:
        from contextwise.models.prefix import reads_prefix

        if reads_prefix(subject.config):
            raise ConfigError(
                f"metadata is given, but {subject.source} reads a prompt as a prefix, and was not trained with metadata in it"
            )
        return super().resolved(subject, corpus)

    @property
    def metadata_columns(self) -> list[str]:
        return self.metadata

    def run(self, subject: Subject, corpus: "Corpus | None", work: Work) -> Outcome:
        assert corpus is not None and self.context is not None
        texts = MetadataTexts(corpus, self.metadata, "prepend", self.context // LARGEST_SHARE, self.limit)
        texts.check_any()
        read = DocumentsWithMetadata(corpus, texts, np.ones(len(texts.lengths), bool))
        scores = behind(self.score(subject, read, work), texts.lengths)
        outcome = self.outcome(corpus, scores)
        return Outcome(outcome.summary | {"metadata_cut": texts.cut}, outcome.files)

    @classmethod
    def remark(cls, summary: dict[str, Any]) -> str:
        return "scored with metadata before each document."

    @classmethod
    def table(cls, summary: dict[str, Any]) -> RenderableType:
        columns = ", ".join(summary["settings"]["metadata"])
        further = f" Each document begins with its metadata ({columns}), which are not scored"
        further += f", cut in {summary['metadata_cut']:,} of them." if summary["metadata_cut"] else "."
        return Group(Text(heading(summary, further)), evaluation_table(summary, MEASURES))


def behind(scores: "Scores", tokens_D: np.ndarray) -> "Scores":
    """The scores without those of the first tokens of each document."""
    from contextwise.evaluation.scoring.scores import numbered

    kept = numbered(scores.targets) >= np.repeat(tokens_D, scores.targets)
    targets = np.maximum(scores.targets - tokens_D, 0)
    return replace(scores, targets=targets, nats=scores.nats[kept], visible=scores.visible[kept])
