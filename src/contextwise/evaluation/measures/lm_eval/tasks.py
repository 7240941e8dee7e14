"""Tasks of the harness, on local files or on the Hub's data.

A local task is the harness's definition (its templates, metrics and version) with another dataset: the split that is
evaluated, and the split of the examples. Which splits these are follows the harness: the test split before the validation
split; examples from the training split, else the validation split, else the test split, or what the definition names. If the
file of a split is missing but another split has a file, that split is used, and the results report it; the evaluated split is
never chosen for the examples by default.
"""

import difflib
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml

from contextwise.base.errors import ConfigError, DataError
from contextwise.base.files import sha256_file
from contextwise.evaluation.measures.lm_eval.fields import Form, documents, forms_of
from contextwise.evaluation.measures.lm_eval.files import SplitFile, files_of, read_mapping, read_rows

SPLIT_KEYS = ("training_split", "validation_split", "test_split", "fewshot_split")


@dataclass(frozen=True)
class Definition:
    """A task as the harness defines it; ``splits`` is train, validation, test, examples -> its name in the data, or None."""

    name: str
    config: dict[str, Any]

    @property
    def splits(self) -> dict[str, str | None]:
        return dict(
            zip(("train", "validation", "test", "examples"), map(self.config.get, SPLIT_KEYS), strict=True)
        )

    @property
    def rolling(self) -> bool:
        """Whether the task scores whole texts, without examples."""
        return self.config.get("output_type") == "loglikelihood_rolling"

    @property
    def evaluated(self) -> str:
        """Split that the harness evaluates."""
        return self.splits["test"] or self.splits["validation"] or ""

    @property
    def examples(self) -> str:
        """Split that the harness uses for examples."""
        order = ("examples", "train", "validation", "test")
        return next(name for role in order if (name := self.splits[role]))


@dataclass(frozen=True)
class Missing:
    """A missing file of a task: the split to evaluate, or the split of its examples."""

    task: str
    shots: int
    split: str
    examples: bool

    @property
    def file(self) -> str:
        """A valid name for the file."""
        return f"{self.task}_{self.split}.jsonl"


@dataclass(frozen=True)
class Planned:
    """A task that can be run: the harness's object, and the source of its documents.

    Attributes:
        source: JSON-ready: the split evaluated, that of the examples, and the files with their hashes.
        notes: notes for the reader of the results.
    """

    name: str
    shots: int
    task: Any
    source: dict[str, Any]
    notes: tuple[str, ...] = ()

    @property
    def content(self) -> dict[str, Any]:
        """Source without the paths of the files."""
        files = [
            {key: value for key, value in file.items() if key != "file"} for file in self.source["files"]
        ]
        return self.source | {"files": files}


@functools.cache
def harness_tasks() -> TaskManager:
    """Load the harness's index of its tasks, which takes some seconds."""
    return TaskManager()


