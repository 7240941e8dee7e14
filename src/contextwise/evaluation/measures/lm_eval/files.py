"""Local files of tasks: the file of each split, its records, and their conversion to the fields of the harness's templates.

In a folder the names of the files are sufficient: ``TASK_SPLIT.jsonl`` (``arc_easy_test.jsonl.gz``, ``piqa_valid.jsonl``). A
split is the harness's own word or one of train, training, validation, valid, val, dev, test; without a
split, the task is evaluated on the file (``lambada_openai.jsonl``). Other parts of a name are ignored
(``hellaswag_val_1k``). A mapping file, ``tasks.yaml`` in the folder or given instead of it, names any other file
and any other fields::

    folder: ../eval                  # not given: the mapping file's own folder
    tasks:
      wikitext:
        splits:
          validation: ../corpus/wikitext-2.valid.txt
      piqa:
        splits:
          validation: {file: my_piqa.jsonl, fields: {goal: prompt, label: meta.gold}}
        examples: validation         # the split that examples come from

Each task accepts one or more :class:`Form` of a line: the Hub's fields, and those of other collections. A converted line
produces the same prompts, choices and targets as the Hub's copy of the line.
"""

import contextlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from jinja2 import TemplateSyntaxError, meta
from pydantic import Field, field_validator

from contextwise.base.config import Settings, parse_yaml, validate
from contextwise.base.errors import ConfigError, DataError, one_line
from contextwise.data.input_files import read_bytes, read_objects, readable

Line = dict[str, Any]
LETTERS = "ABCDEFGHIJ"
MAPPINGS = ("tasks.yaml", "tasks.yml", "tasks.json")
SUFFIXES = (".jsonl", ".ndjson", ".json", ".parquet", ".txt")
WORDS = {"training": "train", **dict.fromkeys(("valid", "val", "dev"), "validation")}
WORDS |= {name: name for name in ("train", "validation", "test")}


class SplitFile(Settings):
    """A file, and the names of its fields: the harness's field -> the file's, with dots into nested objects."""

    file: Path
    fields: dict[str, str] = Field(default_factory=dict)


