"""Tasks of the harness: planning, and measurement of a model.

1. Each task and number of examples becomes a task of the harness, from the harness's own definitions or from a folder of yours.
2. The harness's ``simple_evaluate`` builds the prompts, queries :class:`.model.BoundedLM`, and computes its metrics.
3. ``harness-K-shot.json`` is its result in its own format, for each K; ``summary.json`` is the table of all of them.
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
from typing import Any

import datasets
import lm_eval.api.model
import lm_eval.api.task
import lm_eval.models.huggingface
import tqdm  # type: ignore[import-untyped]
from lm_eval import evaluator
from lm_eval.tasks import TaskManager
from lm_eval.utils import handle_non_serializable

from contextwise.base.errors import ConfigError, DataError, did_you_mean, one_line
from contextwise.base.hashes import content_key
from contextwise.base.machine import hub_problem
from contextwise.evaluation.kernel import Subject, Work
from contextwise_evals.harness.model import BoundedLM
from contextwise_evals.harness.tables import table_rows

RESAMPLES = 1000
"""Resamples for the standard error of a perplexity; the harness uses 100,000, which takes minutes on one core."""


@dataclass(frozen=True)
class Planned:
    """A task that can be run: the harness's object, and a hash of its definition and documents."""

    name: str
    shots: int
    task: Any

    @functools.cached_property
    def content(self) -> str:
        """SHA-256 of the documents, those that examples come from, and the definition without the files' paths."""
        examples = list(self.task.fewshot_docs() or ()) if self.shots else []
        rows = json.dumps([list(self.task.eval_docs), examples], default=str, sort_keys=True)
        paths = ("dataset_kwargs", "metadata")
        settings = {name: value for name, value in self.task.dump_config().items() if name not in paths}
        definition = json.dumps(settings, default=str, sort_keys=True)
        return content_key(definition=definition, rows=rows)


@functools.cache
def harness_tasks() -> TaskManager:
    """Load the harness's index of its tasks, which takes many seconds."""
    return TaskManager()


def load_tasks(names: Sequence[str], include_path: Path | None) -> dict[str, Any]:
    """Load tasks by name; a name is looked up in a folder of YAML files first. A tag or a group stands for its tasks."""
    if include_path is not None and not include_path.is_dir():
        raise DataError(f"include_path is {include_path}, but there is no such folder")
    tasks: dict[str, Any] = {}
    own = TaskManager(include_path=include_path, include_defaults=False)
    for name in names:
        manager = own if name in own.task_index else harness_tasks()
        if name not in manager.task_index:
            hint = did_you_mean(name, manager.task_index, "`lm_eval ls tasks` names them all")
            raise ConfigError(f"lm-evaluation-harness has no task {name!r}; {hint}")
        try:
            loaded = manager.load([name])["tasks"]
            documents = {task: len(loaded[task].eval_docs) for task in loaded}
        except Exception as error:
            raise DataError(
                f"{name}: lm-evaluation-harness cannot load the task: {type(error).__name__} {one_line(error)}; local files "
                "need a definition of the task in include_path"
            ) from None
        for task, count in documents.items():
            if loaded[task].OUTPUT_TYPE == "generate_until":
                raise ConfigError(
                    f"the task {task!r} is a generation task, which is not supported here; run it with lm_eval --model hf"
                )
            if count == 0:
                raise DataError(f"the task {task!r} has no documents")
        tasks |= loaded
    return tasks


def plan_tasks(names: Sequence[str], num_fewshot: Sequence[int], include_path: Path | None) -> list[Planned]:
    """Plan every task with every number of examples (tasks on whole texts only once).

    Raises:
        ConfigError: a task does not exist, or is a generation task.
        DataError: a task's documents cannot be read, or are too few for the examples; or the Hub cannot be reached.
    """
    problem = hub_problem() if include_path is None else None
    if problem:
        raise DataError(
            f"the tasks' documents are on the Hub, and {problem}; give a folder of definitions with local files as include_path"
        )
    plans: list[Planned] = []
    for shots in num_fewshot:
        for name, task in load_tasks(names, include_path).items():
            rolling = task.OUTPUT_TYPE == "loglikelihood_rolling"
            if rolling and shots != num_fewshot[0]:
                continue  # these tasks have no examples: the results would be the same
            left_out = task.fewshot_cfg.split == task.config.test_split  # the question itself
            if shots and not rolling and len(task.fewshot_docs()) < shots + left_out:
                raise DataError(
                    f"the task {name!r} has {len(task.fewshot_docs())} documents for examples, which are too few to take "
                    f"{shots} from"
                )
            plans.append(Planned(name, shots, task))
    return plans


def ask_tasks(
    subject: Subject, planned: Sequence[Planned], max_length: int | None, limit: int | None, work: Work
) -> tuple[dict[str, Any], dict[str, str]]:
    """Measure a model on planned tasks: the summary, and the harness's results as files.

    Raises:
        CheckpointError: the model's logits are NaN, or its tokenizer does not fit.
        Interrupted: the process received a request to stop.
    """
    results: dict[int, dict[str, Any]] = {}
    right: dict[tuple[int, str], str] = {}
    cut: dict[int, dict[str, int]] = {}
    options: dict[str, Any] = {"max_length": max_length, "batch_tokens": subject.batch_tokens}
    with quiet(), work.journal("answers") as journal:
        lm = BoundedLM(subject.model, subject.tokenizer, journal=journal, **options)
        for shots in sorted({task.shots for task in planned}):
            lm.cut.clear()
            lm.stage = f"{shots}-shot"
            tasks = [task for task in planned if task.shots == shots]
            results[shots], samples = _evaluated(lm, tasks, shots, limit, subject.source)
            right |= {(shots, name): _right(answered) for name, answered in samples.items()}
            cut[shots] = {task: len(documents) for task, documents in lm.cut.items()}
    summary = {"positions": lm.max_length, **table_rows(results, planned, cut)}
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
        task_manager=TaskManager(include_defaults=False),
    )
    results["config"] |= {"model": "contextwise", "model_args": {"pretrained": source}, "device": str(lm.device)}
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
