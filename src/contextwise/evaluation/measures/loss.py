"""Loss, perplexities and bits per byte of held-out documents: ``contextwise evaluate``."""

from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import Field
from rich.console import Group, RenderableType
from rich.text import Text

from contextwise.base.errors import ConfigError
from contextwise.base.estimates import Estimate, counted
from contextwise.base.progress import progress_bar
from contextwise.base.tables import Column, Table
from contextwise.evaluation.kernel import Measure, Outcome, Result, Subject, Work

if TYPE_CHECKING:
    import pyarrow as pa

    from contextwise.data import Corpus
    from contextwise.evaluation.scoring.scores import Scores

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

    @property
    def measures(self) -> dict[str, dict[str, Any] | None]:
        """``loss``, ``perplexity``, ``word_perplexity``, ``byte_perplexity`` and ``bits_per_byte``, each with its interval.

        None where the corpus does not hold what a figure needs.
        """
        return {name: self.summary[name] for name in MEASURES}

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
    version = 5
    result = Evaluation
    compared: ClassVar[tuple[str, ...]] = ("context", "stride", "full_windows")

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
        "totals are those of lm-evaluation-harness's loglikelihood_rolling, without a second start token.",
    )
    limit: int | None = Field(default=None, ge=1, description="Score only the first N documents.")

    def resolved(self, subject: Subject, corpus: "Corpus | None") -> Self:
        if (measure := subject.spec.loss_measure) != Loss.name:
            raise ConfigError(
                f"{subject.source} does not read whole documents; score it with contextwise measure {measure}"
            )
        context = subject.context(self.context)
        stride = max(1, context // 2) if self.stride is None else self.stride
        if stride > context:
            raise ConfigError(f"stride is {stride}; it must be between 1 and the context, {context}")
        return self.model_copy(update={"context": context, "stride": stride})

    def run(self, subject: Subject, corpus: "Corpus | None", work: Work) -> Outcome:
        assert corpus is not None
        return self.outcome(corpus, self.score(subject, corpus, work))

    def score(self, subject: Subject, documents: Any, work: Work) -> "Scores":
        """Score the documents of a corpus, or others that are made from them."""
        from contextwise.evaluation.scoring.windows import score_documents

        assert self.context is not None and self.stride is not None
        with progress_bar(f"evaluate {subject.name}", int(documents.lengths[: self.limit].sum()), "tokens") as advance:
            options: dict[str, Any] = {"full_windows": self.full_windows, "limit": self.limit}
            options |= {"batch_tokens": subject.batch_tokens, "on_progress": advance, "work": work}
            return score_documents(subject.model, documents, self.context, self.stride, **options)

    @staticmethod
    def outcome(corpus: "Corpus", scores: "Scores") -> Outcome:
        """Totals and tables of the scores of a corpus's documents."""
        from contextwise.evaluation.scoring.scores import documents_table, totals

        documents = documents_table(corpus, scores)
        summary = {"first_token_scored": scores.first_position == 0, **totals(documents)}
        return Outcome(summary, {"documents": documents, "tokens": scores.table()})

    @classmethod
    def table(cls, summary: dict[str, Any]) -> RenderableType:
        return Group(Text(heading(summary)), evaluation_table(summary))


ONE_DOCUMENT = "One document allows no interval: a text as --corpus paragraphs:FILE is cut at its blank lines"


def heading(summary: dict[str, Any], further: str = "") -> str:
    """The documents of an evaluation, and how they were scored; ``further`` are sentences of another measure."""
    context, stride = summary["settings"]["context"], summary["settings"]["stride"]
    text = (
        f"{summary['model']} on {summary['label']}: {counted(summary['documents'], 'document')}, "
        f"{summary['tokens']:,} tokens; windows of {context:,}, stride {stride:,}: "
        f"each token is predicted from {context - stride:,} tokens or more, or from all before it in its document."
    )
    if not summary["first_token_scored"]:
        text += " The corpus has no end-of-text token, so the first token of each document is not scored."
    text += further + lost_note(summary)
    if (summary["loss"]["low"] or 0) < 0:
        text += (
            " No loss is below zero: where its interval is, the documents are too few, or one holds most of the text."
        )
    return text + (f" {ONE_DOCUMENT}." if summary["documents"] == 1 else "")


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


def evaluation_table(summary: dict[str, Any], measures: dict[str, str] = MEASURES) -> Table:
    """Build a table of the measures of an evaluation; a figure per byte or word says if it leaves out documents.

    ``measures`` maps keys of the summary to names of rows.
    """
    rows: list[list[Any]] = []
    for key, name in measures.items():
        known = summary[key] is not None and summary[key]["value"] is not None
        if summary.get("lost_texts") and key in PER_TEXT:
            name += f" ({summary['documents'] - summary['lost_texts']:,} documents)"
        rows.append([name, Estimate.from_dict(summary[key]) if known else None])
    return Table("", ["", Column("value", "estimate", interval="own")], rows)