class TaskFiles(Settings):
    """Files of a task.

    Attributes:
        splits: the harness's split -> its file.
        examples: the split of the examples (shots); None: the split that the harness uses.
    """

    splits: dict[str, SplitFile] = Field(default_factory=dict)
    examples: str | None = None

    @field_validator("splits", mode="before")
    @classmethod
    def _names_alone(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {split: {"file": given} if isinstance(given, str) else given for split, given in value.items()}


class TaskData(Settings):
    """Content of a mapping file, or its default without a mapping file."""

    folder: Path | None = None
    tasks: dict[str, TaskFiles] = Field(default_factory=dict)


def read_mapping(path: Path, known: Collection[str]) -> TaskData:
    """Read the mapping of a folder or a mapping file; its relative paths are resolved."""
    if not path.exists():
        raise DataError(f"task_data is {path}, but there is no such folder or file")
    candidates = [path / name for name in MAPPINGS if (path / name).is_file()] if path.is_dir() else [path]
    if not candidates:
        return TaskData(folder=path)
    root, name = candidates[0].parent, f"the mapping file {candidates[0]}"
    mapping = validate(TaskData, _read_yaml(candidates[0]), name)
    for task, files in mapping.tasks.items():
        if task not in known:
            raise ConfigError(f"{name} names a task {task!r}, which the harness does not have")
        for file in files.splits.values():
            file.file = root / file.file.expanduser()
    mapping.folder = root if mapping.folder is None else root / mapping.folder.expanduser()
    if not mapping.folder.is_dir():
        raise DataError(f"{name} names the folder {mapping.folder}, which does not exist")
    return mapping


def _read_yaml(path: Path) -> dict[str, Any]:
    with readable(path):
        try:
            data = parse_yaml(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ConfigError(f"the mapping file {path} is not valid YAML: {one_line(error)}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"the mapping file {path} must hold 'tasks', a mapping of task names to files")
    return data


def files_of(
    task: str, splits: dict[str, str | None], mapping: TaskData, known: Collection[str]
) -> dict[str, SplitFile]:
    """Map the splits of a task to files; the mapping's entries have priority over file names in its folder.

    Args:
        splits: ``train``, ``validation``, ``test`` -> the harness's name of that split of the task, or None.
        known: names of all tasks: a file belongs to the task with the longest name that begins the file's name.
    """
    given = mapping.tasks.get(task, TaskFiles())
    own = list(dict.fromkeys(name for name in splits.values() if name is not None))
    for split in (*given.splits, *([given.examples] if given.examples else [])):
        if split not in own:
            raise ConfigError(
                f"the mapping names the split {split!r} of {task}, which has {', '.join(own)} in the harness"
            )
    files: dict[str, SplitFile] = {}
    for path in sorted(mapping.folder.iterdir()) if mapping.folder is not None else ():
        named = _split_of(path, task, splits, known) if path.is_file() else None
        if named is None or named in given.splits:
            continue
        if named in files:
            raise DataError(
                f"both {files[named].file.name} and {path.name} in {mapping.folder} could be the split {named} of {task}; "
                "take one away, or name one in a mapping file"
            )
        files[named] = SplitFile(file=path)
    return {**files, **given.splits}


def _split_of(path: Path, task: str, splits: dict[str, str | None], known: Collection[str]) -> str | None:
    """Split of ``task`` according to a file's name; None if it is not a file of the task."""
    name = path.name.lower().removesuffix(".gz")
    suffix = next((suffix for suffix in SUFFIXES if name.endswith(suffix)), None)
    if suffix is None:
        return None
    parts = re.split(r"[^a-z0-9]+", name.removesuffix(suffix))
    count = next((n for n in range(len(parts), 0, -1) if "_".join(parts[:n]) in known), 0)
    if "_".join(parts[:count]) != task:
        return None
    for word in parts[count:]:
        if word in splits.values():
            return word
        if word in WORDS:
            return splits[WORDS[word]]
    return splits["test"] or splits["validation"]


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read the records of a file: JSON Lines, a JSON list, Parquet, or WikiText's ``.txt``, split into articles."""
    name = path.name.lower().removesuffix(".gz")
    if name.endswith(".parquet"):
        with readable(path):
            rows = pq.read_table(path).to_pylist()
    elif name.endswith(".txt"):
        try:
            text = read_bytes(path).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise DataError(f"{path} is not UTF-8 text (byte {error.start:,})") from None
        rows = [{"page": page} for page in articles(text)]
    else:
        rows = [row for _, row in read_objects(path, "JSON objects, each with the fields of one document")]
    if not rows:
        raise DataError(f"{path} holds no documents")
    return rows


def articles(text: str) -> list[str]:
    """Split WikiText's raw text into articles at each heading of the first level, as in the harness's copy."""
    pages: list[list[str]] = [[]]
    for line in text.split("\n"):
        heading = line.replace("= = =", "===").replace("= =", "==").strip()
        if heading.startswith("= ") and heading.endswith(" ="):
            pages.append([])
        pages[-1].append(line)
    joined = ["\n".join(lines) for lines in pages]
    return [page for page in joined if page.strip()]


@dataclass(frozen=True)
class Form:
    """Format of the lines of a file.

    Attributes:
        fields: fields that a line must have.
        convert: maps a line to the harness's fields; raises ``ValueError`` if the line is invalid.
        changed: changes to the task's definition, if the lines are already preprocessed.
        gather: maps all lines to documents, if several lines form a document.
    """

    fields: tuple[str, ...]
    convert: Callable[[Line], Line]
    changed: Mapping[str, Any] = field(default_factory=dict)
    gather: Callable[[list[Line]], list[Line]] = list


def documents(
    path: Any, rows: Sequence[Line], renamed: Mapping[str, str], forms: Sequence[Form]
) -> tuple[list[Line], Form]:
    """Convert the documents of a file to the harness's fields, and determine the form of its lines.

    Args:
        path: name of the file for messages.
        renamed: the harness's field -> the file's, with dots into nested objects.
        forms: forms that the task accepts; the first that fits the first line is used.
    """
    first = _renamed(rows[0], renamed)
    form = next((form for form in forms if set(form.fields) <= set(first)), None)
    if form is None:
        wanted = "; or ".join(", ".join(form.fields) for form in forms)
        raise DataError(
            f"{path} has the fields {', '.join(map(str, rows[0])) or 'none'}, but {wanted} are needed; a mapping file can say "
            "which of them is which"
        )
    converted = []
    for number, row in enumerate(rows, start=1):
        line = _renamed(row, renamed)
        missing = [name for name in form.fields if name not in line]
        if missing:
            raise DataError(f"{path}, document {number}: there is no field {', '.join(missing)}")
        try:
            converted.append(form.convert(line))
        except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
            raise DataError(f"{path}, document {number}: {one_line(error)}") from None
    return form.gather(converted), form


def _renamed(row: Line, renamed: Mapping[str, str]) -> Line:
    result = dict(row)
    for name, path in renamed.items():
        value: Any = row
        for part in path.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None:
            result[name] = value
    return result


def _kept(*fields: str, check: Callable[[Line], None] = lambda line: None, **changed: Callable[[Any], Any]) -> Form:
    """A form whose fields are kept as they are, and then those that a function changes."""

    def convert(line: Line) -> Line:
        check(line)
        kept = {name: line[name] for name in fields}
        return kept | {name: change(line[name]) for name, change in changed.items()}

    return Form((*fields, *changed), convert)


def _text(name: str) -> Callable[[Line], None]:
    def check(line: Line) -> None:
        _need(isinstance(line[name], str) and bool(line[name].strip()), f"{name!r} must be a text")

    return check


def _need(condition: bool, what: str) -> None:
    if not condition:
        raise ValueError(what)


def _index(value: Any, count: int, name: str) -> int:
    """Index of the correct choice, from a number or its digits."""
    valid = str(value).isdecimal() and int(value) < count
    _need(valid, f"{name!r} is {value!r}, but must be from 0 to {count - 1}")
    return int(value)


def _labelled(question: str) -> tuple[Form, Form]:
    """Forms with a question, labelled choices and the correct label: AI2's fields; and OLMo's, with a query and an index."""

    def own(line: Line) -> Line:
        texts, labels, key = list(line["choices"]["text"]), list(line["choices"]["label"]), line["answerKey"]
        _need(len(texts) == len(labels), "'choices' must have as many labels as texts")
        _need(
            key.strip() in labels, f"'answerKey' is {key!r}, which is none of the labels {', '.join(map(str, labels))}"
        )
        _text(question)(line)
        return {question: line[question], "choices": {"text": texts, "label": labels}, "answerKey": key}

    def olmo(line: Line) -> Line:
        query, texts = line["query"], list(line["choices"])
        head, tail = "Question: ", "\nAnswer:"
        framed = query.startswith(head) and query.endswith(tail)
        _need(framed, f"'query' must read {head!r}, the question, {tail!r}, but is {query[:60]!r}")
        labels = list(LETTERS[: len(texts)])
        right = labels[_index(line["gold"], len(texts), "gold")]
        question_text = query.removeprefix(head).removesuffix(tail)
        return {question: question_text, "choices": {"text": texts, "label": labels}, "answerKey": right}

    return Form((question, "choices", "answerKey"), own), Form(("query", "choices", "gold"), olmo)


def _hellaswag() -> tuple[Form, Form]:
    names = ("activity_label", "ctx_a", "ctx_b", "endings", "label")

    def own(line: Line) -> Line:
        endings = list(line["endings"])
        label = _index(line["label"], len(endings), "label")
        return {**{name: line[name] or "" for name in names[:3]}, "endings": endings, "label": str(label)}

    def processed(line: Line) -> Line:
        choices = list(line["choices"])
        label = str(_index(line["gold"], len(choices), "gold"))
        return {"query": line["query"], "choices": choices, "label": label}

    # These lines are already preprocessed as the harness does it, and must not be preprocessed again.
    return Form(names, own), Form(("query", "choices", "gold"), processed, {"process_docs": None})


def _winogrande(line: Line) -> None:
    _need("_" in line["sentence"], "'sentence' has no '_', where the options go")
    _need(str(line["answer"]) in ("1", "2"), f"'answer' is {line['answer']!r}, but must be 1 or 2")


def _lambada(line: Line) -> None:
    _text("text")(line)
    _need(len(line["text"].split(" ")) > 1, "'text' must have several words: its last one is asked for")


def _boolq(line: Line) -> Line:
    right = line["answer"] if "answer" in line else line["label"]
    return {"passage": line["passage"], "question": line["question"], "label": _index(int(right), 2, "label")}


def _race_question(line: Line) -> Line:
    _need(line["answer"] in tuple("ABCD"), f"'answer' is {line['answer']!r}, but must be one of A, B, C, D")
    _need(len(line["options"]) == 4, "'options' must be four")
    return {name: line[name] for name in ("article", "question", "options", "answer")}


def _sat_question(line: Line) -> Line:
    """A question of RACE from one of AGIEval's SAT reading comprehension, in llm-foundry's fields."""
    parts = _SAT.fullmatch(line["query"])
    _need(parts is not None, "'query' must read 'Passage: ', 'Q: ', 'Choices:' A.) to D.) and 'Answer:', line by line")
    article, question, *options = parts.groups() if parts else ()
    answer = LETTERS[_index(line["gold"], 4, "gold")]
    return {"article": article, "question": question, "options": options, "answer": answer}


def _race_articles(lines: list[Line]) -> list[Line]:
    """Group questions into a document per article, in order; the harness asks the last question of an article."""
    grouped: dict[str, list[Line]] = {}
    for line in lines:
        problem = {name: line[name] for name in ("question", "answer", "options")}
        grouped.setdefault(line["article"], []).append(problem)
    return [{"article": article, "problems": repr(problems)} for article, problems in grouped.items()]


_SAT = re.compile(
    r"Passage: (.*)\nQ: (.*)\nChoices:\nA\.\) (.*)\nB\.\) (.*)\nC\.\) (.*)\nD\.\) (.*)\nAnswer:", re.DOTALL
)

FORMS: dict[str, tuple[Form, ...]] = {
    "arc_easy": _labelled("question"),
    "arc_challenge": _labelled("question"),
    "openbookqa": _labelled("question_stem"),
    "lambada_openai": (_kept("text", check=_lambada),),
    "lambada_standard": (_kept("text", check=_lambada),),
    "winogrande": (_kept("sentence", "option1", "option2", check=_winogrande, answer=str),),
    "piqa": (_kept("goal", "sol1", "sol2", label=lambda label: _index(label, 2, "label")),),
    "sciq": (_kept("question", "support", "distractor1", "distractor2", "distractor3", "correct_answer"),),
    "race": (
        _kept("article", "problems", check=_text("article")),
        Form(("article", "question", "options", "answer"), _race_question, gather=_race_articles),
        Form(("query", "choices", "gold"), _sat_question, gather=_race_articles),
    ),
    "hellaswag": _hellaswag(),
    "wikitext": (_kept("page", check=_text("page")), Form(("text",), lambda line: {"page": line["text"]})),
    "boolq": tuple(Form(("passage", "question", answer), _boolq) for answer in ("label", "answer")),
}


def forms_of(task: str, definition: Mapping[str, Any]) -> tuple[Form, ...]:
    """Forms that a task accepts; for a task without an entry in ``FORMS``, the fields that its templates name."""
    return FORMS.get(task) or (Form(template_fields(definition), dict),)


def template_fields(definition: Mapping[str, Any]) -> tuple[str, ...]:
    """Fields that a definition's templates read; empty if code preprocesses the lines, because they are then unknown."""
    from lm_eval.utils import env

    if callable(definition.get("process_docs")):
        return ()
    fields: dict[str, None] = {}
    for key in ("doc_to_text", "doc_to_choice", "doc_to_target"):
        template = definition.get(key)
        if isinstance(template, str) and template.isidentifier():
            fields[template] = None
        elif isinstance(template, str):
            with contextlib.suppress(TemplateSyntaxError):
                fields |= dict.fromkeys(sorted(meta.find_undeclared_variables(env.parse(template))))
    return tuple(fields)
