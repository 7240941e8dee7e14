"""Tasks of the harness on local files or on the Hub's data: planning, and measurement of a model.

1. Each task and number of examples becomes a task of the harness: its own definition (templates, metrics, version), for local
   files with another dataset.
2. The harness's ``simple_evaluate`` builds the prompts, queries :class:`.model.BoundedLM`, and computes its metrics.
3. ``harness-K-shot.json`` is its result in its own format, for each K; ``summary.json`` is the table of all of them.

The split that is evaluated and the split of the examples follow the harness: the test split before the validation split;
examples from the training split, else the validation split, else the test split, or what the definition names. If the file of
a split is missing but another split has a file, that split is used, and the results report it; the evaluated split is never
chosen for the examples by default.
"""

import contextlib
import functools
import io
import json
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import lm_eval.api.model
import lm_eval.api.task
import lm_eval.models.huggingface
import pyarrow as pa
import tqdm  # type: ignore[import-untyped]
from lm_eval import evaluator
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml
from lm_eval.utils import handle_non_serializable

from contextwise.base.errors import ConfigError, DataError, did_you_mean, one_line
from contextwise.base.hashes import sha256_file
from contextwise.base.machine import hub_problem
from contextwise.evaluation.kernel import Subject
from contextwise.evaluation.measures.lm_eval.files import (
    Form,
    SplitFile,
    documents,
    files_of,
    forms_of,
    read_mapping,
    read_rows,
)
from contextwise.evaluation.measures.lm_eval.model import BoundedLM
from contextwise.evaluation.measures.lm_eval.tables import table_rows

RESAMPLES = 1000
"""Resamples for the standard error of a perplexity; the harness uses 100,000, which takes minutes on one core."""
SPLIT_KEYS = ("training_split", "validation_split", "test_split", "fewshot_split")


@dataclass(frozen=True)
class Definition:
    """A task as the harness defines it; ``splits`` is train, validation, test, examples -> its name in the data, or None."""

    name: str
    config: dict[str, Any]

    @property
    def splits(self) -> dict[str, str | None]:
        return dict(zip(("train", "validation", "test", "examples"), map(self.config.get, SPLIT_KEYS), strict=True))

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


class Missing(NamedTuple):
    """A missing file of a task, by a valid name: of the split to evaluate, or of the split of its examples."""

    task: str
    shots: int
    file: str
    examples: bool


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
        files = [{key: file[key] for key in file if key != "file"} for file in self.source["files"]]
        return self.source | {"files": files}


@functools.cache
def harness_tasks() -> TaskManager:
    """Load the harness's index of its tasks, which takes some seconds."""
    return TaskManager()


def find_tasks(names: Sequence[str]) -> list[Definition]:
    """Find the definitions of tasks, in the given order; a tag (``ai2_arc``) selects all its tasks."""
    index = harness_tasks().task_index
    definitions: dict[str, Definition] = {}
    for name in names:
        if name not in index:
            hint = did_you_mean(name, index, "`lm_eval ls tasks` names them all")
            raise ConfigError(f"lm-evaluation-harness has no task {name!r}; {hint}")
        kind = index[name].kind.name
        if kind == "GROUP":
            raise ConfigError(f"{name!r} is a group of tasks; name the tasks in it")
        for task in sorted(index[name].tags) if kind == "TAG" else [name]:
            if index[task].kind.name != "TASK":
                raise ConfigError(f"the task {task!r} is a separate program, which cannot be run here")
            definitions[task] = Definition(task, load_yaml(index[task].yaml_path, resolve_func=True))
            if definitions[task].config.get("output_type", "generate_until") == "generate_until":
                raise ConfigError(
                    f"the task {task!r} is a generation task, which is not supported here; run it with lm_eval --model hf"
                )
    return list(definitions.values())


