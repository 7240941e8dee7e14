"""Ranking of candidate sentences (n-best lists) by a sentence model, given their contexts: ``contextwise measure rescore``."""

from typing import TYPE_CHECKING, Any

from pydantic import Field
from rich.console import RenderableType
from rich.text import Text

from contextwise.base.estimates import counted
from contextwise.base.tables import Column, Table, terminal
from contextwise.evaluation.kernel import InputFile, Measure, Outcome, Result, Subject, Work

if TYPE_CHECKING:
    from contextwise.data import Corpus


class RankedLists(Result):
    """Ranked lists of candidates."""

    @property
    def lists(self) -> list[dict[str, Any]]:
        """``id`` (if it has one) and ``ranked`` of each line of the file; the best candidate is first."""
        return self.rows_of("ranked")


class Rescore(Measure):
    """Rank the candidates of each line of a file by their log-probability.

    A line holds candidates for one sentence, such as the n-best list of a speech recognizer, and what is known around it:
    contexts, which a CUE model uses and other models ignore.
    """

    name = "rescore"
    version = 2
    on_corpus = False
    gives_contexts = True
    result = RankedLists

    file: InputFile = Field(description="JSON Lines (.gz too) with lists of candidates.")
    weight: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="Share of the model in what is ranked by; the rest are the candidates' own scores.",
    )

    def label(self, corpus: "Corpus | None") -> str:
        return self.file.name.removesuffix(".gz").rpartition(".")[0] or self.file.name

    def run(self, subject: Subject, corpus: "Corpus | None", work: Work) -> Outcome:
        from contextwise_papers.cue.ranking import rank_file

        rows, summary = rank_file(subject, self.file, self.weight, work)
        return Outcome(summary, {"ranked": rows})

    @classmethod
    def table(cls, summary: dict[str, Any]) -> RenderableType:
        lists = summary["lists"]
        contexts = f" ({summary['with_contexts']:,} with contexts)" if summary["takes_contexts"] else ""
        heading = (
            f"{summary['model']}: {summary['candidates']:,} candidates in {counted(lists, 'list')}{contexts}. "
            f"In {summary['changed']:,} of them the best is not the one that stood first."
        )
        numbers = Column("log P", "estimate", ".2f"), Column("per token", "estimate", ".3f")
        columns: list[Column | str] = ["list", Column("was", "integer"), *numbers, Column("best", align="left")]
        rows = []
        for best in summary["best"]:
            name, text = _cut(str(best["id"]), 16), _cut(" ".join(best["text"].split()), 30)
            rows.append([name, best["index"] + 1, best["log_probability"], best["per_token"], text])
        shown = len(rows)
        further = [f"and {counted(lists - shown, 'more list')}"] if lists > shown else []
        return terminal(Text(heading), Table("", columns, rows), *further)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
