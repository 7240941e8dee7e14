"""Tasks of lm-evaluation-harness, from a model's name to results on disk.

1. Each task and number of shots becomes a task of the harness, on local files or on the Hub's (:mod:`.tasks`).
2. The harness's ``simple_evaluate`` makes the prompts, asks :class:`.model.BoundedLM`, and computes its metrics.
3. ``harness-K-shot.json`` is its result in its own format, for each K; ``summary.json`` the table made of them.
"""

import contextlib
import dataclasses
import functools
import io
import itertools
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import lm_eval.api.model
import lm_eval.api.task
import lm_eval.models.huggingface
import tqdm  # type: ignore[import-untyped]
from lm_eval import evaluator
from lm_eval.utils import handle_non_serializable

from contextwise.base.environment import describe_environment
from contextwise.base.errors import ConfigError, DataError
from contextwise.base.files import atomic_directory, atomic_write, read_json, write_json
from contextwise.base.hub import hub_problem
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
from contextwise.evaluation.opening import default_destination, model_on_device, positions, tell_of_contexts
from contextwise.evaluation.results import Measured
from contextwise.evaluation.scoring.windows import DEFAULT_BATCH_TOKENS
from contextwise.models import load_tokenizer

KIND, SUMMARY = "tasks", "summary.json"
RESAMPLES = 1000
"""Resamples behind the standard error of a perplexity; the harness takes 100,000, which is minutes of one core."""


@dataclass(frozen=True)
class Settings:
    """What is asked.

    Attributes:
        tasks: the harness's names; a tag stands for its tasks.
        shots: numbers of examples before each question; every task is asked with each.
        task_data: a folder or a mapping file (:mod:`.files`); None: the Hub.
        skip_missing: go on without the sets that are not there.
        limit: ask only the first so many documents of each task.

    Raises:
        ConfigError: one of them is out of range.
    """

    tasks: tuple[str, ...]
    shots: tuple[int, ...] = (0,)
    task_data: Path | None = None
    skip_missing: bool = False
    limit: int | None = None

    def __post_init__(self) -> None:
        if not self.tasks or not all(self.tasks):
            raise ConfigError(
                "--tasks names no task, or has a comma too many; give some, such as arc_easy,lambada_openai"
            )
        if not self.shots or any(not 0 <= shots <= 100 for shots in self.shots):
            raise ConfigError(f"--shots is {', '.join(map(str, self.shots))}; give numbers from 0 to 100")
        if self.limit is not None and self.limit < 1:
            raise ConfigError(f"--limit-documents is {self.limit}; it must be at least 1")
        object.__setattr__(self, "tasks", tuple(dict.fromkeys(self.tasks)))
        object.__setattr__(self, "shots", tuple(sorted(set(self.shots))))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        place = None if self.task_data is None else str(self.task_data)
        return {
            **dataclasses.asdict(self),
            "tasks": list(self.tasks),
            "shots": list(self.shots),
            "task_data": place,
        }