class LocalData:
    """Local files of tasks, in a folder or named by a mapping file; each is read once."""

    def __init__(self, path: Path) -> None:
        self.known = frozenset(harness_tasks().task_index)
        self.mapping = read_mapping(path, self.known)
        self._read: dict[tuple[str, str], tuple[datasets.Dataset, Form]] = {}

    def plan(self, definition: Definition, shots: int) -> Planned | list[Missing]:
        """Plan a task on local files, or list its missing files."""
        name = definition.name
        files = files_of(name, definition.splits, self.mapping, self.known)
        other = definition.splits["validation"]
        evaluated = other if definition.evaluated not in files and other in files else definition.evaluated
        with_examples = bool(shots) and not definition.rolling
        own = self.mapping.tasks[name].examples if name in self.mapping.tasks else None
        examples = self._examples(definition, files, evaluated or "", own) if with_examples else evaluated
        lost = [] if evaluated in files else [Missing(name, shots, f"{name}_{definition.evaluated}.jsonl", False)]
        wanted = own or definition.examples
        if examples is None and (wanted != evaluated or not lost):
            lost.append(Missing(name, shots, f"{name}_{wanted}.jsonl", True))
        if lost or evaluated is None or examples is None:
            return lost
        notes = []
        if evaluated != definition.evaluated:
            notes.append(f"{name} is evaluated on {evaluated}, in the harness on {definition.evaluated}")
        if with_examples and examples != definition.examples:
            notes.append(f"{name} takes its examples from {examples}, in the harness from {definition.examples}")
        used = {split: files[split] for split in dict.fromkeys((evaluated, examples))}
        task = self._build(definition, used, evaluated, examples, shots)
        described = []
        for split, file in used.items():
            content = {"sha256": sha256_file(file.file), "documents": len(self._read[name, split][0])}
            content |= {"fields": file.fields} if file.fields else {}
            described.append({"split": split, "file": str(file.file), **content})
        source = {"split": evaluated, "examples": examples if with_examples else None, "files": described}
        return Planned(name, shots, task, source, tuple(notes))

    @staticmethod
    def _examples(definition: Definition, files: dict[str, SplitFile], evaluated: str, own: str | None) -> str | None:
        """Split of the examples: the mapping's own, the harness's, or another that is not evaluated."""
        theirs = definition.examples
        if own is not None:
            return own if own in files else None
        if theirs in files and (theirs != evaluated or theirs == definition.evaluated):
            return theirs
        return next((split for split in files if split != evaluated), None)

    def _build(
        self, definition: Definition, used: dict[str, SplitFile], evaluated: str, examples: str, shots: int
    ) -> Any:
        read = {split: self._documents(definition, split, file) for split, file in used.items()}
        data, forms = {split: rows for split, (rows, _) in read.items()}, [form for _, form in read.values()]
        if len({tuple(form.changed) for form in forms}) > 1:
            raise DataError(
                f"{definition.name}: the files {', '.join(str(file.file) for file in used.values())} hold different forms of "
                "lines, one from before the harness's own preparation and one from after; give both in the same form"
            )
        if shots and len(data[examples]) <= shots:
            raise DataError(
                f"{used[examples].file} has {len(data[examples])} documents, which are too few to take {shots} examples from"
            )
        splits = {key: definition.config.get(key) for key in SPLIT_KEYS}
        changed: dict[str, Any] = {key: name if name in used else None for key, name in splits.items()}
        if examples == evaluated == changed["test_split"] != definition.examples:
            # Only in this case does the harness exclude the evaluated document from its own examples.
            changed["fewshot_split"] = evaluated
        changed |= {**forms[0].changed, "custom_dataset": lambda **_: datasets.DatasetDict(data)}
        return make_task({**definition.config, **changed}, definition.name)

    def _documents(self, definition: Definition, split: str, file: SplitFile) -> tuple[datasets.Dataset, Form]:
        key = (definition.name, split)
        if key not in self._read:
            forms = forms_of(definition.name, definition.config)
            rows, form = documents(file.file, read_rows(file.file), file.fields, forms)
            try:
                self._read[key] = (datasets.Dataset.from_list(rows), form)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                reason = one_line(error)
                raise DataError(
                    f"{file.file}: a field does not hold the same kind of value in every document ({reason})"
                ) from None
        return self._read[key]


def plan_from_hub(definition: Definition, shots: int) -> Planned:
    """Plan a task on the Hub's data, as the harness loads it."""
    try:
        task = make_task(definition.config, definition.name)
    except DataError as error:
        raise DataError(f"from the Hub, {error}; give local files as task_data") from None
    examples = None if definition.rolling or not shots else definition.examples
    source: dict[str, Any] = {"split": definition.evaluated, "examples": examples, "files": []}
    return Planned(definition.name, shots, task, source)


def make_task(config: dict[str, Any], name: str) -> Any:
    """Build the harness's task object."""
    try:
        return harness_tasks().load([config])["tasks"][name]
    except KeyError as error:
        raise DataError(f"the documents of {name} lack the field {error}, which its code reads") from None
    except Exception as error:
        raise DataError(f"{name}: lm-evaluation-harness cannot read its documents: {one_line(error)}") from None


