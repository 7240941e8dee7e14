"""Two needles in a haystack: how a model's answer suffers as more and more of the left of a text is cut off.

Intrinsic entropy, Figure 5: the answer follows from two pieces of information, one far and one near, and its perplexity
is measured with ever more of the leftmost tokens masked. Both pieces are needed, so a perfect reader is at a loss as soon as
the *first* is gone; that the second was needed too cannot be seen behind that point.

A text here is noise with two sentences in it, "Ada has 3 stones." and, nearer to the question, "Ben has 5 stones more than
Ada."; the question is how many stones Ben has, and the answer the tokens of "8". Masked tokens are not there at all: the
model reads what is left as if the text began there. The question always stays.

Legend of shapes: E examples, M numbers of masked tokens.
"""

import inspect
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import RenderableType
from rich.text import Text
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from contextwise.base.environment import describe_environment
from contextwise.base.errors import CheckpointError, ConfigError, DataError, Interrupted
from contextwise.base.estimates import CONFIDENCE, Estimate, exponential
from contextwise.base.files import read_json, write_json
from contextwise.base.intervals import RESAMPLES, ratios
from contextwise.base.progress import progress_bar
from contextwise.base.tables import Column, Table, terminal
from contextwise.evaluation.answering.prompts import Encoded, Encoder, Question, check_vocabulary
from contextwise.evaluation.measures.ruler.questions import Size, join_pieces, largest_fit, source_of
from contextwise.evaluation.measures.ruler.settings import check_length
from contextwise.evaluation.measures.ruler.variables import NOISE
from contextwise.evaluation.opening import chosen_device, chosen_dtype, default_destination, positions
from contextwise.evaluation.scoring.windows import DEFAULT_BATCH_TOKENS, vocabulary_size
from contextwise.models import load_model, load_tokenizer

KIND = "needles"
NAMES = ("Ada", "Ben", "Carla", "David", "Elena", "Felix", "Greta", "Hugo")
THINGS = ("stones", "books", "keys", "coins", "shells", "cups")
OPENING = "Read the text, and answer the question behind it.\n\n"
STEPS = 16


@dataclass(frozen=True)
class Needles:
    """A finished measurement; ``summary`` is the content of the file ``path``."""

    path: Path
    summary: dict[str, Any]


def two_needle_question(size: Size, index: int, far: float = 0.75, near: float = 0.25) -> Question:
    """One text with two needles, each at a given part of the text's length from its end.

    Args:
        size: the text's length, the tokenizer and the seed; its γ is not used.
        far, near: where the two stand, as parts of the length, 1 for the beginning and 0 for the end.

    Returns:
        The question; its one answer is a number, and its needles are first the far one, then the near one.

    Raises:
        ConfigError: the text is too short, or the needles are not one behind the other.
    """
    if not 0 <= near < far <= 1:
        raise ConfigError(f"the needles stand at {far:g} and {near:g} of the length; give 1 ≥ far > near ≥ 0")
    draw = source_of(size, "two needles", index)
    first, second = draw.choice(NAMES, 2, replace=False)
    thing = draw.choice(THINGS)
    has, more = (int(value) for value in draw.integers(1, 5, size=2))
    sentences = (f"{first} has {has} {thing}.\n", f"{second} has {more} {thing} more than {first}.\n")

    def text(lines: int) -> tuple[str, tuple[tuple[int, int], ...]]:
        before, between = round((1 - far) * lines), round((1 - near) * lines)
        pieces = [NOISE] * before + [sentences[0]] + [NOISE] * (between - before) + [sentences[1]]
        body, needles = join_pieces(pieces + [NOISE] * (lines - between), [before, between + 1])
        return body.rstrip("\n"), needles

    lines = largest_fit(
        lambda n: size.tokens(text(n)[0]), size.length, size.length // max(1, size.tokens(NOISE))
    )
    if lines < 1:
        least = size.tokens(text(1)[0])
        raise ConfigError(
            f"--length is {size.length}, but a text with two needles has {least} tokens at least; give more"
        )
    body, needles = text(lines)
    ending = f"\n\nQuestion: How many {thing} does {second} have?\n"
    return Question(OPENING, body, ending, f"Answer: {second} has", (str(has + more),), needles)


