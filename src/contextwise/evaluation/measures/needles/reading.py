"""Texts with two needles, and the loss of the answers that follow from them.

A text is noise with two sentences in it, "Ada has 3 stones." and, nearer to the question, "Ben has 5 stones more than
Ada."; the question is how many stones Ben has, and the answer the tokens of "8". Masked tokens are absent: the model reads the
remaining text from its position 0. The question is always whole.

Legend of shapes: E examples, M numbers of masked tokens.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from rich.console import RenderableType
from rich.text import Text
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from contextwise.base.errors import CheckpointError, ConfigError
from contextwise.base.estimates import Estimate, exponential
from contextwise.base.intervals import ratios
from contextwise.base.progress import interruption, progress_bar
from contextwise.base.tables import Column, Table, terminal
from contextwise.evaluation.answering.prompts import Encoded, Encoder, Question
from contextwise.evaluation.kernel import Subject
from contextwise.evaluation.measures.ruler.questions import Size, join_pieces, largest_fit, source_of
from contextwise.evaluation.measures.ruler.variables import NOISE

NAMES = ("Ada", "Ben", "Carla", "David", "Elena", "Felix", "Greta", "Hugo")
THINGS = ("stones", "books", "keys", "coins", "shells", "cups")
OPENING = "Read the text, and answer the question behind it.\n\n"


def two_needle_question(size: Size, index: int, far: float = 0.75, near: float = 0.25) -> Question:
    """One text with two needles, each at a given part of the text's length from its end.

    Args:
        size: the text's length, the tokenizer and the seed; its γ is not used.
        far, near: distances from the end, as shares of the length; far > near.

    Returns:
        The question; its one answer is a number, and its needles are first the far one, then the near one.

    Raises:
        ConfigError: the text is too short.
    """
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
            f"length is {size.length}, but a text with two needles has {least} tokens at least; give more"
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
        answered = slice(len(prompt) - 1 - begins, len(prompt) + len(answer) - 1 - begins)
        logarithms = logits[row, answered].float().log_softmax(dim=-1)
        wanted = torch.tensor(answer, device=logits.device)
        nats.append(-float(logarithms.gather(1, wanted[:, None]).double().sum()))
    return np.array(nats)


def answer_ids(encoder: Encoder, question: Question) -> list[int]:
    """Tokens of the answer behind the prompt, its leading space included."""
    before = encoder.ids(question.ending + question.answer_prefix)
    whole = encoder.ids(f"{question.ending}{question.answer_prefix} {question.answers[0]}")
    if whole[: len(before)] == before and len(whole) > len(before):
        return whole[len(before) :]
    return encoder.ids(f" {question.answers[0]}")


def needle_rows(
    examples: Sequence[Encoded], answer_tokens: Sequence[int], steps: Sequence[int], nats_ME: np.ndarray
) -> list[dict[str, Any]]:
    """For each number of masked tokens: nats per answer token, perplexity, and the share of texts with each needle whole."""
    tokens = np.array(answer_tokens)
    rows = []
    for masked, nats_E in zip(steps, nats_ME, strict=True):
        loss = ratios(nats_E, {"tokens": tokens})["tokens"]
        left = [len(example.body) - masked for example in examples]
        in_view = [
            [needle.reach <= visible for needle in example.needles]
            for example, visible in zip(examples, left, strict=True)
        ]
        far, near = (float(share) for share in np.mean(in_view, axis=0))
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


def all_nats(
    subject: Subject, examples: Sequence[Encoded], answers: Sequence[Sequence[int]], steps: Sequence[int]
) -> np.ndarray:
    """(M, E) nats of each example's answer with each number of tokens masked.

    Raises:
        CheckpointError: the losses are not finite.
    """
    nats_ME = np.empty((len(steps), len(examples)))
    with progress_bar(f"needles {subject.name}", nats_ME.size, "answers") as advance:
        for step, masked in enumerate(steps):
            prompts = [example.prompt(max(0, len(example.body) - masked)) for example in examples]
            rows = max(1, subject.batch_tokens // max(map(len, prompts)))
            for first in range(0, len(prompts), rows):
                interruption.check("the measurement was stopped")
                chosen = slice(first, first + rows)
                nats_ME[step, chosen] = answer_nats(subject.model, prompts[chosen], answers[chosen])
                advance(len(prompts[chosen]))
    if not np.isfinite(nats_ME).all():
        raise CheckpointError(f"the losses of {subject.source} are not finite; the model is damaged")
    return nats_ME


def needles_table(summary: dict[str, Any]) -> RenderableType:
    """Loss and perplexity of the answer against masked tokens."""
    settings = summary["settings"]
    columns = (
        Column("masked", "integer", align="right"),
        Column("nats/token", "estimate", interval="own"),
        Column("perplexity", "estimate"),
        Column("far\nneedle", "percent", ".0%"),
        Column("near\nneedle", "percent", ".0%"),
    )
    rows = [
        (
            row["masked"],
            Estimate.from_dict(row["nats"]),
            row["perplexity"]["value"],
            row["far_in_view"],
            row["near_in_view"],
        )
        for row in summary["rows"]
    ]
    heading = (
        f"{summary['model']}: {settings['samples']:,} texts of up to {settings['length']:,} tokens, needles at "
        f"{settings['far']:g} and {settings['near']:g} of the length from the end: loss of the answer with the first tokens "
        "cut off, and the share of texts that still hold each needle"
    )
    return terminal(Text(heading), Table("", columns, rows))
