"""Local files of tasks: the file of each split, and the records in it.

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
"""

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import yaml
from pydantic import Field, field_validator

from contextwise.base.config import Settings, validate
from contextwise.base.errors import ConfigError, DataError
from contextwise.data.input_files import read_bytes, read_objects, readable

MAPPINGS = ("tasks.yaml", "tasks.yml", "tasks.json")
SUFFIXES = (".jsonl", ".ndjson", ".json", ".parquet", ".txt")
WORDS = {
    "training": "train",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    **{name: name for name in ("train", "validation", "test")},
}


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


class Mapping(Settings):
    """Content of a mapping file, or its default without a mapping file."""

    folder: Path | None = None
    tasks: dict[str, TaskFiles] = Field(default_factory=dict)


def read_mapping(path: Path, known: Collection[str]) -> Mapping:
    """Read the mapping of a folder or a mapping file; its relative paths are resolved.

    Args:
        path: the folder or file in ``task_data``.
        known: names of all tasks.

    Raises:
        DataError: the path does not exist.
        ConfigError: the mapping file is invalid, or names a task that does not exist.
    """
    if not path.exists():
        raise DataError(f"task_data is {path}, but there is no such folder or file")
    candidates = [path / name for name in MAPPINGS if (path / name).is_file()] if path.is_dir() else [path]
    if not candidates:
        return Mapping(folder=path)
    mapping = validate(Mapping, _read_yaml(candidates[0]), f"the mapping file {candidates[0]}")
    for name in mapping.tasks:
        if name not in known:
            raise ConfigError(
                f"the mapping file {candidates[0]} names a task {name!r}, which the harness does not have"
            )
    root = candidates[0].parent
    for files in mapping.tasks.values():
        for file in files.splits.values():
            file.file = root / file.file.expanduser()
    mapping.folder = root if mapping.folder is None else root / mapping.folder.expanduser()
    if not mapping.folder.is_dir():
        raise DataError(
            f"the mapping file {candidates[0]} names the folder {mapping.folder}, which does not exist"
        )
    return mapping


def _read_yaml(path: Path) -> dict[str, Any]:
    with readable(path):
        try:
            data = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (UnicodeDecodeError, yaml.YAMLError) as error:
            raise ConfigError(
                f"the mapping file {path} is not valid YAML: {' '.join(str(error).split())[:200]}"
            ) from None
    if not isinstance(data, dict):
        raise ConfigError(f"the mapping file {path} must hold 'tasks', a mapping of task names to files")
    return data


def files_of(
    task: str, splits: dict[str, str | None], mapping: Mapping, known: Collection[str]
) -> dict[str, SplitFile]:
    """Map the splits of a task to files; the mapping's entries have priority over file names in its folder.

    Args:
        splits: ``train``, ``validation``, ``test`` -> the harness's name of that split of the task, or None.
        known: names of all tasks: a file belongs to the task with the longest name that begins the file's name.

    Raises:
        ConfigError: the mapping names a split that the task does not have.
        DataError: two files of the folder could be the same split.
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
    rest = parts[count:]
    for word in rest:
        if word in splits.values():
            return word
        if word in WORDS:
            return splits[WORDS[word]]
    return splits["test"] or splits["validation"]


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read the records of a file: JSON Lines, a JSON list, Parquet, or WikiText's ``.txt``, split into articles.

    Raises:
        DataError: the file is missing, damaged or empty, or a line is not a JSON object; the message names the line.
    """
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