@torch.no_grad()
def answer_nats(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]
) -> np.ndarray:
    """Nats of each answer behind its prompt, summed over the answer's tokens: -Σ ln p(token | all before it).

    Args:
        model: a causal language model in evaluation mode.
        prompts: token ids, at least one for each.
        answers: token ids, at least one for each.

    Returns:
        (prompts,) float64, nats.
    """
    rows = [torch.tensor([*prompt, *answer]) for prompt, answer in zip(prompts, answers, strict=True)]
    # Padded on the right: the model is causal, so what follows an answer cannot change it.
    ids = pad_sequence(rows, batch_first=True, padding_value=0).to(model.device)
    first, last = min(map(len, prompts)) - 1, max(map(len, rows)) - 1
    options: dict[str, Any] = {"use_cache": False}
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        options["logits_to_keep"] = torch.arange(first, last, device=model.device)
    logits = model(input_ids=ids, **options).logits
    begins = first if logits.shape[1] == last - first else 0  # some models take it and keep all the same
    nats = []
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        places = slice(len(prompt) - 1 - begins, len(prompt) + len(answer) - 1 - begins)
        logarithms = logits[row, places].float().log_softmax(dim=-1)
        wanted = torch.tensor(answer, device=logits.device)
        nats.append(-float(logarithms.gather(1, wanted[:, None]).double().sum()))
    return np.array(nats)


