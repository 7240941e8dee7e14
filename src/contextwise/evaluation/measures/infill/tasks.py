"""Infilling tasks with known middles: lines cut out of documents, and tasks in the form of HumanEval-infilling.

HumanEval-infilling: Bavarian et al. 2022.

Intervals are drawn over *documents*: a document of which one line was cut out, or a problem of HumanEval, which may have many
holes.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contextwise.base.errors import DataError
from contextwise.base.files import sha256_file
from contextwise.data import Corpus
from contextwise.data.documents import text_digest
from contextwise.data.input_files import read_objects, readable
from contextwise.objectives.objective import generator
from contextwise.objectives.text import TokenText

WANTED = "a corpus, or JSON Lines of documents or tasks"
FIELDS = ("task_id", "prompt", "canonical_solution")
_PROBLEM = re.compile(r"HumanEval/\d+")


@dataclass(frozen=True)
class Task:
    """A hole with a known middle.

    Attributes:
        name: name of the document and the line, or the name in the set.
        document: name of the task's document.
        expected: the middle.
    """

    name: str
    document: str
    prefix: str
    suffix: str
    expected: str


@dataclass
class TaskSet:
    """Set of holes to fill.

    Attributes:
        label: name of the set in results.
        source: origin of the set for ``summary`` files; ``fingerprint`` identifies it.
        notes: sentences about skipped documents.
    """

    label: str
    source: dict[str, Any]
    tasks: list[Task]
    notes: list[str] = field(default_factory=list)


def open_tasks(path: Path, split: str = "validation", seed: int = 0, limit: int | None = None) -> TaskSet:
    """Open a set of holes: a prepared corpus, or JSON Lines (``.gz`` too) of documents or of tasks.

    Args:
        path: a corpus; or a file whose lines have ``text``, or ``task_id``, ``prompt``, ``suffix`` and
            ``canonical_solution``.
        split: split of a corpus.
        seed: seed of the choice of lines.
        limit: use only the holes of this many documents, from the first.

    Raises:
        DataError: the source does not exist, is damaged, or has no line to cut.
    """
    if _is_file(path):
        tasks = _of_file(path, seed, limit)
    else:
        tasks = _of_corpus(path, split, seed, limit)
    if not tasks.tasks:
        raise DataError(
            f"{path} gives no line to fill: a document needs a line behind its first that is not blank"
        )
    return tasks


def tasks_label(path: Path, split: str) -> str:
    """Name of a set of holes: the name of its file, or of the corpus and its split."""
    if not _is_file(path):
        return f"{path.resolve().name}-{split}"
    name = path.name.removesuffix(".gz")
    return name.removesuffix(Path(name).suffix)


def fingerprint(path: Path, split: str) -> str:
    """Hash that identifies the text of the holes.

    Raises:
        DataError: the file or corpus does not exist.
    """
    if not _is_file(path):
        return Corpus.open(path, split).fingerprint
    with readable(path):
        return sha256_file(path)


def _is_file(path: Path) -> bool:
    return path.is_file() and path.suffix != ".bin"


def cut_line(text: str, seed: int) -> tuple[int, str, str, str] | None:
    """Cut a line out of a text: its number (from 0), the text before it, the line without its end, and the rest.

    The choice depends only on (seed, text); all lines except the first and blank lines are equally likely. None if the text
    has no such line.
    """
    lines = text.split("\n")
    candidates = [index for index, line in enumerate(lines) if index > 0 and line.strip()]
    if not candidates:
        return None
    draw = generator(seed, 0, int.from_bytes(text_digest(text.encode()), "big"), "line to fill")
    index = candidates[int(draw.integers(len(candidates)))]
    before, after = lines[:index], lines[index + 1 :]
    return (
        index,
        "".join(f"{line}\n" for line in before),
        lines[index],
        "".join(f"\n{line}" for line in after),
    )


def _line_tasks(
    documents: Iterable[tuple[str, str]], seed: int, limit: int | None
) -> tuple[list[Task], list[str]]:
    """Build a task for each of the first ``limit`` documents (name, text) that have a line to cut, and notes on the others."""
    tasks: list[Task] = []
    without = 0
    for name, text in documents:
        if len(tasks) == limit:
            break
        cut = cut_line(text, seed)
        if cut is None:
            without += 1
            continue
        index, prefix, line, suffix = cut
        tasks.append(Task(f"{name}, line {index + 1}", name, prefix, suffix, line))
    return tasks, [f"{without:,} documents without a line to cut were passed over"] if without else []


def _of_corpus(path: Path, split: str, seed: int, limit: int | None) -> TaskSet:
    corpus = Corpus.open(path, split)
    tokenizer = corpus.tokenizer()
    if tokenizer is None:
        raise DataError(
            f"the corpus {path} comes without a tokenizer, so its lines are not known; give a prepared one"
        )
    corpus.verify()
    text = TokenText(tokenizer)
    documents = ((str(i), text.read(corpus.document(i))[0]) for i in range(len(corpus)))
    tasks, notes = _line_tasks(documents, seed, limit)
    about = {"path": str(corpus.path), "split": corpus.split, "fingerprint": corpus.fingerprint}
    return TaskSet(tasks_label(path, corpus.split), about, tasks, notes)


def _of_file(path: Path, seed: int, limit: int | None) -> TaskSet:
    about = {"path": str(path), "split": None, "fingerprint": fingerprint(path, "")}
    rows = read_objects(path, WANTED)
    first = next(rows, None)
    if first is None:
        raise DataError(f"{path} is empty; give {WANTED}")
    rows = _with(first, rows)
    if "canonical_solution" in first[1]:
        tasks, notes = _tasks_of_rows(rows, limit)
    else:
        documents = (
            (where.removeprefix(str(path)).lstrip(": "), _text(row, "text", where)) for where, row in rows
        )
        tasks, notes = _line_tasks(documents, seed, limit)
    return TaskSet(tasks_label(path, ""), about, tasks, notes)


def _with(
    first: tuple[str, dict[str, Any]], others: Iterator[tuple[str, dict[str, Any]]]
) -> Iterator[tuple[str, dict[str, Any]]]:
    yield first
    yield from others


def _tasks_of_rows(
    rows: Iterable[tuple[str, dict[str, Any]]], limit: int | None
) -> tuple[list[Task], list[str]]:
    """Build tasks from rows in the format of HumanEval-infilling; a task without ``suffix`` has its hole at the end."""
    tasks: list[Task] = []
    documents: set[str] = set()
    at_the_end = 0
    for where, row in rows:
        name, prefix, expected = (_text(row, key, where) for key in FIELDS)
        problem = _PROBLEM.search(name)
        document = problem.group() if problem else name
        if document not in documents and len(documents) == limit:
            break
        documents.add(document)
        at_the_end += "suffix" not in row
        suffix = _text(row, "suffix", where) if "suffix" in row else ""
        tasks.append(Task(name, document, prefix, suffix, expected))
    note = f"{at_the_end:,} of {len(tasks):,} tasks have no suffix: their hole is the end of the text"
    return tasks, [note] if at_the_end else []


def _text(row: dict[str, Any], key: str, where: str) -> str:
    value = row.get(key)
    if not isinstance(value, str):
        wanted = "a document has 'text', a task " + ", ".join(map(repr, (*FIELDS[:2], "suffix", FIELDS[2])))
        raise DataError(f"{where} has no text in the field {key!r}; {wanted}")
    return value
