"""The files of MT-Bench and AlpacaEval: questions, answers, reference answers.

MT-Bench (FastChat): JSON Lines; a question has ``question_id``, ``category`` and ``turns``, an answer ``question_id``,
``model_id`` and ``choices`` with ``turns``. AlpacaEval: a JSON list; an entry has ``instruction`` and, where it is an answer,
``output`` and ``generator``. Either may be a JSON list or JSON Lines, also as ``.gz``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from contextwise.base.errors import DataError
from contextwise.data.input_files import Form, RowForm, checked, read_objects

Benchmark = Literal["mt-bench", "alpaca-eval"]
WANTED = "the questions or answers of MT-Bench or AlpacaEval, as JSON Lines or a JSON list"
WITH_REFERENCE = ("math", "reasoning", "coding")
"""Categories of MT-Bench whose answers are judged beside a reference answer."""


@dataclass(frozen=True)
class Question:
    """A question of one turn or several.

    Attributes:
        id: MT-Bench's ``question_id``; AlpacaEval's instruction itself.
        category: MT-Bench's ``category``, AlpacaEval's ``dataset``.
    """

    id: int | str
    category: str
    turns: tuple[str, ...]


@dataclass(frozen=True)
class ModelAnswers:
    """One model's answers: question's id -> its texts, one a turn; empty where the model could not answer."""

    model: str
    texts: dict[int | str, tuple[str, ...]]
    questions: tuple[Question, ...] = ()


class _MtBenchQuestion(Form):
    question_id: int | str
    turns: list[str] = Field(min_length=1)
    category: Any = "all"


class _Turns(Form):
    turns: list[str] = Field(min_length=1)


class _Reference(Form):
    question_id: int | str
    choices: list[_Turns] = Field(min_length=1)


class _MtBenchAnswer(_Reference):
    model_id: str


class _Instruction(Form):
    instruction: str
    dataset: Any = "all"

    def question(self) -> Question:
        return Question(self.instruction, str(self.dataset), (self.instruction,))


class _Output(_Instruction):
    output: str
    generator: str


def read_rows(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """The objects of a JSON list or of JSON Lines, each with its name in errors."""
    rows = list(read_objects(path, WANTED))
    if not rows:
        raise DataError(f"{path} is empty; give {WANTED}")
    return rows


def read_questions(path: Path) -> tuple[Benchmark, tuple[Question, ...]]:
    """A benchmark, recognized by the fields, and its questions."""
    rows = read_rows(path)
    if "turns" not in rows[0][1]:
        return "alpaca-eval", tuple(row.question() for row in _checked(_Instruction, rows))
    questions = _checked(_MtBenchQuestion, rows)
    _check_once([row.question_id for row in questions], rows)
    return "mt-bench", tuple(Question(row.question_id, str(row.category), tuple(row.turns)) for row in questions)


def read_answers(path: Path) -> tuple[Benchmark, ModelAnswers]:
    """One model's answers, by their fields MT-Bench's (``choices``) or AlpacaEval's (``output``)."""
    rows = read_rows(path)
    if "choices" in rows[0][1]:
        answers = _checked(_MtBenchAnswer, rows)
        model = _one_model(path, {answer.model_id for answer in answers})
        _check_once([answer.question_id for answer in answers], rows)
        return "mt-bench", ModelAnswers(model, _texts(answers))
    outputs = _checked(_Output, rows)
    model = _one_model(path, {output.generator for output in outputs})
    # A repeated instruction is one question.
    questions = {output.instruction: output.question() for output in outputs}
    texts: dict[int | str, tuple[str, ...]] = {output.instruction: (output.output,) for output in outputs}
    return "alpaca-eval", ModelAnswers(model, texts, tuple(questions.values()))


def read_references(path: Path) -> dict[int | str, tuple[str, ...]]:
    """MT-Bench's reference answers: question's id -> its texts, one a turn."""
    return _texts(_checked(_Reference, read_rows(path)))


def _texts(answers: Sequence[_Reference]) -> dict[int | str, tuple[str, ...]]:
    return {answer.question_id: tuple(answer.choices[0].turns) for answer in answers}


def _checked(form: type[RowForm], rows: Sequence[tuple[str, dict[str, Any]]]) -> list[RowForm]:
    return [checked(form, row, where, "give a file of MT-Bench or AlpacaEval") for where, row in rows]


def _one_model(path: Path, models: set[str]) -> str:
    if len(models) > 1:
        raise DataError(
            f"{path} holds answers of {len(models)} models; give each model's answers in a file of their own"
        )
    return models.pop()


def _check_once(ids: Sequence[int | str], rows: Sequence[tuple[str, Any]]) -> None:
    seen: set[int | str] = set()
    for name, (where, _) in zip(ids, rows, strict=True):
        if name in seen:
            raise DataError(f"{where} names the question {str(name)[:60]!r} a second time; keep one of them")
        seen.add(name)
