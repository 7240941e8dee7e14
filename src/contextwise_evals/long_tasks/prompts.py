"""Prompts of questions on long texts, cut to a visible context, and their batches.

A prompt is made from a template with ``{context}`` and ``{input}``: the line's own, LongBench's for its data sets, or a
plain one. It is tokenized once, as a whole. Of V visible tokens,

    ends     are the prompt's first and last floor(V/2) tokens, as LongBench truncates in the middle;
    nearest  are all tokens around the text, and as many of the text's last tokens as V leaves room for, as in RULER.

LongBench decodes the two ends and tokenizes the text again, which may differ at the cut; here the tokens are kept.
Special tokens and a chat template's marks are not counted in V, and are never cut.
"""

import math
import string
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from contextwise.base.errors import ConfigError, DataError
from contextwise.base.progress import interruption, progress_bar
from contextwise_evals.answering.prompts import Batch, Encoder, Prompt, Question, split
from contextwise_evals.long_tasks.items import SUMMARY, Item

Keep = Literal["ends", "nearest"]

PLAIN = "Read the text, and answer the question about it.\n\n{context}\n\nQuestion: {input}\nAnswer:"
PLAIN_EXAM = PLAIN.replace("about it.", "about it. Where there are options, give the letter alone.")
PLAIN_SUMMARY = "Read the text, and do what is asked for.\n\n{context}\n\nTask: {input}\nAnswer:"
PLAIN_NO_QUESTION = "{context}\n\nA summary of the text above:"
PLAIN_CONTINUED = "{context}{input}"


@dataclass(frozen=True)
class LongPrompt(Prompt):
    """A question as token ids.

    Attributes:
        head, tail: special tokens and chat marks around the prompt; never cut.
        body: the prompt.
        text: (start, end) of the text in ``body``, tokens.
    """

    item: Item
    keep: Keep
    text: tuple[int, int]

    @property
    def around(self) -> int:
        """Tokens of the prompt outside the text."""
        return len(self.body) - (self.text[1] - self.text[0])

    def visible_body(self, visible: int) -> tuple[int, ...]:
        """At most ``visible`` tokens of the prompt; all of it where it has no more."""
        body, (first, last) = self.body, self.text
        if len(body) <= visible:
            return body
        if self.keep == "ends":
            half = visible // 2
            return body[:half] + body[len(body) - half :]
        return body[:first] + body[last - (visible - self.around) : last] + body[last:]


def filled(item: Item) -> tuple[str, tuple[int, int]]:
    """The whole prompt of a question, and (start, end) of the text in it, in characters."""
    template = item.template or _plain(item)
    where = f"{item.where}: the template of {item.dataset!r}"
    try:
        pieces = [(text, name) for text, name, _, _ in string.Formatter().parse(template)]
    except ValueError as error:
        raise DataError(f"{where} cannot be read ({error}); write {{{{ for a brace") from None
    names = [name for _, name in pieces if name is not None]
    unknown = sorted(set(names) - {"context", "input"})
    if unknown:
        raise DataError(f"{where} names {{{unknown[0]}}}; it may name {{context}} and {{input}}")
    if names.count("context") != 1:
        raise DataError(f"{where} names {{context}} {names.count('context')} times; once is needed")
    prompt, start = "", 0
    for text, name in pieces:
        prompt += text
        start = len(prompt) if name == "context" else start
        prompt += {"context": item.context, "input": item.question}.get(name or "", "")
    return prompt, (start, start + len(item.context))


def _plain(item: Item) -> str:
    if item.metric == "code":
        return PLAIN_CONTINUED
    if item.metric == "rouge" and not item.question.strip():
        return PLAIN_NO_QUESTION
    if item.metric in ("exam", "options"):
        return PLAIN_EXAM
    return PLAIN_SUMMARY if item.group == SUMMARY else PLAIN


def encode_item(item: Item, encoder: Encoder, chat: Encoder | None, keep: Keep) -> LongPrompt:
    """A question as token ids; ``chat`` encodes with a chat template, for questions that are asked through it."""
    prompt, span = filled(item)
    chosen = encoder if chat is None or item.few_shot or item.continues else chat
    # For the encoder the whole prompt is the text, and the text in it the needle.
    encoded = chosen.encode(Question("", prompt, "", "", item.answers, (span,)))
    (text,) = encoded.needles
    count = len(encoded.body)
    span = (count - text.reach, count - text.behind)
    return LongPrompt(encoded.head, encoded.body, encoded.tail, item, keep, span)


def check_visible(prompts: Sequence[LongPrompt], visible: int) -> None:
    """Raise a ConfigError for a visible context so small that it holds nothing of some text."""
    if visible < 2:
        raise ConfigError(f"`visible` is {visible}, but must be at least 2")
    worst = max(prompts, key=lambda prompt: prompt.around)
    if worst.keep == "nearest" and worst.around >= visible and len(worst.body) > visible:
        raise ConfigError(
            f"`visible` is {visible}, which holds nothing of a text: the prompt around it takes {worst.around} tokens at "
            f"{worst.item.where}; give at least {worst.around + 1}, or `keep` ends"
        )


def encode_items(
    items: Sequence[Item], encoder: Encoder, chat: Encoder | None, keep: Keep
) -> dict[str, list[LongPrompt]]:
    """Data set -> its questions as token ids, in their order; arguments as :func:`encode_item` takes them."""
    prompts: dict[str, list[LongPrompt]] = defaultdict(list)
    with progress_bar("encode questions", len(items)) as advance:
        for item in items:
            interruption.check("stopped while the questions were encoded")
            encoded = prompts[item.dataset]
            for field in ("group", "metric"):
                if encoded and getattr(encoded[0].item, field) != getattr(item, field):
                    raise DataError(
                        f"{item.where}: the {field} of {item.dataset!r} is {getattr(item, field)!r}, but "
                        f"{getattr(encoded[0].item, field)!r} at {encoded[0].item.where}; give a data set one {field}"
                    )
            encoded.append(encode_item(item, encoder, chat, keep))
            advance(note=item.dataset)
    return dict(prompts)


def shown_at(prompt: LongPrompt, visible: int, contexts: Sequence[int]) -> int:
    """The context whose answer is used at ``visible``: the smallest that holds the whole prompt, else ``visible``."""
    if len(prompt.body) > visible:
        return visible
    return min(context for context in contexts if len(prompt.body) <= context)


def plan_answers(
    prompts: Mapping[str, Sequence[LongPrompt]],
    visible: Sequence[int],
    batch_tokens: int,
    mixed_up_to: float = math.inf,
) -> list[Batch]:
    """All batches of a measurement, as :func:`~contextwise_evals.answering.prompts.plan_batches` makes them.

    A prompt that is wholly visible in several visible contexts is answered once.
    """
    batches = []
    for context in sorted(visible, reverse=True):
        for name, encoded in prompts.items():
            alike: dict[int, dict[int, int]] = defaultdict(dict)
            for index, prompt in enumerate(encoded):
                if shown_at(prompt, context, visible) == context:
                    alike[prompt.item.new_tokens][index] = len(prompt.prompt(context))
            for new, lengths in sorted(alike.items(), reverse=True):
                batches += split(name, context, lengths, new, batch_tokens, mixed_up_to)
    return batches
