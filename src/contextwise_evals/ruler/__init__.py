"""Position-weighted RULER: accuracy on questions about long texts at every visible context: ``contextwise measure ruler``.

Intrinsic entropy, Appendix A: the position of the answer is drawn by P(x) ∝ (1 - x/L)^γ, the model sees only the
nearest part of the text, and the accuracy against that part's size may have an optimum.
"""

from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from pydantic import Field, model_validator
from rich.console import Group, RenderableType
from rich.text import Text

from contextwise.base.progress import interruption
from contextwise.measures import InputFile, Measure, Outcome, Subject, Work
from contextwise.report import Column, Table, progress_bar, terminal
from contextwise.settings import ConfigError
from contextwise.stats import Estimate

if TYPE_CHECKING:
    from contextwise.data import Corpus
    from contextwise_evals.answering.prompts import Encoded, Encoder
    from contextwise_evals.ruler.questions import Task

TaskName = Literal["qa_1", "fwe", "cwe", "vt"]
TASKS: tuple[TaskName, ...] = get_args(TaskName)
LONGEST = 2**24
"""Tokens of the longest text that is made: no model has read more, and a typing error would fill the memory."""
FRACTIONS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4, 1)
"""Visible contexts by default, as shares of the length."""
COLUMNS = (
    Column("visible", "integer", align="right"),
    Column("accuracy", "estimate", interval="own"),
    Column("in view", "percent"),
    Column("best in", "percent"),
)


