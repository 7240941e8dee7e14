"""A model's answers to MT-Bench or AlpacaEval, for FastChat or alpaca_eval to judge (ContextLM, Section 3.4).

MT-Bench: JSON Lines; a question has ``question_id``, ``category`` and ``turns``, which are one conversation. AlpacaEval: a JSON
list of entries with ``instruction``. Either may be a JSON list or JSON Lines, also as ``.gz``.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field
from rich.console import RenderableType
from rich.text import Text

from contextwise.data import Form, checked, read_objects
from contextwise.evaluation.kernel import content_key
from contextwise.measures import InputFile, Measure, Outcome, Result, Subject, Work
from contextwise.settings import DataError

if TYPE_CHECKING:
    from contextwise.data import Corpus
    from contextwise.measures import Sampling

Benchmark = Literal["mt-bench", "alpaca-eval"]
# FastChat, ``llm_judge/common.py``
TEMPERATURES = dict.fromkeys(("extraction", "math", "coding", "reasoning"), 0.0)
TEMPERATURES |= dict.fromkeys(("stem", "humanities"), 0.1)
OTHER_TEMPERATURE = 0.7
FILES = {"mt-bench": "mt-bench-answers.jsonl", "alpaca-eval": "alpaca-eval-outputs.json"}
WANTED = "the questions or answers of MT-Bench or AlpacaEval, as JSON Lines or a JSON list"


@dataclass(frozen=True)
class Question:
    """A question: of MT-Bench, or an instruction of AlpacaEval with its ``dataset`` as the category."""

    id: int | str
    category: str
    turns: tuple[str, ...]


class _MtBenchQuestion(Form):
    question_id: int | str
    turns: list[str] = Field(min_length=1)
    category: Any = "all"


class _Instruction(Form):
    instruction: str
    dataset: Any = "all"


def read_questions(path: Path) -> tuple[Benchmark, tuple[Question, ...]]:
    """A benchmark, recognized by the fields, and its questions."""
    rows = list(read_objects(path, WANTED))
    if not rows:
        raise DataError(f"{path} is empty; give {WANTED}")
    wanted = "a file of MT-Bench or AlpacaEval"
    if "turns" not in rows[0][1]:
        instructions = [checked(_Instruction, row, where, wanted) for where, row in rows]
        return "alpaca-eval", tuple(Question(q.instruction, str(q.dataset), (q.instruction,)) for q in instructions)
    questions: dict[int | str, Question] = {}
    for where, row in rows:
        asked = checked(_MtBenchQuestion, row, where, wanted)
        if asked.question_id in questions:
            raise DataError(
                f"{where} names the question {str(asked.question_id)[:60]!r} a second time; keep one of them"
            )
        questions[asked.question_id] = Question(asked.question_id, str(asked.category), tuple(asked.turns))
    return "mt-bench", tuple(questions.values())


class AnswersResult(Result):
    """Answers in the form of their benchmark."""

    @property
    def file(self) -> Path:
        """The file that a judge reads."""
        return self.path / self.summary["file"]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of the file. A row has ``errors`` where a turn was too long for the model."""
        return [row for _, row in read_objects(self.file, WANTED)]


class Answers(Measure):
    """Let a model answer the questions of MT-Bench or AlpacaEval, in their file formats.

    The turns of a question are one conversation. A stopped command resumes.
    """

    name = "answers"
    on_corpus = False
    result = AnswersResult

    questions: InputFile = Field(
        description="MT-Bench's questions (question.jsonl), or AlpacaEval's (alpaca_eval.json); also as .gz."
    )
    model_id: str | None = Field(
        default=None, min_length=1, description="The model's name in the file; default: its folder's."
    )
    max_new_tokens: int = Field(default=1024, ge=1, description="Most tokens of an answer.")
    temperature: Annotated[float, Field(ge=0)] | Literal["published"] = Field(
        default=0.0, description="0: the likeliest token; published: MT-Bench's of each category; or a number."
    )
    seed: int = Field(default=0, ge=0, description="Of the draws, anew for each question.")
    template: Literal["auto", "chat", "alpaca"] = Field(
        default="auto",
        description="chat: the tokenizer's own; alpaca: the published prompt; auto: its own, if it has one.",
    )
    limit: int | None = Field(default=None, ge=1, description="Answer only the first N questions.")

    def resolved(self, subject: Subject, corpus: "Corpus | None") -> Self:
        return self.model_copy(update={"model_id": self.model_id or Path(subject.source).resolve().name})

    def label(self, corpus: "Corpus | None") -> str:
        return read_questions(self.questions)[0]

    def run(self, subject: Subject, corpus: "Corpus | None", work: Work) -> Outcome:
        from contextwise_papers.contextlm.speaker import Speaker

        benchmark, questions = read_questions(self.questions)
        questions = questions[: self.limit]
        speaker = Speaker(subject.model, subject.tokenizer, self.template)
        shared = {"model": subject.digest, "dtype": str(subject.model.dtype), "settings": self.identity()}
        keys = [content_key(turns=q.turns, category=q.category, **shared) for q in questions]

        def answered(numbers: list[int]) -> Iterator[dict[str, Any]]:
            for number in numbers:
                question = questions[number]
                texts, problems = speaker.answer(question.turns, self.max_new_tokens, self.sampling(question))
                yield {"row": self._row(benchmark, question, keys[number], texts, problems)}

        one_by_one = ([number] for number in range(len(questions)))
        kept = work.rows("questions", len(questions), one_by_one, answered, f"answers of {self.model_id}")
        rows = [each["row"] for each in kept]
        errors = [next(filter(None, row["errors"])) for row in rows if "errors" in row]
        summary: dict[str, Any] = {"benchmark": benchmark, "file": FILES[benchmark], "questions": len(rows)}
        summary |= {"unanswered": len(errors), "first_error": errors[0] if errors else None}
        text = "".join(json.dumps(row) + "\n" for row in rows)
        if benchmark == "alpaca-eval":
            text = json.dumps(rows, indent=2) + "\n"
        return Outcome(summary, {FILES[benchmark]: text})

    def sampling(self, question: Question) -> "Sampling":
        """How the tokens of an answer to this question are chosen; each question has its own seed."""
        from contextwise.measures import Sampling

        value = self.temperature
        if value == "published":
            value = TEMPERATURES.get(question.category, OTHER_TEMPERATURE)
        seed = int(content_key(seed=self.seed, turns=question.turns)[:8], 16)
        return Sampling(temperature=value or 1.0, seed=seed, greedy=value == 0)

    def _row(
        self, benchmark: str, question: Question, key: str, texts: list[str], problems: list[str | None]
    ) -> dict[str, Any]:
        """A row of the benchmark's file; ``errors`` and AlpacaEval's ``answer_id`` are ours."""
        row: dict[str, Any]
        if benchmark == "alpaca-eval":
            row = {"dataset": question.category, "instruction": question.turns[0], "output": texts[0]}
            row |= {"generator": self.model_id, "answer_id": key[:22]}
        else:
            row = {"question_id": question.id, "answer_id": key[:22], "model_id": self.model_id}
            row |= {"choices": [{"index": 0, "turns": texts}], "tstamp": time.time()}
        return row | ({"errors": problems} if any(problems) else {})

    @classmethod
    def table(cls, summary: dict[str, Any]) -> RenderableType:
        text = f"{summary['model']}: answers to {summary['questions']:,} questions, in {summary['file']}."
        if summary["unanswered"]:
            text += f" {summary['unanswered']:,} of them have a turn without an answer; the first: {summary['first_error']}."
        return Text(text)