def find_tasks(names: Sequence[str]) -> list[Definition]:
    """Find the definitions of tasks, in the given order; a tag (``ai2_arc``) selects all its tasks.

    Raises:
        ConfigError: a task does not exist, is a group or a separate program, or requires text generation.
    """
    index = harness_tasks().task_index
    definitions: dict[str, Definition] = {}
    for name in names:
        if name not in index:
            near = difflib.get_close_matches(name, list(index), n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else "`lm_eval ls tasks` names them all"
            raise ConfigError(f"lm-evaluation-harness has no task {name!r}; {hint}")
        kind = index[name].kind.name
        if kind == "GROUP":
            raise ConfigError(f"{name!r} is a group of tasks; name the tasks in it")
        for task in sorted(index[name].tags) if kind == "TAG" else [name]:
            if index[task].kind.name != "TASK":
                raise ConfigError(f"the task {task!r} is a program of its own, which cannot be asked here")
            definitions[task] = Definition(task, load_yaml(index[task].yaml_path, resolve_func=True))
            if definitions[task].config.get("output_type", "generate_until") == "generate_until":
                raise ConfigError(
                    f"the task {task!r} lets the model write, which is not asked here; ask it with lm_eval --model hf"
                )
    return list(definitions.values())


@dataclass
class LocalData:
    """Local files of tasks; each is read once.

    Args:
        path: a folder, or a mapping file.

    Raises:
        DataError: the path does not exist.
        ConfigError: the mapping file is invalid.
    """

    path: Path
    _read: dict[tuple[str, str], tuple[datasets.Dataset, Form]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.known = frozenset(harness_tasks().task_index)
        self.mapping = read_mapping(self.path, self.known)

    def plan(self, definition: Definition, shots: int) -> Planned | list[Missing]:
        """Plan a task on local files, or list its missing files.

        Raises:
            DataError: a file is invalid; the message names it and the fields.
        """
        name = definition.name
        files = files_of(name, definition.splits, self.mapping, self.known)
        other = definition.splits["validation"]
        evaluated = other if definition.evaluated not in files and other in files else definition.evaluated
        asks_examples = bool(shots) and not definition.rolling
        wanted = self._own_choice(definition) or definition.examples
        examples = self._examples(definition, files, evaluated or "") if asks_examples else evaluated
        lost = [] if evaluated in files else [Missing(name, shots, definition.evaluated, examples=False)]
        if examples is None and (wanted != evaluated or not lost):
            lost.append(Missing(name, shots, wanted, examples=True))
        if lost or evaluated is None or examples is None:
            return lost
        notes = []
        if evaluated != definition.evaluated:
            notes.append(f"{name} is evaluated on {evaluated}, in the harness on {definition.evaluated}")
        if asks_examples and examples != definition.examples:
            notes.append(
                f"{name} takes its examples from {examples}, in the harness from {definition.examples}"
            )
        used = {split: files[split] for split in dict.fromkeys((evaluated, examples))}
        task = self._build(definition, used, evaluated, examples, shots)
        source = {
            "split": evaluated,
            "examples": examples if asks_examples else None,
            "files": [self._described(split, file, definition) for split, file in used.items()],
        }
        return Planned(name, shots, task, source, tuple(notes))

    def _own_choice(self, definition: Definition) -> str | None:
        """Split of the examples in the mapping; None if it names none."""
        own = self.mapping.tasks.get(definition.name)
        return None if own is None else own.examples

    def _examples(self, definition: Definition, files: dict[str, SplitFile], evaluated: str) -> str | None:
        """Split of the examples: the mapping's, the harness's, or another that is not evaluated."""
        own, theirs = self._own_choice(definition), definition.examples
        if own is not None:
            return own if own in files else None
        if theirs in files and (theirs != evaluated or theirs == definition.evaluated):
            return theirs
        return next((split for split in files if split != evaluated), None)

    def _build(
        self, definition: Definition, used: dict[str, SplitFile], evaluated: str, examples: str, shots: int
    ) -> Any:
        data, forms = {}, []
        for split, file in used.items():
            data[split], form = self._documents(definition, split, file)
            forms.append(form)
        if len({tuple(form.changed) for form in forms}) > 1:
            raise DataError(
                f"{definition.name}: the files {', '.join(str(file.file) for file in used.values())} hold different forms of "
                "lines, one from before the harness's own preparation and one from after; give both in the same form"
            )
        if shots and len(data[examples]) <= shots:
            raise DataError(
                f"{used[examples].file} has {len(data[examples])} documents, which are too few to take {shots} examples from"
            )
        changed: dict[str, Any] = {
            key: definition.config[key] if definition.config.get(key) in used else None for key in SPLIT_KEYS
        }
        if examples == evaluated == changed["test_split"] != definition.examples:
            # Only in this case does the harness exclude the evaluated document from its own examples.
            changed["fewshot_split"] = evaluated
        changed |= {**forms[0].changed, "custom_dataset": lambda **_: datasets.DatasetDict(data)}
        return make_task({**definition.config, **changed}, definition.name)

    def _documents(
        self, definition: Definition, split: str, file: SplitFile
    ) -> tuple[datasets.Dataset, Form]:
        key = (definition.name, split)
        if key not in self._read:
            rows, form = documents(
                file.file, read_rows(file.file), file.fields, forms_of(definition.name, definition.config)
            )
            try:
                self._read[key] = (datasets.Dataset.from_list(rows), form)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                reason = " ".join(str(error).split())[:200]
                raise DataError(
                    f"{file.file}: a field does not hold the same kind of value in every document ({reason})"
                ) from None
        return self._read[key]

    def _described(self, split: str, file: SplitFile, definition: Definition) -> dict[str, Any]:
        data, _ = self._read[definition.name, split]
        described = {
            "split": split,
            "file": str(file.file),
            "sha256": sha256_file(file.file),
            "documents": len(data),
        }
        return described | ({"fields": file.fields} if file.fields else {})


def plan_from_hub(definition: Definition, shots: int) -> Planned:
    """Plan a task on the Hub's data, as the harness loads it.

    Raises:
        DataError: the Hub does not have the data, or they cannot be read.
    """
    try:
        task = make_task(definition.config, definition.name)
    except DataError as error:
        raise DataError(f"from the Hub, {error}; give local files as task_data") from None
    examples = None if definition.rolling or not shots else definition.examples
    return Planned(
        definition.name, shots, task, {"split": definition.evaluated, "examples": examples, "files": []}
    )


def make_task(config: dict[str, Any], name: str) -> Any:
    """Build the harness's task object.

    Raises:
        DataError: the harness cannot build the task from these data.
    """
    try:
        return harness_tasks().load([config])["tasks"][name]
    except KeyError as error:
        raise DataError(f"the documents of {name} lack the field {error}, which its code reads") from None
    except Exception as error:
        raise DataError(
            f"{name}: lm-evaluation-harness cannot read its documents: {' '.join(str(error).split())[:300]}"
        ) from None