def plan_tasks(
    names: Sequence[str], num_fewshot: Sequence[int], task_data: Path | None, skip_missing: bool
) -> tuple[list[Planned], list[Missing]]:
    """Plan every task with every number of examples (tasks on whole texts only once), and list the missing files.

    Raises:
        ConfigError: a task does not exist.
        DataError: a set is missing and ``skip_missing`` is not set, or all are missing; or the Hub cannot be reached.
    """
    definitions = find_tasks(names)
    local = None if task_data is None else LocalData(task_data)
    problem = hub_problem() if local is None else None
    if problem:
        raise DataError(
            f"without task_data tasks are loaded from the Hub, and {problem}; give local files as task_data"
        )
    plans: list[Planned | list[Missing]] = []
    for shots in num_fewshot:
        for definition in definitions:
            if definition.rolling and shots != num_fewshot[0]:
                continue  # these tasks have no examples: the results would be the same
            plans.append(plan_from_hub(definition, shots) if local is None else local.plan(definition, shots))
    planned = [plan for plan in plans if isinstance(plan, Planned)]
    missing = [gap for plan in plans if isinstance(plan, list) for gap in plan]
    if missing and not (skip_missing and planned):
        named = dict.fromkeys(f"{each.file}{' (for examples)' if each.examples else ''}" for each in missing)
        others = " or name others in a mapping file"
        if not skip_missing:
            others = " name others in a mapping file, or leave these sets out with skip_missing"
        raise DataError(f"{task_data} lacks {', '.join(named)}; add these files,{others}")
    return planned, missing


def ask_tasks(
    subject: Subject, planned: Sequence[Planned], missing: Sequence[Missing], max_length: int | None, limit: int | None
) -> tuple[dict[str, Any], dict[str, str]]:
    """Measure a model on planned tasks: the summary, and the harness's results as files.

    Raises:
        CheckpointError: the model's logits are NaN, or its tokenizer does not fit.
        Interrupted: the process received a request to stop.
    """
    results: dict[int, dict[str, Any]] = {}
    right: dict[tuple[int, str], str] = {}
    cut: dict[int, dict[str, int]] = {}
    with quiet():
        lm = BoundedLM(subject.model, subject.tokenizer, max_length=max_length, batch_tokens=subject.batch_tokens)
        for shots in sorted({task.shots for task in planned}):
            lm.cut.clear()
            lm.stage = f"{shots}-shot"
            tasks = [task for task in planned if task.shots == shots]
            results[shots], samples = _evaluated(lm, tasks, shots, limit, subject.source)
            right |= {(shots, name): _right(answered) for name, answered in samples.items()}
            cut[shots] = {task: len(documents) for task, documents in lm.cut.items()}
    summary = {"positions": lm.max_length, **table_rows(results, planned, missing, cut)}
    for row in summary["rows"]:
        row["right"] = right[row["shots"], row["task"]]
    files = {
        f"harness-{shots}-shot.json": json.dumps(result, indent=2, ensure_ascii=False) + "\n"
        for shots, result in results.items()
    }
    return summary, files


def _right(answered: Sequence[dict[str, Any]]) -> str:
    """Which questions a model answered right, in their order: ``"1"``, else ``"0"``; empty for a task without an accuracy."""
    first = {each["doc_id"]: each for each in reversed(answered)}  # of several filters, the first is used
    return "".join(f"{first[number]['acc']:.0f}" for number in sorted(first) if "acc" in first[number])


def _evaluated(
    lm: BoundedLM, planned: Sequence[Planned], shots: int, limit: int | None, source: str
) -> tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]:
    """The harness's results in its own format, of tasks with one number of examples; and its answers by task."""
    results = evaluator.simple_evaluate(
        lm,
        tasks=[plan.task for plan in planned],
        num_fewshot=shots,
        limit=limit,
        bootstrap_iters=RESAMPLES,
        log_samples=True,
        task_manager=harness_tasks(),
    )
    results["config"] |= {"model": "contextwise", "model_args": {"pretrained": source}, "device": str(lm.device)}
    for plan in planned:
        config = results["configs"][plan.name]
        if config.pop("custom_dataset", None) is not None:
            files = {file["split"]: file["file"] for file in plan.source["files"]}
            config |= {"dataset_path": "json", "dataset_name": None, "dataset_kwargs": {"data_files": files}}
    samples = results.pop("samples")
    return json.loads(json.dumps(results, default=handle_non_serializable, ensure_ascii=False)), samples


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress the harness's log, progress bars and output, and run its resampling in this process."""
    hidden = functools.partial(tqdm.tqdm, disable=True)
    with contextlib.ExitStack() as stack:
        for module in (tqdm, lm_eval.api.task, lm_eval.api.model, lm_eval.models.huggingface):
            stack.callback(setattr, module, "tqdm", module.tqdm)
            module.tqdm = hidden
        stack.callback(setattr, evaluator, "get_git_commit_hash", evaluator.get_git_commit_hash)
        # The hash is that of the current folder; git complains outside a repository.
        evaluator.get_git_commit_hash = lambda: None
        for name in ("lm_eval", "transformers", "datasets", "huggingface_hub"):
            logger = logging.getLogger(name)
            stack.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.ERROR)
        if not datasets.are_progress_bars_disabled():
            stack.callback(datasets.enable_progress_bars)
            datasets.disable_progress_bars()
        if "DISABLE_MULTIPROC" not in os.environ:
            stack.callback(os.environ.pop, "DISABLE_MULTIPROC")
            os.environ["DISABLE_MULTIPROC"] = "1"
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        yield
