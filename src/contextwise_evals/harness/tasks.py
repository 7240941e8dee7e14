"""Tasks of the harness: planning, and measurement of a model.

The harness's ``simple_evaluate`` builds the prompts, queries :class:`.model.BoundedLM`, and computes its metrics, for each
number of examples K and each context C: ``harness-K-shot.json`` (``harness-K-shot-C.json`` with several contexts), in its own
format.
"""

import contextlib
import functools
import io
import json
import logging
import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import lm_eval.api.model
import lm_eval.api.task
import lm_eval.models.huggingface
import tqdm  # type: ignore[import-untyped]
from lm_eval import evaluator
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.tasks import TaskManager
from lm_eval.utils import handle_non_serializable

from contextwise.base.errors import one_line
from contextwise.base.hashes import content_key
from contextwise.base.machine import hub_problem
from contextwise.measures import Subject, Work
from contextwise.settings import ConfigError, DataError, did_you_mean
from contextwise_evals.harness.model import BoundedLM

RESAMPLES = 1000
"""Resamples for the standard error of a perplexity; the harness uses 100,000, which takes minutes on one core."""
GENERATION = {"until", "max_gen_toks", "do_sample", "temperature", "top_p", "top_k"}
"""Options of generation tasks that greedy answers follow, or that do not change them."""
Range = tuple[int, int | None]
"""A number and the one below which the lengths are; None: no limit."""


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


def load_tasks(names: Sequence[str], include_path: Path | None, lengths: Range | None = None) -> dict[str, Any]:
    """Load tasks by name; a name is looked up in a folder of YAML files first. A tag or a group stands for its tasks.

    ``lengths``: keep only the documents whose field ``length`` is at least the first number and below the second.
    """
    if include_path is not None and not include_path.is_dir():
        raise DataError(f"include_path is {include_path}, but there is no such folder")
    tasks: dict[str, Any] = {}
    own = TaskManager(include_path=include_path, include_defaults=False)
    for name in names:
        manager = own if name in own.task_index else harness_tasks()
        if name not in manager.task_index:
            hint = did_you_mean(name, [*own.task_index, *manager.task_index], "`lm_eval ls tasks` names them all")
            raise ConfigError(f"lm-evaluation-harness has no task {name!r}; {hint}")
        try:
            loaded = manager.load([name])["tasks"]
            for task in loaded.values():
                _ = len(task.eval_docs)  # they are read now
        except Exception as error:
            raise DataError(
                f"{name}: lm-evaluation-harness cannot load the task: {type(error).__name__} {one_line(error)}; local files "
                "need a definition of the task in include_path"
            ) from None
        for each, task in loaded.items():
            _check_kind(each, task)
            if len(task.eval_docs) == 0:
                raise DataError(f"the task {each!r} has no documents")
            if lengths is not None:
                _keep(each, task, lengths)
        tasks |= loaded
    return tasks


def _check_kind(name: str, task: Any) -> None:
    """Raise a ConfigError for a task that is no question of text with one right way to answer it."""
    problem = None
    if getattr(task, "UNSAFE_CODE", False):
        problem = "runs code that the model writes"
    elif getattr(task, "MULTIMODAL", False):
        problem = "shows more than text"
    elif task.OUTPUT_TYPE == "generate_until":
        options = normalize_gen_kwargs(task.config.generation_kwargs or {})
        further = options.keys() - GENERATION
        if options["do_sample"]:
            problem = "draws its answers at random (do_sample)"
        elif further:
            problem = f"sets {', '.join(sorted(further))} for generation"
    if problem is not None:
        raise ConfigError(f"the task {name!r} {problem}, which is not supported here; run it with lm_eval --model hf")


def _keep(name: str, task: Any, lengths: Range) -> None:
    """Keep the documents of a task that have a length in the range."""
    documents, (low, high) = task.eval_docs, lengths
    if "length" not in getattr(documents, "column_names", ()):
        raise ConfigError(f"the documents of the task {name!r} have no field 'length'; leave lengths out")
    words = list(documents["length"])
    chosen = [i for i, count in enumerate(words) if low <= count and (high is None or count < high)]
    if not chosen:
        most = "any" if high is None else f"{high:,}"
        raise DataError(
            f"no document of the task {name!r} has a length from {low:,} to below {most} words: the "
            f"shortest has {min(words):,}, the longest {max(words):,}; give other lengths"
        )
    split = task.config.test_split or task.config.validation_split
    task.config.process_docs = None  # it was applied to them
    task.dataset[split] = documents.select(chosen)