class Ruler(Measure):
    """Ask questions about long texts, with more and more of the text visible.

    Position-weighted RULER: documents and a question on one of them (qa_1), frequent and common words (fwe, cwe), variable
    tracking (vt). Prints the accuracy at each visible context, and the best one with the share of resamples in which it is the
    best. A stopped measurement resumes.
    """

    name = "ruler"
    version = 5
    on_corpus = False

    tasks: list[TaskName] | None = Field(
        default=None, min_length=1, description="Of qa_1, fwe, cwe, vt; default: all, qa_1 if QA is given."
    )
    qa: InputFile | None = Field(
        default=None, description="Questions of qa_1: JSON Lines with the Hub's fields of SQuAD; default: none."
    )
    length: int = Field(
        default=4096, ge=1, le=LONGEST, description="Tokens of a text, at most, by the model's own tokenizer."
    )
    visible: list[int] | None = Field(
        default=None,
        min_length=1,
        description="Visible contexts: the nearest tokens of the text; default: 1/16 to all of the length.",
    )
    gamma: float = Field(
        default=0.0, ge=0, description="γ of the law of positions, P(x) ~ (1 - x/LENGTH)^γ; 0: all are equally likely."
    )
    samples: int = Field(default=100, ge=1, description="Questions of each task.")
    seed: int = Field(default=0, ge=0, description="Of texts, questions and positions.")
    chat: bool = Field(default=False, description="Ask through the model's chat template.")
    example: bool = Field(default=True, description="Put a worked example before the questions of vt and cwe.")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.tasks is not None:
            if "qa_1" in self.tasks and self.qa is None:
                raise ConfigError("the task 'qa_1' needs questions; give a file in SQuAD's form as `qa`")
            if "qa_1" not in self.tasks and self.qa is not None:
                raise ConfigError("qa is given, but not the task 'qa_1'; leave one out, or give the other")
        if self.visible and min(self.visible) < 1:
            raise ConfigError(f"a visible context is {min(self.visible)}, but must be at least 1")
        if self.visible and max(self.visible) > self.length:
            raise ConfigError(
                f"a visible context is {max(self.visible)}, but the texts have only {self.length} tokens; "
                "give smaller ones, or a greater length"
            )
        return self

    def resolved(self, subject: Subject, corpus: "Corpus | None") -> Self:
        tasks = self.tasks or [task for task in TASKS if task != "qa_1" or self.qa is not None]
        visible = self.visible or [max(1, int(self.length * part)) for part in FRACTIONS]
        return self.model_copy(update={"tasks": list(dict.fromkeys(tasks)), "visible": sorted(set(visible))})

    def label(self, corpus: "Corpus | None") -> str:
        return f"{self.length}-gamma-{self.gamma:g}"

    def run(self, subject: Subject, corpus: "Corpus | None", work: Work) -> Outcome:
        """Ask every question at every visible context, and score the answers.

        1. Each task makes its questions, and the model's tokenizer makes token ids of them.
        2. Every question is answered at every visible context.
        3. The answers become accuracies and a best visible context; ``answers.jsonl`` has one line a question.
        """
        from contextwise.models.rope import same_frequencies_up_to
        from contextwise_evals.answering import prompts
        from contextwise_evals.answering.readers import ModelReader
        from contextwise_evals.ruler.results import task_results

        assert self.visible is not None
        encoder = prompts.Encoder(subject.tokenizer, self.chat, subject.source)
        tasks, notes = self.make_tasks(encoder)
        questions = self.encode(tasks, encoder)
        new_tokens = {task.name: task.new_tokens for task in tasks}
        named = [
            (f"a question of {name}", question, new_tokens[name])
            for name, encoded in questions.items()
            for question in encoded
        ]
        example = ", or leave out the example" if self.example and {"vt", "cwe"} & set(questions) else ""
        prompts.check_vocabulary(subject, [question for _, question, _ in named])
        prompts.check_positions(subject, named, self.visible[-1], example)
        answers = prompts.answer_all(
            ModelReader(subject.model, subject.tokenizer),
            questions,
            new_tokens,
            self.visible,
            work,
            batch_tokens=subject.batch_tokens,
            mixed_up_to=same_frequencies_up_to(subject.model),
            title=f"ruler {subject.name}",
        )
        results: dict[str, Any] = {}
        rows: list[dict[str, Any]] = []
        for task in tasks:
            results[task.name], answered = task_results(task, questions[task.name], self.visible, answers)
            rows += answered
        return Outcome({"results": results, "notes": notes}, {"answers": rows})

    def make_tasks(self, encoder: "Encoder") -> "tuple[list[Task], list[str]]":
        """The tasks, and notes for a reader of their figures."""
        from contextwise_evals.ruler import tasks as made
        from contextwise_evals.ruler.documents import DocumentQA
        from contextwise_evals.ruler.questions import Size

        size = Size(self.length, self.gamma, encoder.count, self.seed)
        tasks: list[Task] = []
        notes: list[str] = []
        for name in self.tasks or ():
            if name == "qa_1" and self.qa is not None:
                passages = DocumentQA(self.qa, size)
                if passages.left_out:
                    notes.append(
                        f"{passages.left_out:,} questions of {self.qa} were left out: their paragraph is longer than the text"
                    )
                if self.samples > len(passages.questions):
                    notes.append(
                        f"the {len(passages.questions):,} questions of {self.qa} are asked more than once, in other texts"
                    )
                tasks.append(passages)
            elif name == "fwe":
                tasks.append(made.FrequentWords(size))
            else:
                kind = made.CommonWords if name == "cwe" else made.VariableTracking
                tasks.append(kind(size, self.example))
        return tasks, notes

    def encode(self, tasks: "list[Task]", encoder: "Encoder") -> "dict[str, list[Encoded]]":
        """Task name -> its questions as token ids, in their order."""
        questions: dict[str, list[Encoded]] = {task.name: [] for task in tasks}
        with progress_bar("make questions", self.samples * len(tasks)) as advance:
            for task in tasks:
                for index in range(self.samples):
                    interruption.check("stopped while the questions were made")
                    questions[task.name].append(encoder.encode(task.question(index)))
                    advance(note=task.name)
        return questions

    @classmethod
    def table(cls, summary: dict[str, Any]) -> RenderableType:
        settings = summary["settings"]
        length, gamma = settings["length"], settings["gamma"]
        law = "all positions are equally likely" if gamma == 0 else f"P(x) ~ (1 - x/{length:,})^{gamma:g}"
        chat = ", in its chat template" if settings["chat"] else ""
        heading = (
            f"{summary['model']}{chat}: texts of up to {length:,} tokens; gamma {gamma:g}: {law}; "
            f"seed {settings['seed']}. Visible: a text's last tokens, and always the question."
        )
        parts: list[RenderableType] = []
        for name, result in summary["results"].items():
            score = "share of the answers found" if result["match"] == "all" else "one of the answers found"
            title = (
                f"{name}, {result['title']}: {result['questions']:,} questions, texts of {result['body_tokens']['mean']:,.0f} "
                f"tokens; score: {score}"
            )
            rows = [
                (row["visible"], Estimate.from_dict(row["accuracy"]), row["in_view"], row["best_share"])
                for row in result["accuracies"]
            ]
            parts.append(terminal(title, Table("", COLUMNS, rows), verdict(result), ""))
        return Group(Text(heading), "", *parts, terminal(*(f"Note: {note}." for note in summary["notes"])))


def verdict(result: dict[str, Any]) -> str:
    """Which visible context is the best of a task, and in how many resamples."""
    best = result["optimum"]
    if len(result["accuracies"]) == 1:
        return "With one visible context there is none to compare it with; give several visible contexts."
    if best is None:
        return "No visible context is better than another: the accuracies are all equal."
    text = f"Best with {best['visible']:,} visible tokens, in {best['share']:.0%} of resamples"
    others = [row for row in result["accuracies"] if row["visible"] != best["visible"]]
    second = max(others, key=lambda row: row["best_share"])
    if best["share"] >= 0.995:
        return f"{text}."
    return f"{text}; {second['visible']:,} in {second['best_share']:.0%}."
