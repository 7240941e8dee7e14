"""Tasks of lm-evaluation-harness, with bounded memory: ``contextwise measure tasks``.

Needs lm-evaluation-harness, the extra ``eval``.
"""

import importlib.util
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, PrivateAttr, field_validator
from rich.console import RenderableType

from contextwise.base.errors import ConfigError, not_installed
from contextwise.evaluation.kernel import InputFile, Measure, Outcome, Subject, Work, content_key

if TYPE_CHECKING:
    from contextwise.data import Corpus
    from contextwise_evals.harness.tasks import Planned


class HarnessTasks(Measure):
    """Measure a model on the tasks of lm-evaluation-harness.

    Prompts, metrics and results are the harness's own. Prints accuracies and perplexities with their standard errors. Tasks in
    which the model generates text are not supported; ask these with lm_eval itself.
    """

    name = "tasks"
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
    context: int | None = Field(
        default=None, ge=1, description="Most positions to use, the harness's max_length; default: all of the model's."
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

    def plan(self) -> list["Planned"]:
        """Plan every task with every number of examples."""
        check_installed()
        from contextwise_evals.harness.tasks import plan_tasks, quiet

        with quiet():
            planned = plan_tasks(self.tasks, self.num_fewshot, self.include_path)
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
        context = subject.positions if self.context is None else subject.context(self.context)
        return self.model_copy(update={"context": context})

    def label(self, corpus: "Corpus | None") -> str:
        return "-".join(self.tasks) if len(self.tasks) <= 3 else f"{len(self.tasks)}-tasks"

    def run(self, subject: Subject, corpus: "Corpus | None", work: Work) -> Outcome:
        planned = self.plan()
        from contextwise_evals.harness.tasks import ask_tasks

        return Outcome(*ask_tasks(subject, planned, self.context, self.limit, work))

    @classmethod
    def table(cls, summary: dict[str, Any]) -> RenderableType:
        from contextwise_evals.harness.tables import tasks_table

        return tasks_table(summary)


def check_installed() -> None:
    """Raise a :class:`ConfigError` where lm-evaluation-harness is not installed."""
    if importlib.util.find_spec("lm_eval") is None:
        raise ConfigError(f"these tasks need lm-evaluation-harness, {not_installed('lm_eval[longbench]')}")
