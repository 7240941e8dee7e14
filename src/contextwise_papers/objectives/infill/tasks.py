"""Holes with known middles, and the scores of the texts that a model fills in.

The holes are lines cut out of documents, or tasks in the form of HumanEval-infilling (Bavarian et al. 2022).
Trailing white space is removed before texts are compared; generated text is never executed.

    exact match      = share of holes in which the two are the same
    edit similarity  = mean of 1 - d / (m + n); d: characters to delete and insert to make one of the other,
                       m and n: their lengths; 1 if both are empty (CodeXGLUE, RepoBench)

Intervals are over documents: one of a corpus, or a problem of HumanEval, which may have many holes.
"""

import re
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rapidfuzz.distance import Indel

from contextwise.base.hashes import sha256_file
from contextwise.data import Corpus, read_objects, readable
from contextwise.data.documents import text_digest
from contextwise.measures import Work, batches
from contextwise.models.rope import same_frequencies_up_to
from contextwise.objectives import generator
from contextwise.settings import ConfigError, DataError, Problem
from contextwise_evals.levels import level_of
from contextwise_papers.objectives.infill.filling import Filling, Infiller, Prompt
from contextwise_papers.objectives.text import TokenText

SCORES = {"exact_match": "exact match", "edit_similarity": "edit similarity"}
WANTED = "a corpus, or JSON Lines of documents or tasks"
FIELDS = ("task_id", "prompt", "canonical_solution")
_PROBLEM = re.compile(r"HumanEval/\d+")


class Task(NamedTuple):
    """A hole with a known middle, ``expected``; its name is that of the document and the line, or the one in the set."""

    name: str
    document: str
    prefix: str
    suffix: str
    expected: str


class TaskSet(NamedTuple):
    """Set of holes to fill; ``source`` is its origin for the summary, ``notes`` are sentences about skipped documents."""

    source: dict[str, Any]
    tasks: list[Task]
    notes: list[str]


def open_tasks(path: Path, split: str = "validation", seed: int = 0, limit: int | None = None) -> TaskSet:
    """Open a set of holes: a prepared corpus, or JSON Lines (``.gz`` too) of documents or of tasks.

    ``seed`` chooses the lines; ``limit``: only the holes of this many documents, from the first.
    """
    if _is_file(path) and split != "validation":
        raise ConfigError(Problem(f"but {path} is a file, which has no splits", "split", split, "leave it out"))
    tasks = _of_file(path, seed, limit) if _is_file(path) else _of_corpus(path, split, seed, limit)
    if not tasks.tasks:
        raise DataError(f"{path} gives no line to fill: a document needs a line behind its first that is not blank")
    return tasks


def tasks_label(path: Path, split: str) -> str:
    """Name of a set of holes: the name of its file, or of the corpus and its split."""
    if not _is_file(path):
        return f"{path.resolve().name}-{split}"
    name = path.name.removesuffix(".gz")
    return name.removesuffix(Path(name).suffix)


def fingerprint(path: Path, split: str) -> str:
    """Hash that identifies the text of the holes; DataError if the file or corpus does not exist."""
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
    before = "".join(f"{line}\n" for line in lines[:index])
    return index, before, lines[index], "".join(f"\n{line}" for line in lines[index + 1 :])


def _line_tasks(source: dict[str, Any], documents: Iterable[tuple[str, str]], seed: int, limit: int | None) -> TaskSet:
    """A task for each of the first ``limit`` documents (name, text) that have a line to cut."""
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
    passed = (
        "1 document without a line to cut was" if without == 1 else f"{without:,} documents without a line to cut were"
    )
    notes = [f"{passed} passed over"] if without else []
    return TaskSet(source, tasks, notes)


def _of_corpus(path: Path, split: str, seed: int, limit: int | None) -> TaskSet:
    corpus = Corpus.open(path, split)
    tokenizer = corpus.tokenizer()
    if tokenizer is None:
        raise DataError(f"the corpus {path} comes without a tokenizer, so its lines are not known; give a prepared one")
    corpus.verify()
    text = TokenText(tokenizer)
    documents = ((str(i), text.read(corpus.document(i))[0]) for i in range(len(corpus)))
    source = {"path": str(corpus.path), "split": corpus.split, "fingerprint": corpus.fingerprint}
    return _line_tasks(source, documents, seed, limit)


def _of_file(path: Path, seed: int, limit: int | None) -> TaskSet:
    source = {"path": str(path), "split": None, "fingerprint": fingerprint(path, "")}
    others = read_objects(path, WANTED)
    first = next(others, None)
    if first is None:
        raise DataError(f"{path} is empty; give {WANTED}")
    rows = chain([first], others)
    if "canonical_solution" in first[1]:
        return _given_tasks(source, rows, limit)
    documents = ((where.removeprefix(str(path)).lstrip(": "), _text(row, "text", where)) for where, row in rows)
    return _line_tasks(source, documents, seed, limit)


def _given_tasks(source: dict[str, Any], rows: Iterable[tuple[str, dict[str, Any]]], limit: int | None) -> TaskSet:
    """Tasks from rows in the format of HumanEval-infilling; a task without ``suffix`` has its hole at the end."""
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
    return TaskSet(source, tasks, [note] if at_the_end else [])


def _text(row: dict[str, Any], key: str, where: str) -> str:
    value = row.get(key)
    if not isinstance(value, str):
        wanted = "a document has 'text', a task " + ", ".join(map(repr, (*FIELDS[:2], "suffix", FIELDS[2])))
        raise DataError(f"{where} has no text in the field {key!r}; {wanted}")
    return value


# Scores


def exact_match(filled: str, expected: str) -> bool:
    """Whether the texts are equal, except for trailing white space."""
    return filled.rstrip() == expected.rstrip()


def edit_similarity(filled: str, expected: str) -> float:
    """1 - indel distance / (sum of lengths), of the texts without trailing white space; 0 to 1."""
    return float(Indel.normalized_similarity(filled.rstrip(), expected.rstrip()))


def fill(infiller: Infiller, prompts: list[Prompt], batch_tokens: int, work: Work, title: str) -> list[Filling]:
    """Generate the middles, in the order of the prompts, in batches of similar length, longest first; Interrupted on a stop."""
    lengths = np.array([len(prompt.ids) + infiller.new_tokens for prompt in prompts])

    def filled(rows: list[int]) -> list[dict[str, Any]]:
        return [filling._asdict() for filling in infiller.fill([prompts[row] for row in rows])]

    in_batches = batches(lengths, batch_tokens, same_frequencies_up_to(infiller.model))
    rows = work.rows("holes", len(prompts), in_batches, filled, title)
    return [Filling(row["text"], row["complete"]) for row in rows]


def scores(tasks: list[Task], fillings: list[Filling]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Both measures with their intervals over documents and the counts, and the scores of each middle."""
    rows: list[dict[str, Any]] = [
        {
            "task": task.name,
            "document": task.document,
            "expected": task.expected,
            "filled": filling.text,
            "complete": filling.complete,
            "exact_match": exact_match(filling.text, task.expected),
            "edit_similarity": edit_similarity(filling.text, task.expected),
        }
        for task, filling in zip(tasks, fillings, strict=True)
    ]
    level = level_of(np.array([[row[name] for name in SCORES] for row in rows]), [task.document for task in tasks])
    unfinished = sum(not row["complete"] for row in rows)
    counts = {"documents": level.documents, "holes": len(rows), "unfinished": unfinished}
    return counts | {name: level.estimate(i).to_dict() for i, name in enumerate(SCORES)}, rows
