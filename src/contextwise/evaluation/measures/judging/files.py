"""The files of MT-Bench and AlpacaEval: questions, answers, reference answers.

MT-Bench (FastChat): JSON Lines; a question has ``question_id``, ``category`` and ``turns``, an answer ``question_id``,
``model_id`` and ``choices`` with ``turns``. AlpacaEval: a JSON list; an entry has ``instruction`` and, where it is an answer,
``output`` and ``generator``. Either may be a JSON list or JSON Lines, also as ``.gz``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from contextwise.base.errors import DataError
from contextwise.data.input_files import read_objects

Benchmark = Literal["mt-bench", "alpaca-eval"]
WANTED = "the questions or answers of MT-Bench or AlpacaEval, as JSON Lines or a JSON list"
WITH_REFERENCE = ("math", "reasoning", "coding")
"""Categories of MT-Bench whose answers are judged beside a reference answer."""


@dataclass(frozen=True)
class Question:
    """A question of one turn or several.

    Attributes:
        id: MT-Bench's ``question_id``; AlpacaEval's instruction itself, which has no other name.
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


def read_rows(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """The objects of a JSON list or of JSON Lines, each with its name in errors.

    Raises:
        DataError: the file is missing, damaged or empty, or holds something else than objects.
    """
    rows = list(read_objects(path, WANTED))
    if not rows:
        raise DataError(f"{path} is empty; give {WANTED}")
    return rows


def read_questions(path: Path) -> tuple[Benchmark, tuple[Question, ...]]:
    """A benchmark, recognized by the fields, and its questions.

    Raises:
        DataError: the file cannot be read, or holds no questions, or two of MT-Bench with one number.
    """
    rows = read_rows(path)
    benchmark: Benchmark = "mt-bench" if "turns" in rows[0][1] else "alpaca-eval"
    make = _mt_bench_question if benchmark == "mt-bench" else _instruction
    questions = tuple(make(where, row) for where, row in rows)
    if benchmark == "mt-bench":
        _once([question.id for question in questions], rows, path)
    return benchmark, questions


def read_answers(path: Path) -> tuple[Benchmark, ModelAnswers]:
    """One model's answers, by their fields MT-Bench's (``choices``) or AlpacaEval's (``output``).

    Raises:
        DataError: the file cannot be read, holds no answers, those of several models, or two to one question of MT-Bench.
    """
    rows = read_rows(path)
    benchmark: Benchmark = "mt-bench" if "choices" in rows[0][1] else "alpaca-eval"
    if benchmark == "mt-bench":
        name, pairs = "model_id", [_mt_bench_answer(where, row) for where, row in rows]
        questions: tuple[Question, ...] = ()
        _once([question for question, _ in pairs], rows, path)
    else:
        name, pairs = "generator", [_output(where, row) for where, row in rows]
        # A repeated instruction is one question.
        instructions = [_instruction(where, row) for where, row in rows]
        questions = tuple({question.id: question for question in instructions}.values())
    models = {_field(where, row, name, str) for where, row in rows}
    if len(models) > 1:
        raise DataError(
            f"{path} holds answers of {len(models)} models; give each model's answers in a file of their own"
        )
    return benchmark, ModelAnswers(models.pop(), dict(pairs), questions)


def read_references(path: Path) -> dict[int | str, tuple[str, ...]]:
    """MT-Bench's reference answers: question's id -> its texts, one a turn."""
    return dict(_mt_bench_answer(where, row) for where, row in read_rows(path))


def _mt_bench_question(where: str, row: dict[str, Any]) -> Question:
    turns = _texts(where, _field(where, row, "turns", list), "turns")
    return Question(_field(where, row, "question_id", int | str), str(row.get("category", "all")), turns)


def _mt_bench_answer(where: str, row: dict[str, Any]) -> tuple[int | str, tuple[str, ...]]:
    choices = _field(where, row, "choices", list)
    if not choices or not isinstance(choices[0], dict):
        raise DataError(
            f"{where}: the field 'choices' holds no answer; FastChat writes a list with one object"
        )
    turns = _texts(where, _field(where, choices[0], "turns", list), "turns")
    return _field(where, row, "question_id", int | str), turns


def _instruction(where: str, row: dict[str, Any]) -> Question:
    text = _field(where, row, "instruction", str)
    return Question(text, str(row.get("dataset", "all")), (text,))


def _output(where: str, row: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
    return _field(where, row, "instruction", str), (_field(where, row, "output", str),)


def _field(where: str, row: dict[str, Any], name: str, kind: Any) -> Any:
    if not isinstance(row.get(name), kind):
        fields = ", ".join(map(repr, list(row)[:8])) or "none"
        raise DataError(
            f"{where} has no proper field {name!r} (fields: {fields}); give a file of MT-Bench or AlpacaEval"
        )
    return row[name]


def _texts(where: str, values: Sequence[Any], name: str) -> tuple[str, ...]:
    if not values or not all(isinstance(value, str) for value in values):
        raise DataError(f"{where}: the field {name!r} must be a list of one text or more")
    return tuple(values)


def _once(ids: Sequence[int | str], rows: Sequence[tuple[str, Any]], path: Path) -> None:
    seen: set[int | str] = set()
    for name, (where, _) in zip(ids, rows, strict=True):
        if name in seen:
            raise DataError(f"{where} names the question {str(name)[:60]!r} a second time; keep one of them")
        seen.add(name)
