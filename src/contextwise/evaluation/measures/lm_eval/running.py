"""Planning and running of tasks of lm-evaluation-harness.

1. Each task and number of examples becomes a task of the harness, on local files or on the Hub's data (:mod:`.tasks`).
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
from pathlib import Path
from typing import Any

import datasets
import lm_eval.api.model
import lm_eval.api.task
import lm_eval.models.huggingface
import tqdm  # type: ignore[import-untyped]
from lm_eval import evaluator
from lm_eval.utils import handle_non_serializable

from contextwise.base.errors import DataError
from contextwise.base.machine import hub_problem
from contextwise.evaluation.kernel import Subject
from contextwise.evaluation.measures.lm_eval.model import BoundedLM
from contextwise.evaluation.measures.lm_eval.tables import table_rows
from contextwise.evaluation.measures.lm_eval.tasks import (
    LocalData,
    Missing,
    Planned,
    find_tasks,
    harness_tasks,
    plan_from_hub,
)

RESAMPLES = 1000
"""Resamples for the standard error of a perplexity; the harness uses 100,000, which takes minutes on one core."""


def ask_tasks(
    subject: Subject,
    planned: Sequence[Planned],
    missing: Sequence[Missing],
    max_length: int | None,
    limit: int | None,
) -> tuple[dict[str, Any], dict[str, str]]:
    """Measure a model on planned tasks: the summary, and the harness's results as files.

    Args:
        max_length: maximum number of positions; None: the value that the harness reads from the model's configuration.
        limit: use only the first ``limit`` documents of each task.

    Raises:
        CheckpointError: the model's logits are NaN, or its tokenizer does not fit.
        Interrupted: the process received a request to stop.
    """
    results = {}
    cut: dict[int, dict[str, int]] = {}
    with quiet():
        lm = BoundedLM(
            subject.model, subject.tokenizer, max_length=max_length, batch_tokens=subject.batch_tokens
        )
        for shots in sorted({task.shots for task in planned}):
            tasks = [task for task in planned if task.shots == shots]
            results[shots] = run_tasks(lm, tasks, shots, limit, subject.source)
            cut[shots] = {task: len(documents) for task, documents in lm.cut.items()}
    summary = {"positions": lm.max_length, **table_rows(results, planned, missing, cut)}
    files = {
        f"harness-{shots}-shot.json": json.dumps(result, indent=2, ensure_ascii=False) + "\n"
        for shots, result in results.items()
    }
    return summary, files


def plan_tasks(
    names: Sequence[str], num_fewshot: Sequence[int], task_data: Path | None, skip_missing: bool
) -> tuple[list[Planned], list[Missing]]:
    """Plan every task with every number of examples (tasks on whole texts only once), and list the missing files.

    Args:
        names: names of tasks and tags.
        num_fewshot: numbers of examples, ascending.
        task_data: a folder or a mapping file; None: the Hub.

    Raises:
        ConfigError: a task does not exist.
        DataError: a set is missing and ``skip_missing`` is not set, or all are missing; or the Hub is needed and cannot be
            reached.
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
        others = (
            " or name others in a mapping file"
            if skip_missing
            else " name others in a mapping file, or leave these sets out with skip_missing"
        )
        raise DataError(f"{task_data} lacks {', '.join(named)}; add these files,{others}")
    return planned, missing


def run_tasks(
    lm: BoundedLM, planned: Sequence[Planned], shots: int, limit: int | None, source: str
) -> dict[str, Any]:
    """Run tasks with one number of shots; return the harness's results in its format. ``lm.cut`` is reset."""
    lm.cut.clear()
    lm.stage = f"{shots}-shot"
    results = evaluator.simple_evaluate(
        lm,
        tasks=[plan.task for plan in planned],
        num_fewshot=shots,
        limit=limit,
        bootstrap_iters=RESAMPLES,
        log_samples=False,
        task_manager=harness_tasks(),
    )
    results["config"] |= {
        "model": "contextwise",
        "model_args": {"pretrained": source},
        "device": str(lm.device),
    }
    for plan in planned:
        config = results["configs"][plan.name]
        if config.pop("custom_dataset", None) is not None:
            files = {file["split"]: file["file"] for file in plan.source["files"]}
            config |= {"dataset_path": "json", "dataset_name": None, "dataset_kwargs": {"data_files": files}}
    return json.loads(json.dumps(results, default=handle_non_serializable, ensure_ascii=False))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress the harness's log, progress bars and output, and run its resampling in this process."""
    hidden = functools.partial(tqdm.tqdm, disable=True)
    with contextlib.ExitStack() as stack:
        for module in (tqdm, lm_eval.api.task, lm_eval.api.model, lm_eval.models.huggingface):
            stack.callback(setattr, module, "tqdm", module.tqdm)
            module.tqdm = hidden
        stack.callback(setattr, evaluator, "get_git_commit_hash", evaluator.get_git_commit_hash)
        evaluator.get_git_commit_hash = lambda: (
            None
        )  # of the current folder; git complains outside a repository
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