def measure_needles(
    source: str,
    *,
    length: int = 1024,
    masked: Sequence[int] = (),
    far: float = 0.75,
    near: float = 0.25,
    samples: int = 50,
    seed: int = 0,
    batch_tokens: int | None = None,
    dtype: str = "auto",
    device: str = "auto",
    out: Path | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Needles:
    """Perplexity of the answers against the number of masked left tokens; writes one JSON file.

    Args:
        source: a run folder, a Hugging Face model folder, or a name on the Hub.
        length: tokens of a text, at most.
        masked: how many of the text's first tokens are cut off; by default from none to all, in 16 steps.
        far, near: as :func:`two_needle_question` takes them.
        samples: texts.
        seed: of the texts.
        batch_tokens: positions of one batch; 16384 by default.
        dtype, device: as :func:`~contextwise.evaluation.measures.loss.evaluate_model` takes them.
        out: the JSON file; by default ``needles-LENGTH.json`` where the run's evaluations are.
        should_stop: asked before each batch.

    Raises:
        ConfigError: an option is out of range, does not fit the model, or ``out`` holds something else.
        CheckpointError: there is no such model, no tokenizer with it, or its losses are not finite.
        Interrupted: ``should_stop`` said so; nothing was written.
    """
    started = time.monotonic()
    source = str(Path(source))  # a slash at the end makes no other model
    batch_tokens = DEFAULT_BATCH_TOKENS if batch_tokens is None else batch_tokens
    counts = {"--length": length, "--samples": samples, "--batch-tokens": batch_tokens}
    for name, value in counts.items():
        if value < 1:
            raise ConfigError(f"{name} is {value}, but must be at least 1")
    check_length(length)
    if seed < 0:
        raise ConfigError(f"--seed is {seed}, but must be a whole number from 0 on")
    steps = sorted(set(masked)) or sorted({round(length * step / STEPS) for step in range(STEPS + 1)})
    if steps[0] < 0 or steps[-1] > length:
        wrong = steps[0] if steps[0] < 0 else steps[-1]
        raise ConfigError(
            f"{wrong} tokens are to be masked of a text of {length}; give numbers from 0 to {length}"
        )
    out = out or default_destination(source, f"needles-{length}.json")
    _check_file(out, source)
    encoder = Encoder(load_tokenizer(source), name=source)
    size = Size(length, 0.0, encoder.count, seed)
    examples = [encoder.encode(two_needle_question(size, index, far, near)) for index in range(samples)]
    answers = [answer_ids(encoder, example.question) for example in examples]
    place = chosen_device(device)
    model = load_model(source, dtype=chosen_dtype(dtype, place), device=place)
    check_vocabulary(source, vocabulary_size(model), examples)
    _check_positions(source, model, examples, answers, steps[0])
    with progress_bar(f"needles {Path(source).name}", len(steps) * samples, "answers") as advance:
        nats_ME = _all_nats(model, examples, answers, steps, batch_tokens, advance, should_stop)
    summary = {
        "kind": KIND,
        "model": source,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": model.device.type,
        "length": length,
        "far": far,
        "near": near,
        "samples": samples,
        "seed": seed,
        "rows": needle_rows(examples, [len(ids) for ids in answers], steps, nats_ME),
        "examples": [
            {
                "text_tokens": len(example.body),
                "needles": [list(needle) for needle in example.needles],
                "answer": example.question.answers[0],
                "answer_tokens": len(ids),
                "nats": nats_ME[:, index].tolist(),
            }
            for index, (example, ids) in enumerate(zip(examples, answers, strict=True))
        ],
        "confidence": CONFIDENCE,
        "resamples": RESAMPLES,
        "seconds": round(time.monotonic() - started, 3),
        "environment": describe_environment(),
    }
    write_json(out, summary, "the measurement")
    return Needles(out, summary)


def answer_ids(encoder: Encoder, question: Question) -> list[int]:
    """Tokens of the answer as they follow the prompt, its leading space included."""
    before = encoder.ids(question.ending + question.answer_prefix)
    whole = encoder.ids(f"{question.ending}{question.answer_prefix} {question.answers[0]}")
    if whole[: len(before)] == before and len(whole) > len(before):
        return whole[len(before) :]
    return encoder.ids(f" {question.answers[0]}")


def needle_rows(
    examples: Sequence[Encoded], answer_tokens: Sequence[int], steps: Sequence[int], nats_ME: np.ndarray
) -> list[dict[str, Any]]:
    """For each number of masked tokens: nats per answer token, perplexity, and how often each needle is still there whole."""
    tokens = np.array(answer_tokens)
    rows = []
    for masked, nats_E in zip(steps, nats_ME, strict=True):
        loss = ratios(nats_E, {"tokens": tokens})["tokens"]
        left = [len(example.body) - masked for example in examples]
        there = [
            [n.reach <= visible for n in example.needles]
            for example, visible in zip(examples, left, strict=True)
        ]
        far, near = (float(share) for share in np.mean(there, axis=0))
        rows.append(
            {
                "masked": masked,
                "nats": loss.to_dict(),
                "perplexity": loss.map(exponential).to_dict(),
                "far_in_view": far,
                "near_in_view": near,
            }
        )
    return rows


def needles_table(summary: dict[str, Any]) -> RenderableType:
    """Perplexity of the answer against masked tokens, in 80 columns."""
    rows = [
        [
            row["masked"],
            Estimate.from_dict(row["nats"]),
            row["perplexity"]["value"],
            row["far_in_view"],
            row["near_in_view"],
        ]
        for row in summary["rows"]
    ]
    columns = [
        Column("masked", "integer", align="right"),
        Column("nats/token", "estimate", interval="own"),
        Column("perplexity", "estimate"),
        Column("far\nneedle", "percent", ".0%"),
        Column("near\nneedle", "percent", ".0%"),
    ]
    heading = (
        f"{summary['model']}: {summary['samples']:,} texts of up to {summary['length']:,} tokens, needles at "
        f"{summary['far']:g} and {summary['near']:g} of the length from the end; how well the answer is predicted with the "
        "first tokens cut off, and in how many texts each needle is still there"
    )
    return terminal(Text(heading), Table("", columns, rows))


def _all_nats(
    model: PreTrainedModel,
    examples: Sequence[Encoded],
    answers: Sequence[Sequence[int]],
    steps: Sequence[int],
    batch_tokens: int,
    advance: Callable[..., None],
    should_stop: Callable[[], bool] | None,
) -> np.ndarray:
    """(M, E) nats of each example's answer with each number of tokens masked."""
    nats_ME = np.empty((len(steps), len(examples)))
    for place, masked in enumerate(steps):
        prompts = [example.prompt(max(0, len(example.body) - masked)) for example in examples]
        rows = max(1, batch_tokens // max(map(len, prompts)))
        for first in range(0, len(prompts), rows):
            if should_stop is not None and should_stop():
                raise Interrupted(
                    "the measurement was stopped; nothing was written, run the same command again"
                )
            chosen = slice(first, first + rows)
            nats_ME[place, chosen] = answer_nats(model, prompts[chosen], answers[chosen])
            advance(len(prompts[chosen]))
    if not np.isfinite(nats_ME).all():
        raise CheckpointError(f"the losses of {model.config.model_type} are not finite; the model is damaged")
    return nats_ME


def _check_positions(
    source: str,
    model: PreTrainedModel,
    examples: Sequence[Encoded],
    answers: Sequence[Sequence[int]],
    least_masked: int,
) -> None:
    """
    Raises:
        ConfigError: a text with its question and answer does not fit into the model's positions.
    """
    limit = positions(model)
    needed = max(
        len(example.prompt(max(0, len(example.body) - least_masked))) + len(answer)
        for example, answer in zip(examples, answers, strict=True)
    )
    if limit is not None and needed > limit:
        raise ConfigError(
            f"{source} has {limit} positions, but text, question and answer take {needed}; "
            f"give a --length that is smaller by {needed - limit}"
        )


def _check_file(path: Path, model: str) -> None:
    """
    Raises:
        ConfigError: the place holds something else than such a measurement of this model.
    """
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; give --out the name of a JSON file")
    if not path.exists():
        return
    try:
        there = read_json(path, "what lies where the measurement goes")
    except DataError:
        there = None
    if not isinstance(there, dict) or there.get("kind") != KIND or there.get("model") != model:
        raise ConfigError(
            f"{path} holds something that is not this measurement of {model}; give another place with --out"
        )
