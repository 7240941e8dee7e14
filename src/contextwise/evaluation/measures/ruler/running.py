"""A whole RULER measurement: questions, answers at every visible context, scores, and the folder they go to.

1. Each task makes its questions, and the model's tokenizer makes token ids of them (:func:`encode_questions`).
2. Every question is answered at every visible context (:func:`.answering.answer_all`).
3. The answers become accuracies and a best visible context (:func:`.results.task_summary`), in ``summary.json``;
   ``answers.jsonl`` has one line a question: what was asked, where its needles stand, and each answer with its score.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from transformers import PreTrainedModel

from contextwise.base.errors import ConfigError, Interrupted
from contextwise.base.progress import progress_bar
from contextwise.evaluation.answering.batches import Key, ModelReader, plan_batches
from contextwise.evaluation.answering.measuring import (
    Results,
    answer_and_write,
    asked_of,
    check_batch_tokens,
    finished_evaluation,
)
from contextwise.evaluation.answering.prompts import Encoded, Encoder, check_vocabulary
from contextwise.evaluation.measures.ruler.documents import DocumentQA
from contextwise.evaluation.measures.ruler.questions import Size, Task
from contextwise.evaluation.measures.ruler.results import (
    KIND,
    answer_rows,
    task_summary,
)
from contextwise.evaluation.measures.ruler.settings import Settings
from contextwise.evaluation.measures.ruler.squad import read_passages
from contextwise.evaluation.measures.ruler.variables import VariableTracking
from contextwise.evaluation.measures.ruler.words import CommonWords, FrequentWords, read_words
from contextwise.evaluation.opening import default_destination, model_on_device, positions, tell_of_contexts
from contextwise.evaluation.results import Measured
from contextwise.evaluation.scoring.windows import DEFAULT_BATCH_TOKENS, vocabulary_size
from contextwise.models import load_tokenizer


def evaluate_ruler(
    source: str,
    settings: Settings,
    *,
    batch_tokens: int | None = None,
    dtype: str = "auto",
    device: str = "auto",
    out: Path | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Measured:
    """Ask a model all the questions at every visible context; write the answers and accuracies beside the model's run.

    An interrupted measurement leaves its answers in ``OUT.unfinished``, and the same call goes on from there; a finished one is
    not made again.

    Args:
        source: a run folder, a Hugging Face model folder, or a name on the Hub.
        batch_tokens: positions of one batch, padding included; 16384 by default.
        dtype, device: as :func:`~contextwise.evaluation.measures.loss.evaluate_model` takes them.
        out: where to write; by default ``ruler-LENGTH-gamma-G`` where the run's evaluations are.
        should_stop: asked before each batch.

    Raises:
        ConfigError: a setting is out of range or does not fit the model, or ``out`` holds something else.
        DataError: a file of questions or words is wrong, or too small.
        CheckpointError: there is no such model, no tokenizer with it, or its logits are NaN.
        Interrupted: ``should_stop`` said so; what was answered is kept.
    """
    started = time.monotonic()
    source = str(Path(source))  # a slash at the end makes no other model
    check_batch_tokens(batch_tokens)
    out = out or default_destination(source, f"ruler-{settings.length}-gamma-{settings.gamma:g}")
    encoder = Encoder(load_tokenizer(source), settings.chat, source)
    tasks, notes = make_tasks(settings, encoder)
    model = model_on_device(source, dtype, device)
    tell_of_contexts(source, model)
    asked = {
        **asked_of(source, model, settings.to_dict()),
        "batch_tokens": batch_tokens or DEFAULT_BATCH_TOKENS,
    }
    if (finished := finished_evaluation(out, asked, KIND, "RULER")) is not None:
        return finished
    questions = encode_questions(tasks, settings.samples, encoder, should_stop)
    new_tokens = {task.name: task.new_tokens for task in tasks}
    check_vocabulary(source, vocabulary_size(model), [q for encoded in questions.values() for q in encoded])
    check_positions(source, model, questions, new_tokens, settings)
    batches = plan_batches(questions, new_tokens, settings.visible, asked["batch_tokens"])

    def results(answers: dict[Key, str]) -> Results:
        found = {
            task.name: task_summary(task, questions[task.name], settings.visible, answers) for task in tasks
        }
        rows = [
            row
            for task in tasks
            for row in answer_rows(task, questions[task.name], settings.visible, answers)
        ]
        return {"results": found}, rows

    return answer_and_write(
        KIND,
        out,
        asked,
        ModelReader(model, encoder.tokenizer),
        questions,
        batches,
        results,
        notes=notes,
        started=started,
        should_stop=should_stop,
    )


def make_tasks(settings: Settings, encoder: Encoder) -> tuple[list[Task], list[str]]:
    """The tasks, and what a reader of their figures should know."""
    size = Size(settings.length, settings.gamma, encoder.count, settings.seed)
    tasks: list[Task] = []
    notes: list[str] = []
    for name in settings.tasks:
        if name == "qa_1" and settings.qa is not None:
            passages = DocumentQA(read_passages(settings.qa), size)
            if passages.left_out:
                notes.append(
                    f"{passages.left_out:,} questions of {settings.qa} were left out: their paragraph is longer than the text"
                )
            if settings.samples > len(passages.questions):
                notes.append(
                    f"the {len(passages.questions):,} questions of {settings.qa} are asked more than once, in other texts"
                )
            tasks.append(passages)
        elif name == "cwe":
            words = None if settings.words is None else read_words(settings.words)
            tasks.append(CommonWords(size, words, settings.example, str(settings.words or "made up here")))
        elif name == "fwe":
            tasks.append(FrequentWords(size))
        else:
            tasks.append(VariableTracking(size, settings.example))
    return tasks, notes


def encode_questions(
    tasks: Sequence[Task],
    samples: int,
    encoder: Encoder,
    should_stop: Callable[[], bool] | None = None,
) -> dict[str, list[Encoded]]:
    """Task name -> its questions as token ids, in their order.

    Raises:
        Interrupted: ``should_stop``, asked before each question, said so.
    """
    with progress_bar("make questions", samples * len(tasks)) as advance:
        questions: dict[str, list[Encoded]] = {}
        for task in tasks:
            questions[task.name] = []
            for index in range(samples):
                if should_stop is not None and should_stop():
                    raise Interrupted("stopped while the questions were made; run the same command again")
                questions[task.name].append(encoder.encode(task.question(index)))
                advance(note=task.name)
    return questions


def check_positions(
    source: str,
    model: PreTrainedModel,
    questions: dict[str, list[Encoded]],
    new_tokens: dict[str, int],
    settings: Settings,
) -> None:
    """
    Raises:
        ConfigError: question, visible text and answer do not fit into the model's positions.
    """
    limit = positions(model)
    if limit is None:
        return
    around = {
        name: max(len(question.head) + len(question.tail) for question in encoded) + new_tokens[name]
        for name, encoded in questions.items()
    }
    name = max(around, key=lambda task: around[task])
    largest = settings.visible[-1]
    if around[name] + largest <= limit:
        return
    room = limit - around[name]
    mend = f"give visible contexts of at most {room}" if room > 0 else "leave that task out"
    if settings.example and name in ("vt", "cwe"):
        mend += ", or --no-example, which makes it shorter"
    raise ConfigError(
        f"{source} has {limit} positions, but a visible context of {largest} needs {around[name] + largest}: "
        f"question and answer of {name} take {around[name]} more; {mend}"
    )