def plan_tasks(
    names: Sequence[str], num_fewshot: Sequence[int], include_path: Path | None, lengths: Range | None = None
) -> list[Planned]:
    """Plan every task with every number of examples (tasks on whole texts only once); ``lengths`` as for :func:`load_tasks`."""
    problem = hub_problem() if include_path is None else None
    if problem:
        raise DataError(
            f"the tasks' documents are on the Hub, and {problem}; give a folder of definitions with local files as include_path"
        )
    plans: list[Planned] = []
    for shots in num_fewshot:
        for name, task in load_tasks(names, include_path, lengths).items():
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
    subject: Subject, planned: Sequence[Planned], contexts: Sequence[int | None], limit: int | None, work: Work
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Measure a model on planned tasks with each context: the summary, and the harness's results and the answers as files."""
    rows: list[dict[str, Any]] = []
    answers: list[dict[str, Any]] = []
    files: dict[str, Any] = {}
    with quiet(), work.journal("answers") as journal:
        for context in contexts:
            lm = BoundedLM(
                subject.model, subject.tokenizer, max_length=context, batch_tokens=subject.batch_tokens, journal=journal
            )
            for shots in sorted({task.shots for task in planned}):
                lm.cut.clear()
                lm.stage = f"{shots}-shot" + (f", context {context:,}" if len(contexts) > 1 else "")
                tasks = [task for task in planned if task.shots == shots]
                result, samples = _evaluated(lm, tasks, shots, limit, subject.source)
                ending = f"-{lm.max_length}" if len(contexts) > 1 else ""
                files[f"harness-{shots}-shot{ending}.json"] = json.dumps(result, indent=2, ensure_ascii=False) + "\n"
                for task in tasks:
                    about = {"task": task.name, "shots": shots, "context": lm.max_length}
                    rows.append(about | task_row(task.name, shots, result) | {"cut": len(lm.cut[task.name])})
                    rows[-1] |= {"content": task.content, "right": _right(samples[task.name])}
                    if task.task.OUTPUT_TYPE == "generate_until":
                        answers += (about | _answer(sample) for sample in _of_first_filter(samples[task.name]))
    if answers:
        files["answers"] = answers
    return {"positions": max(row["context"] for row in rows), **summary_of(rows)}, files


def summary_of(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """JSON-ready ``rows``, their ``averages`` and ``notes``, for each number of shots and each context."""
    averages, notes = [], []
    contexts = {row["context"] for row in rows}
    for shots, context in dict.fromkeys((row["shots"], row["context"]) for row in rows):
        measured = [row for row in rows if (row["shots"], row["context"]) == (shots, context)]
        shortened = [f"{row['task']} {row['cut']:,} of {row['documents']:,}" for row in measured if row["cut"]]
        if shortened:
            room = f"a context of {context:,}" if len(contexts) > 1 else "the model's positions"
            notes.append(
                f"with {shots} shots, some documents were longer than {room}, and their beginning was left out: "
                f"{', '.join(shortened)}"
            )
        accuracies = {row["task"]: row["measures"]["acc"]["value"] for row in measured if "acc" in row["measures"]}
        if accuracies:
            averages.append(
                {
                    "shots": shots,
                    "context": context,
                    "acc": sum(accuracies.values()) / len(accuracies),
                    "tasks": list(accuracies),
                }
            )
    return {"rows": list(rows), "averages": averages, "notes": notes}


def task_row(task: str, shots: int, result: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a task among the harness's results; of several filters, the first is used."""
    figures: dict[str, float | None] = {}
    for key, value in result["results"][task].items():
        name, comma, _ = key.partition(",")
        if comma and isinstance(value, int | float):
            figures.setdefault(name, float(value) if math.isfinite(value) else None)
    return {
        "shots_used": result["n-shot"].get(task, shots),
        "documents": result["n-samples"][task]["effective"],
        "measures": {
            name: {"value": value, "stderr": figures.get(f"{name}_stderr")}
            for name, value in figures.items()
            if not name.endswith("_stderr")
        },
    }


def _of_first_filter(answered: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The samples of the documents in their order; of several filters, the first is used."""
    first = {each["doc_id"]: each for each in reversed(answered)}
    return [first[number] for number in sorted(first)]


def _answer(sample: dict[str, Any]) -> dict[str, Any]:
    """An answer as a row: the document's number, the text, what was wanted, and its scores."""
    scores = {name: float(sample[name]) for name in sample["metrics"] if isinstance(sample[name], int | float)}
    return {
        "document": sample["doc_id"],
        "answer": sample["resps"][0][0],
        "wanted": str(sample["target"]),
        "scores": scores,
    }


def _right(answered: Sequence[dict[str, Any]]) -> str:
    """Which questions a model answered right, in their order: ``"1"``, else ``"0"``; empty for a task without an accuracy."""
    return "".join(f"{each['acc']:.0f}" for each in _of_first_filter(answered) if "acc" in each)


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
        for name in ("lm_eval", "transformers", "datasets", "huggingface_hub", "jieba"):
            logger = logging.getLogger(name)
            stack.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.ERROR)
        if not datasets.are_progress_bars_disabled():
            stack.callback(datasets.enable_progress_bars)
            datasets.disable_progress_bars()
        if "DISABLE_MULTIPROC" not in os.environ:
            stack.callback(os.environ.pop, "DISABLE_MULTIPROC")
            os.environ["DISABLE_MULTIPROC"] = "1"
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", "Using slow pure-python SequenceMatcher")  # of LongBench's score of code
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        yield
