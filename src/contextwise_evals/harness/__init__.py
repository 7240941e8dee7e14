"""Tasks of lm-evaluation-harness, with bounded memory: ``contextwise measure tasks``.

Needs lm-evaluation-harness, the extra ``eval``.
"""

import importlib.util
import re
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, PrivateAttr, field_validator, model_validator
from rich.console import RenderableType
from rich.text import Text

from contextwise.evaluation.kernel import content_key
from contextwise.measures import InputFile, Measure, Outcome, Subject, Work
from contextwise.report import Column, Row, Table, terminal
from contextwise.settings import ConfigError, not_installed

if TYPE_CHECKING:
    from contextwise.data import Corpus
    from contextwise_evals.harness.tasks import Planned


class HarnessTasks(Measure):
    """Measure a model on the tasks of lm-evaluation-harness.

    Prompts, metrics and results are the harness's own; prints its measures with their standard errors. Generated answers are
    greedy. With several contexts, each task is measured at each; they may exceed the training context (rope).
    """

    name = "tasks"
    changes_model = True
    on_corpus = False

    tasks: list[str] = Field(
        min_length=1, description="The harness's names, separated by commas; a tag selects all its tasks."
    )
    num_fewshot: list[Annotated[int, Field(ge=0, le=100)]] = Field(
        default=[0], min_length=1, description="Examples before each question; each task is measured with each number."
    )
    include_path: InputFile | None = Field(
        default=None, description="Folder of the harness's YAML files for tasks of yours or for local files."
    )
    limit: int | None = Field(default=None, ge=1, description="Ask only the first N documents of each task.")
    lengths: str | None = Field(
        default=None,
        description="Words of a text, from-below, such as 0-4000 or 8000-: ask only documents whose field length (as in "
        "LongBench) is in the range; default: any.",
    )
    context: list[Annotated[int, Field(ge=1)]] | None = Field(
        default=None,
        min_length=1,
        description="Most positions to use, the harness's max_length; each task is measured with each; default: all of the "
        "model's.",
    )
    rope: Literal["none", "linear", "dynamic", "yarn"] | None = Field(
        default=None,
        description="How rotary positions are extended beyond the training context; none: as they are; default: a longer "
        "context is refused.",
    )
    rope_factor: float | None = Field(
        default=None,
        ge=1,
        description="Factor of the extension; default: the longest context over the training context.",
    )
    _sets: list[Any] | None = PrivateAttr(None)

    @field_validator("tasks")
    @classmethod
    def _distinct(cls, tasks: list[str]) -> list[str]:
        if not all(tasks):
            raise ConfigError("a name is empty: there is a comma too many")
        return list(dict.fromkeys(tasks))

    @field_validator("num_fewshot")
    @classmethod
    def _ascending(cls, counts: list[int]) -> list[int]:
        return sorted(set(counts))

    @field_validator("lengths")
    @classmethod
    def _range(cls, lengths: str | None) -> str | None:
        if lengths is not None:
            read_range(lengths)
        return lengths

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.rope is None and self.rope_factor is not None:
            raise ConfigError("rope_factor is given without `rope`; give a method too, such as dynamic")
        if self.rope is not None and self.context is None:
            raise ConfigError("`rope` lets a model read beyond its positions; give `context` too, such as 512,1024")
        return self

    def plan(self) -> list["Planned"]:
        """Plan every task with every number of examples."""
        lengths = None if self.lengths is None else read_range(self.lengths)
        check_installed()
        from contextwise_evals.harness.tasks import plan_tasks, quiet

        with quiet():
            planned = plan_tasks(self.tasks, self.num_fewshot, self.include_path, lengths)
            if self.include_path is not None:
                self._sets = [[task.name, task.shots, task.content] for task in planned]
        return planned

    def identity(self) -> dict[str, Any]:
        settings = self.model_dump(mode="json")
        if self.include_path is None:
            return settings
        if self._sets is None:
            self.plan()
        return settings | {"include_path": content_key(sets=self._sets)}

    def resolved(self, subject: Subject, corpus: "Corpus | None") -> Self:
        contexts = [subject.positions] if self.context is None else sorted(set(self.context))
        if self.rope is None and self.context is not None:
            subject.context(contexts[-1])
        return self.model_copy(update={"context": None if contexts == [None] else contexts})

    def label(self, corpus: "Corpus | None") -> str:
        return "-".join(self.tasks) if len(self.tasks) <= 3 else f"{len(self.tasks)}-tasks"

    def run(self, subject: Subject, corpus: "Corpus | None", work: Work) -> Outcome:
        planned = self.plan()
        from contextwise.models.rope import extend_positions
        from contextwise_evals.harness.tasks import ask_tasks

        contexts: list[int | None] = [None] if self.context is None else [*self.context]
        factor = None
        if self.rope is not None:
            assert self.context is not None
            longest, trained = max(self.context), subject.trained_context
            factor = extend_positions(subject.model, longest, self.rope, self.rope_factor, trained)
        summary, files = ask_tasks(subject, planned, contexts, self.limit, work)
        return Outcome({"rope_factor": factor, "trained_context": subject.trained_context, **summary}, files)

    @classmethod
    def table(cls, summary: dict[str, Any]) -> RenderableType:
        settings = summary["settings"]
        limit = "" if settings["limit"] is None else f", the first {settings['limit']:,} documents of each"
        factor = summary["rope_factor"]
        extended = "" if factor is None else f", extended by {settings['rope']} {factor:.3g}"
        positions = f"{summary['positions']:,} positions{extended}"
        heading = f"{summary['model']}, {summary['parameters']:,} parameters, {positions}{limit}"
        rows: list[Row] = []
        for row in summary["rows"]:
            for name, measured in row["measures"].items():
                about = (row["task"], row["shots_used"], row["context"], row["documents"])
                rows.append(Row([*about, name, measured["value"], measured["stderr"]]))
        for average in summary["averages"]:
            name = f"Avg of {len(average['tasks'])}"
            rows.append(Row([name, average["shots"], average["context"], "", "acc", average["acc"], ""], bold=True))
        counts = (Column(name, "integer") for name in ("shots", "context", "docs"))
        figures = (Column("value", "estimate", ".4g", missing="not finite"), Column("stderr", "estimate", ".2g"))
        columns: list[Column | str] = ["task", *counts, Column("measure", align="left"), *figures]
        notes = [f"Note: {note}." for note in summary["notes"]]
        return terminal(Text(heading), Table("", columns, rows), *notes)


def read_range(text: str) -> tuple[int, int | None]:
    """``0-4000`` or ``8000-``: the least number of words, and the number below which they are; ConfigError for all else."""
    match = re.fullmatch(r"(\d+)-(\d*)", text.strip())
    low, high = (int(match[1]), int(match[2]) if match[2] else None) if match else (0, 0)
    if high is not None and high <= low:
        raise ConfigError(f"lengths is {text!r}; give words from-below, such as 0-4000, or 8000- for no limit")
    return low, high


def check_installed() -> None:
    """Raise a :class:`ConfigError` where lm-evaluation-harness is not installed."""
    if importlib.util.find_spec("lm_eval") is None:
        raise ConfigError(f"these tasks need lm-evaluation-harness, {not_installed('lm_eval[longbench]')}")
