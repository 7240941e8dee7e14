"""Measurement of infilling on holes with known middles: ``contextwise measure infill``."""

from typing import TYPE_CHECKING, Any, Self

from pydantic import Field
from rich.console import Group, RenderableType
from rich.text import Text

from contextwise.evaluation.measures.loss import evaluation_table
from contextwise.measures import InputFile, Measure, Outcome, Subject, Work

if TYPE_CHECKING:
    from contextwise.data import Corpus


class Infill(Measure):
    """Fill holes with known middles, and score the texts that a model writes there.

    The holes are one line of each document of a prepared corpus or of JSON Lines with ``text``, or the tasks of a file in the
    form of HumanEval-infilling. Prints exact match (without white space at the end) and edit similarity (1 - characters to
    delete and insert / characters of both), with 95% intervals over documents. Texts are compared; no code is executed.
    """

    name = "infill"
    on_corpus = False
    model_types = ("decoder", "encoder-decoder")

    file: InputFile = Field(description="A prepared corpus, or JSON Lines of documents or of tasks.")
    split: str = Field(default="validation", description="Which documents of a corpus.")
    seed: int = Field(default=0, ge=0, description="Of the choice of lines.")
    spm: bool = Field(default=False, description="Ask a decoder in the order suffix, prefix, middle, instead of PSM.")
    max_new_tokens: int = Field(default=64, ge=1, description="Most tokens of a middle.")
    context: int | None = Field(
        default=None, ge=1, description="Positions to use; default: the training context, else all that the model has."
    )
    limit: int | None = Field(default=None, ge=1, description="Take the holes of the first N documents only.")

    def identity(self) -> dict[str, Any]:
        from contextwise_papers.objectives.infill.tasks import fingerprint

        return self.model_dump(mode="json") | {"file": fingerprint(self.file, self.split)}

    def label(self, corpus: "Corpus | None") -> str:
        from contextwise_papers.objectives.infill.tasks import tasks_label

        return tasks_label(self.file, self.split)

    def resolved(self, subject: Subject, corpus: "Corpus | None") -> Self:
        return self.model_copy(update={"context": self.context or subject.run_context})

    def run(self, subject: Subject, corpus: "Corpus | None", work: Work) -> Outcome:
        from contextwise_papers.objectives.infill.filling import Infiller, filling_objective
        from contextwise_papers.objectives.infill.tasks import fill, open_tasks, scores

        holes = open_tasks(self.file, self.split, self.seed, self.limit)
        options = self.model_dump(include={"spm", "max_new_tokens", "context"})
        objective = filling_objective(subject)
        infiller = Infiller(subject.model, subject.tokenizer, objective=objective, **options)
        prompts = [infiller.prompt(task.prefix, task.suffix) for task in holes.tasks]
        fillings = fill(infiller, prompts, subject.batch_tokens, work, f"infill {subject.name}")
        seen = ["the run was trained on these very documents; they are not held out"]
        summary, rows = scores(holes.tasks, fillings)
        about = {
            "data": holes.source,
            "form": infiller.form.name,
            "max_new_tokens": infiller.new_tokens,
            "room": infiller.room,
            "shortened": sum(any(prompt.dropped) for prompt in prompts),
            "notes": [*(seen if subject.trained_on(holes.source["fingerprint"]) else []), *holes.notes],
        }
        return Outcome(about | summary, {"holes": rows})

    @classmethod
    def table(cls, summary: dict[str, Any]) -> RenderableType:
        from contextwise_papers.objectives.infill.tasks import SCORES

        parts = [
            f"{summary['model']} on {summary['label']}: {summary['holes']:,} holes in {summary['documents']:,} documents, "
            f"prompted as {summary['form']}, filled with the likeliest tokens, {summary['max_new_tokens']:,} at most."
        ]
        if shortened := summary["shortened"]:
            parts.append(
                f"In {shortened:,} the text did not fit, and the {summary['room']:,} tokens around the hole were read."
            )
        if summary["unfinished"]:
            parts.append(f"{summary['unfinished']:,} middles did not end.")
        parts += [f"{note[0].upper()}{note[1:]}." for note in summary["notes"]]
        if summary["documents"] == 1:
            parts.append("One document allows no interval.")
        return Group(Text(" ".join(parts)), evaluation_table(summary, SCORES))
