"""A whole measurement on long tasks: questions from files, answers at every visible context, scores, and the folder for it all.

1. The files' lines become questions (:func:`.formats.read_items`), and these token ids (:func:`.prompts.encode_item`).
2. The model gets positions for the longest of them, or it is said how many it has (:func:`prepare_positions`).
3. Every question is answered at every visible context (:func:`contextwise.evaluation.answering.batches.answer_all`).
4. The answers become scores with intervals (:func:`.results.summarise`) in ``summary.json``; ``answers.jsonl`` has one line a
   question.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from contextwise.base.errors import ConfigError, DataError, Interrupted
from contextwise.base.progress import progress_bar
from contextwise.evaluation.answering.batches import Key, ModelReader
from contextwise.evaluation.answering.measuring import (
    Results,
    answer_and_write,
    asked_of,
    check_batch_tokens,
    finished_evaluation,
)
from contextwise.evaluation.answering.prompts import Encoder, check_vocabulary
from contextwise.evaluation.measures.long_tasks.formats import Item, read_items
from contextwise.evaluation.measures.long_tasks.metrics import check_installed
from contextwise.evaluation.measures.long_tasks.planning import plan_answers
from contextwise.evaluation.measures.long_tasks.prompts import (
    LongPrompt,
    check_visible,
    encode_item,
    given_template,
    read_templates,
)
from contextwise.evaluation.measures.long_tasks.results import answer_rows, scores_of, summarise
from contextwise.evaluation.measures.long_tasks.settings import Settings
from contextwise.evaluation.opening import (
    default_destination,
    model_on_device,
    positions,
    tell_of_contexts,
    trained_context,
)
from contextwise.evaluation.results import Measured
from contextwise.evaluation.scoring.windows import DEFAULT_BATCH_TOKENS, vocabulary_size
from contextwise.models import load_tokenizer
from contextwise.models.rope import extend_positions, rotary_modules

KIND = "longbench"
LONGEST_DEFAULT = 4096
PARTS = (8, 4, 2, 1)


def evaluate_long_tasks(
    source: str,
    settings: Settings,
    *,
    batch_tokens: int | None = None,
    dtype: str = "auto",
    device: str = "auto",
    out: Path | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Measured:
    """Ask a model all the questions at every visible context; write the answers and scores beside the model's run.

    An interrupted measurement leaves its answers in ``OUT.unfinished``, and the same call goes on from there; a finished one is
    not made again.

    Args:
        source: a run folder, a Hugging Face model folder, or a name on the Hub.
        batch_tokens: positions of one batch, padding included; 16384 by default.
        dtype, device: as :func:`~contextwise.evaluation.measures.loss.evaluate_model` takes them.
        out: where to write; by default ``longbench-FILE`` where the run's evaluations are.
        should_stop: asked before each question is encoded, and before each batch.

    Raises:
        ConfigError: a setting is out of range or does not fit the model, or ``out`` holds something else.
        DataError: a file of questions or templates is wrong, or has no question of such a length.
        CheckpointError: there is no such model, no tokenizer with it, or its logits are NaN.
        Interrupted: ``should_stop`` said so; what was answered is kept.
    """
    started = time.monotonic()
    source = str(Path(source))
    check_batch_tokens(batch_tokens)
    prompts, tokenizer, notes = _questions(source, settings, should_stop)
    model = model_on_device(source, dtype, device)
    tell_of_contexts(source, model)
    asked = _prepared(source, model, prompts, settings, batch_tokens or DEFAULT_BATCH_TOKENS)
    out = out or default_destination(source, _label(settings))
    if (finished := finished_evaluation(out, asked, KIND, "LongBench")) is not None:
        return finished
    batches = plan_answers(prompts, asked["visible"], asked["batch_tokens"], model)
    return answer_and_write(
        KIND,
        out,
        asked,
        ModelReader(model, tokenizer),
        prompts,
        batches,
        lambda answers: _results(prompts, asked["visible"], answers),
        notes=notes,
        started=started,
        should_stop=should_stop,
    )


def _questions(
    source: str, settings: Settings, should_stop: Callable[[], bool] | None
) -> tuple[dict[str, list[LongPrompt]], PreTrainedTokenizerBase, list[str]]:
    """The questions as token ids, the tokenizer that made them, and notes."""
    items, notes = chosen_items(settings)
    tokenizer = load_tokenizer(source)
    templates = {} if settings.templates is None else read_templates(settings.templates)
    plain = sorted({item.dataset for item in items if given_template(item, templates) is None})
    if templates and plain:
        notes.append(f"{settings.templates} has no template for {', '.join(plain)}; plain ones were used")
    return encode_items(items, templates, settings, tokenizer, source, should_stop), tokenizer, notes


def _prepared(
    source: str,
    model: PreTrainedModel,
    prompts: dict[str, list[LongPrompt]],
    settings: Settings,
    batch_tokens: int,
) -> dict[str, Any]:
    """Make the model ready; what its answers depend on, so that a run goes on from answers with the same only."""
    every = [prompt for asked in prompts.values() for prompt in asked]
    check_vocabulary(source, vocabulary_size(model), every)
    return {
        **asked_of(source, model, settings.to_dict()),
        **prepare_positions(source, model, every, settings),
        "batch_tokens": batch_tokens,
    }


def _results(
    prompts: dict[str, list[LongPrompt]], visible: Sequence[int], answers: dict[Key, str]
) -> Results:
    scores = {name: scores_of(name, asked, visible, answers) for name, asked in prompts.items()}
    rows = [
        row
        for name, asked in prompts.items()
        for row in answer_rows(name, asked, visible, answers, scores[name])
    ]
    return summarise(prompts, visible, scores), rows


def _label(settings: Settings) -> str:
    names = [path.name.removesuffix(".gz").rsplit(".", 1)[0] for path in settings.files]
    return f"longbench-{names[0]}" if len(names) == 1 else f"longbench-{names[0]}-and-{len(names) - 1}-more"


def chosen_items(settings: Settings) -> tuple[list[Item], list[str]]:
    """The questions of the files, in the chosen range of lengths and as many of each data set as asked for, and notes.

    Raises:
        DataError: a file is wrong, or no question is in the range.
    """
    items, notes = read_items(settings.files)
    if settings.lengths is not None:
        low, high = settings.lengths
        kept = [item for item in items if item.length >= low and (high is None or item.length < high)]
        if not kept:
            lengths = [item.length for item in items]
            raise DataError(
                f"no text has a length from {low:,} to below {'any' if high is None else format(high, ',')} words: the "
                f"shortest has {min(lengths):,}, the longest {max(lengths):,}; give other --lengths"
            )
        if len(kept) < len(items):
            notes.append(
                f"{len(items) - len(kept):,} of {len(items):,} questions were left out for their text's length"
            )
        items = kept
    if settings.limit is not None:
        taken: dict[str, int] = defaultdict(int)
        limited = []
        for item in items:
            taken[item.dataset] += 1
            if taken[item.dataset] <= settings.limit:
                limited.append(item)
        items = limited
    if settings.new_tokens is not None:
        items = [replace(item, new_tokens=settings.new_tokens) for item in items]
    check_installed({item.metric for item in items})
    return items, notes


def encode_items(
    items: Sequence[Item],
    templates: dict[str, str],
    settings: Settings,
    tokenizer: PreTrainedTokenizerBase,
    name: str,
    should_stop: Callable[[], bool] | None = None,
) -> dict[str, list[LongPrompt]]:
    """Data set -> its questions as token ids, in their order.

    Raises:
        ConfigError: there is no chat template.
        DataError: a template is wrong, or a data set's questions have several groups or metrics.
        Interrupted: ``should_stop`` said so.
    """
    encoder = Encoder(tokenizer, name=name)
    chat = Encoder(tokenizer, True, name) if settings.chat else None
    prompts: dict[str, list[LongPrompt]] = defaultdict(list)
    with progress_bar("encode questions", len(items)) as advance:
        for item in items:
            if should_stop is not None and should_stop():
                raise Interrupted("stopped while the questions were encoded; run the same command again")
            asked = prompts[item.dataset]
            for what in ("group", "metric"):
                if asked and getattr(asked[0].item, what) != getattr(item, what):
                    raise DataError(
                        f"{item.where}: the {what} of {item.dataset!r} is {getattr(item, what)!r}, but "
                        f"{getattr(asked[0].item, what)!r} at {asked[0].item.where}; give a data set one {what}"
                    )
            asked.append(encode_item(item, templates, encoder, chat, settings.keep))
            advance(note=item.dataset)
    return dict(prompts)


def prepare_positions(
    source: str, model: PreTrainedModel, prompts: Sequence[LongPrompt], settings: Settings
) -> dict[str, Any]:
    """Find the visible contexts, and give the model positions for the largest of them.

    Returns:
        ``visible``, ascending; ``rope_factor``, None without an extension that has one; ``trained_context``.

    Raises:
        ConfigError: the model has not so many positions and no --rope is given, or they cannot be extended.
    """
    limit = positions(model)
    around = max(len(p.head) + len(p.tail) + p.item.new_tokens for p in prompts)
    visible = set(settings.visible)
    if settings.whole:
        visible.add(max(len(prompt.body) for prompt in prompts))
    if not visible:
        room = LONGEST_DEFAULT if limit is None else limit - around
        if room < 2 * PARTS[0]:
            raise ConfigError(
                f"{source} has {limit} positions, and answers take up to {around} of them, which leaves too few for "
                "questions; give fewer --new-tokens"
            )
        visible = {room // part for part in PARTS}
    check_visible(prompts, min(visible))
    needed = max(len(p.prompt(max(visible))) + p.item.new_tokens for p in prompts)
    trained = trained_context(source, model)
    factor = None
    if settings.rope is not None:
        factor = extend_positions(model, needed, settings.rope, settings.rope_factor, trained)
    elif limit is not None and needed > limit:
        raise ConfigError(_too_long(source, model, prompts, max(visible), needed, limit, around))
    return {"visible": sorted(visible), "rope_factor": factor, "trained_context": trained}


def _too_long(
    source: str,
    model: PreTrainedModel,
    prompts: Sequence[LongPrompt],
    visible: int,
    needed: int,
    limit: int,
    around: int,
) -> str:
    longest = max(prompts, key=lambda prompt: len(prompt.prompt(visible)) + prompt.item.new_tokens)
    what = f"the question at {longest.item.where}, of {len(longest.body):,} tokens,"
    mend = (
        f"give visible contexts of at most {limit - around:,}"
        if limit > around
        else "give fewer --new-tokens"
    )
    mend += ", or --rope dynamic" if rotary_modules(model) else ", or a model with rotary positions"
    return (
        f"{source} has {limit:,} positions, but {what} needs {needed:,} with its answer at a visible context of "
        f"{visible:,}; {mend}"
    )
