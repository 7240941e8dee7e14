"""Questions on paragraphs, from files in SQuAD's form (Rajpurkar et al. 2016, 2018).

Two forms are read, ``.gz`` too: SQuAD's own JSON (``data`` → ``paragraphs`` → ``qas``), and the flattened JSON Lines of the
Hugging Face Hub (``id``, ``title``, ``context``, ``question``, ``answers``, a row a question). Questions without an answer,
which SQuAD 2.0 has, are left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contextwise.base.errors import DataError
from contextwise.base.files import sha256_file
from contextwise.data.input_files import check_text, parse_json, read_bytes, read_objects

FORMS = "SQuAD's JSON, or JSON Lines"
FIELDS = "'context' (the paragraph), 'question' and 'answers' (with 'text'), and may have 'id' and 'title'"


@dataclass(frozen=True)
class PassageQuestion:
    """A question; ``paragraph`` is the index of the paragraph that answers it."""

    name: str
    text: str
    answers: tuple[str, ...]
    paragraph: int


@dataclass(frozen=True)
class Passages:
    """Paragraphs and questions on them.

    Attributes:
        path: where they are from; ``fingerprint`` is the SHA-256 of that file.
        paragraphs: all different.
        titles: of the article of each paragraph; a paragraph without one is an article of its own.
    """

    path: str
    fingerprint: str
    paragraphs: tuple[str, ...]
    titles: tuple[str, ...]
    questions: tuple[PassageQuestion, ...]


def read_passages(path: Path) -> Passages:
    """Read a file of questions and answers.

    Raises:
        DataError: it is missing, damaged, or lacks a field; names the location and the field.
    """
    paragraphs: dict[str, int] = {}
    titles: list[str] = []
    questions: list[PassageQuestion] = []
    for where, row in _rows(path):
        for field in ("context", "question"):
            if not isinstance(row.get(field), str) or not row[field].strip():
                raise _missing(where, field, row)
        context = row["context"].strip()
        answers = _answers(row, where)
        if context not in paragraphs:
            paragraphs[context] = len(paragraphs)
            titles.append(str(row.get("title") or f"paragraph {len(paragraphs)}"))
        if answers:
            name = str(row.get("id") or f"question {len(questions) + 1}")
            questions.append(PassageQuestion(name, row["question"].strip(), answers, paragraphs[context]))
    if not questions:
        raise DataError(f"{path} has no question with an answer; give a file with some")
    return Passages(str(path), sha256_file(path), tuple(paragraphs), tuple(titles), tuple(questions))


def _rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """One object a question, with its location."""
    content = read_bytes(path)
    try:
        whole = parse_json(content)
    except ValueError:
        whole = None
    if isinstance(whole, dict) and "data" in whole:
        check_text(whole, content, str(path))
        yield from _nested(path, whole["data"])
    else:
        yield from read_objects(path, f"{FORMS} with {FIELDS}")


def _nested(path: Path, articles: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    for i, article in enumerate(_listed(articles, f"{path}: 'data'")):
        where = f"{path}, data[{i}]"
        paragraphs = _field(_object(article, where), "paragraphs", where)
        for j, paragraph in enumerate(_listed(paragraphs, f"{where}: 'paragraphs'")):
            location = f"{where}.paragraphs[{j}]"
            questions = _field(_object(paragraph, location), "qas", location)
            for k, row in enumerate(_listed(questions, f"{location}: 'qas'")):
                shared = {"title": article.get("title"), "context": paragraph.get("context")}
                yield f"{location}.qas[{k}]", {**_object(row, f"{location}.qas[{k}]"), **shared}


def _answers(row: dict[str, Any], where: str) -> tuple[str, ...]:
    """The different answers of a question; none for one that the paragraph does not answer."""
    answers = row.get("answers")
    if isinstance(answers, dict):
        answers = answers.get("text")
    elif isinstance(answers, list):
        answers = [answer.get("text") if isinstance(answer, dict) else answer for answer in answers]
    if not isinstance(answers, list) or not all(isinstance(text, str) for text in answers):
        raise _missing(where, "answers", row)
    return tuple(dict.fromkeys(text.strip() for text in answers if text.strip()))


def _missing(where: str, field: str, row: dict[str, Any]) -> DataError:
    fields = ", ".join(map(repr, list(row)[:8])) or "none"
    what = "answers" if field == "answers" else "text"
    return DataError(
        f"{where} has no {what} in the field {field!r} (fields: {fields}); a question has {FIELDS}"
    )


def _field(row: dict[str, Any], field: str, where: str) -> Any:
    if field not in row:
        raise _missing(where, field, row)
    return row[field]


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DataError(f"{where} is not a JSON object; a question has {FIELDS}")
    return value


def _listed(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise DataError(f"{where} is not a list; give {FORMS} with {FIELDS}")
    return value
