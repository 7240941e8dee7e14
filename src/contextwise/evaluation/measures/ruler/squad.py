"""Questions on paragraphs, from files in SQuAD's form (Rajpurkar et al. 2016, 2018).

Two forms are read, ``.gz`` too: SQuAD's own JSON (``data`` → ``paragraphs`` → ``qas``), and the flattened JSON Lines of the
Hugging Face Hub (``id``, ``title``, ``context``, ``question``, ``answers``, a row a question). Questions without an answer,
which SQuAD 2.0 has, are left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, StringConstraints

from contextwise.base.errors import DataError
from contextwise.data.input_files import Form, check_text, checked, parse_json, read_bytes, read_objects

FORMS = (
    "give SQuAD's JSON, or JSON Lines whose rows have 'context' (the paragraph), 'question' and 'answers' (with 'text'), and "
    "optionally 'id' and 'title'"
)


def _answer_texts(value: Any) -> Any:
    """The texts of the answers, in the forms of SQuAD and of the Hub."""
    if isinstance(value, dict):
        return value.get("text")
    if isinstance(value, list):
        return [answer.get("text") if isinstance(answer, dict) else answer for answer in value]
    return value


Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class _Question(Form):
    question: Text
    answers: Annotated[list[str], BeforeValidator(_answer_texts)]
    id: Any = None


class _Row(_Question):
    context: Text
    title: Any = None


class _Paragraph(Form):
    context: Text
    qas: list[_Question]


class _Article(Form):
    paragraphs: list[_Paragraph]
    title: Any = None


class _Squad(Form):
    data: list[_Article]


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
        path: the file.
        paragraphs: all different.
        titles: of the article of each paragraph; a paragraph without one is an article of its own.
    """

    path: str
    paragraphs: tuple[str, ...]
    titles: tuple[str, ...]
    questions: tuple[PassageQuestion, ...]


def read_passages(path: Path) -> Passages:
    """Read a file of questions and answers.

    Raises:
        DataError: it is missing, damaged, or lacks a field; names the line and the fields.
    """
    paragraphs: dict[str, int] = {}
    titles: list[str] = []
    questions: list[PassageQuestion] = []
    for context, title, row in _rows(path):
        answers = tuple(dict.fromkeys(text.strip() for text in row.answers if text.strip()))
        if context not in paragraphs:
            paragraphs[context] = len(paragraphs)
            titles.append(str(title or f"paragraph {len(paragraphs)}"))
        if answers:
            name = str(row.id or f"question {len(questions) + 1}")
            questions.append(PassageQuestion(name, row.question, answers, paragraphs[context]))
    if not questions:
        raise DataError(f"{path} has no question with an answer; give a file with some")
    return Passages(str(path), tuple(paragraphs), tuple(titles), tuple(questions))


def _rows(path: Path) -> Iterator[tuple[str, Any, _Question]]:
    """Paragraph, title of its article, and question, one question after the other."""
    content = read_bytes(path)
    try:
        whole = parse_json(content)
    except ValueError:
        whole = None
    if isinstance(whole, dict) and "data" in whole:
        check_text(whole, content, str(path))
        for article in checked(_Squad, whole, str(path), FORMS).data:
            for paragraph in article.paragraphs:
                for question in paragraph.qas:
                    yield paragraph.context, article.title, question
    else:
        for where, row in read_objects(path, FORMS.removeprefix("give ")):
            flat = checked(_Row, row, where, FORMS)
            yield flat.context, flat.title, flat