def evaluate_on_tasks(
    source: str,
    settings: Settings,
    *,
    context: int | None = None,
    batch_tokens: int | None = None,
    dtype: str = "auto",
    device: str = "auto",
    out: Path | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Measured:
    """Ask a model the harness's tasks; write the harness's results and our table beside the model's run.

    Args:
        source: a run folder, a Hugging Face model folder, or a name on the Hub: any causal language model.
        context: positions that are used at most; by default all that the model has.
        batch_tokens: positions of one batch, padding included; 16384 by default.
        dtype, device: as :func:`~contextwise.evaluation.measures.loss.evaluate_model` takes them.
        out: where to write; by default ``RUN/evaluation/tasks``, or ``evaluation/MODEL/tasks``; ``tasks-2`` and so on
            where that holds something else.
        should_stop: asked before each batch.

    Raises:
        ConfigError: a setting is wrong, there is no such task, or ``out`` holds something else.
        DataError: files of tasks are missing (all are named) or wrong, or the Hub cannot be reached.
        CheckpointError: there is no such model, it is no causal language model, or its logits are NaN.
        Interrupted: ``should_stop`` said so; nothing was written.
    """
    started = time.monotonic()
    with quiet():
        planned, missing = plan_tasks(settings)
        out = destination(out, source, settings)
        model = model_on_device(source, dtype, device)
        tell_of_contexts(source, model)
        lm = BoundedLM(
            model,
            load_tokenizer(source),
            max_length=_length(source, positions(model), context),
            batch_tokens=DEFAULT_BATCH_TOKENS if batch_tokens is None else batch_tokens,
            should_stop=should_stop,
        )
        results = {}
        cut: dict[int, dict[str, int]] = {}
        for shots in settings.shots:
            asked = [plan for plan in planned if plan.shots == shots]
            if asked:
                results[shots] = run_tasks(lm, asked, shots, settings.limit, source)
                cut[shots] = {task: len(found) for task, found in lm.cut.items()}
    summary = {
        "kind": KIND,
        "model": source,
        **settings.to_dict(),
        "parameters": model.num_parameters(),
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": model.device.type,
        "positions": lm.max_length,
        **table_rows(results, planned, missing, cut),
        "seconds": round(time.monotonic() - started, 3),
        "environment": describe_environment(),
    }
    write_results(out, summary, results)
    return Measured(out, summary)


def plan_tasks(settings: Settings) -> tuple[list[Planned], list[Missing]]:
    """Every task with every number of shots, whole texts once only; and what is not there for some.

    Raises:
        ConfigError: there is no such task.
        DataError: something is not there, and ``skip_missing`` is not set; or nothing is there at all; or the Hub is asked
            and cannot be reached.
    """
    definitions = find_tasks(settings.tasks)
    local = None if settings.task_data is None else LocalData(settings.task_data)
    problem = hub_problem() if local is None else None
    if problem:
        raise DataError(
            f"without --task-data tasks are loaded from the Hub, and {problem}; give local files with --task-data"
        )
    found: list[Planned | list[Missing]] = []
    for shots in settings.shots:
        for definition in definitions:
            if definition.rolling and shots != settings.shots[0]:
                continue  # examples stand before nothing there: the figures would be the same
            found.append(plan_from_hub(definition, shots) if local is None else local.plan(definition, shots))
    planned = [plan for plan in found if isinstance(plan, Planned)]
    missing = [gap for plan in found if isinstance(plan, list) for gap in plan]
    if missing and not (settings.skip_missing and planned):
        named = dict.fromkeys(f"{each.file}{' (for examples)' if each.examples else ''}" for each in missing)
        others = (
            " or name others in a mapping file"
            if settings.skip_missing
            else " name others in a mapping file, or leave these sets out with --skip-missing"
        )
        raise DataError(f"{settings.task_data} lacks {', '.join(named)}; add these files,{others}")
    return planned, missing


def run_tasks(
    lm: BoundedLM, asked: Sequence[Planned], shots: int, limit: int | None, source: str
) -> dict[str, Any]:
    """The harness's results of some tasks with one number of shots, in its own format; ``lm.cut`` counts anew."""
    lm.cut.clear()
    lm.stage = f"{shots}-shot"
    found = evaluator.simple_evaluate(
        lm,
        tasks=[plan.task for plan in asked],
        num_fewshot=shots,
        limit=limit,
        bootstrap_iters=RESAMPLES,
        log_samples=False,
        task_manager=harness_tasks(),
    )
    found["config"] |= {
        "model": "contextwise",
        "model_args": {"pretrained": source},
        "device": str(lm.device),
    }
    for plan in asked:
        config = found["configs"][plan.name]
        if config.pop("custom_dataset", None) is not None:
            files = {file["split"]: file["file"] for file in plan.source["files"]}
            config |= {"dataset_path": "json", "dataset_name": None, "dataset_kwargs": {"data_files": files}}
    return json.loads(json.dumps(found, default=handle_non_serializable, ensure_ascii=False))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep the harness's log, its bars and what it prints off the terminal, and its resampling in this process."""
    hidden = functools.partial(tqdm.tqdm, disable=True)
    with contextlib.ExitStack() as stack:
        for module in (tqdm, lm_eval.api.task, lm_eval.api.model, lm_eval.models.huggingface):
            stack.callback(setattr, module, "tqdm", module.tqdm)
            module.tqdm = hidden
        stack.callback(setattr, evaluator, "get_git_commit_hash", evaluator.get_git_commit_hash)
        evaluator.get_git_commit_hash = lambda: (
            None
        )  # of the folder one happens to be in; git complains where it is none
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


def destination(out: Path | None, source: str, settings: Settings) -> Path:
    """Where the results go: ``out``, or the first place of the model's own that is free or holds the same.

    Raises:
        ConfigError: ``out`` holds something else than this model's results of these tasks.
    """
    if out is None:
        names = itertools.chain(["tasks"], (f"tasks-{number}" for number in itertools.count(2)))
        places = (default_destination(source, name) for name in names)
        return next(place for place in places if not _problem(place, source, settings))
    problem = _problem(out, source, settings)
    if problem:
        raise ConfigError(f"{out} holds {problem}; give another place with --out, or remove that folder")
    return out


def _problem(out: Path, source: str, settings: Settings) -> str:
    """What lies at ``out`` that must not be replaced; nothing if that is free, or the same results."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return ""
    file = out / SUMMARY
    there = read_json(file, "what lies where the results go") if file.is_file() else None
    if not isinstance(there, dict) or there.get("kind") != KIND:
        return "something that is not results of tasks"
    wanted = {"model": source, **settings.to_dict()}
    different = [
        key for key in ("model", "tasks", "shots", "task_data", "limit") if there.get(key) != wanted[key]
    ]
    return f"results with another {', '.join(different)}" if different else ""


def write_results(out: Path, summary: dict[str, Any], results: dict[int, dict[str, Any]]) -> None:
    """Write everything, complete or not at all; results that are already at ``out`` are replaced.

    Raises:
        DataError: the disk is full, or the place cannot be written to.
    """
    with atomic_directory(out, "the results", replace=True) as folder:
        for shots, found in results.items():
            text = json.dumps(found, indent=2, ensure_ascii=False) + "\n"
            atomic_write(folder / f"harness-{shots}-shot.json", text, "the results")
        write_json(folder / SUMMARY, summary, "the results")


def _length(source: str, limit: int | None, context: int | None) -> int | None:
    if context is None:
        return limit
    if context < 1 or (limit is not None and context > limit):
        most = "" if limit is None else f" and at most the model's {limit} positions"
        raise ConfigError(f"--context is {context}, but for {source} it must be at least 1{most}")
    return context
