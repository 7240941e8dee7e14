"""What a model reads of a question on a long text, and which part of it stays when less than all is visible.

A prompt is made from a template with ``{context}`` and ``{input}``: the line's own, that of its data set in a file such as
LongBench's ``dataset2prompt.json``, or a plain one. It is tokenized once, as a whole. When a model is to see no more than V
tokens of it,

    ends     its first and its last floor(V/2) tokens stay, as LongBench truncates in the middle;
    nearest  what stands around the text stays, and as many of the text's last tokens as V leaves room for, as in RULER.

LongBench turns the two ends into text and that into tokens again, which may differ at the cut; here they stay the same tokens.
Special tokens and a chat template's marks are not counted in V, and always stay.
"""

import string
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from contextwise.base.errors import ConfigError, DataError
from contextwise.data.input_files import read_value
from contextwise.evaluation.answering.prompts import Encoded, Encoder, Question
from contextwise.evaluation.measures.long_tasks.datasets import SUMMARY
from contextwise.evaluation.measures.long_tasks.formats import Item

Keep = Literal["ends", "nearest"]
KEEPS: tuple[str, ...] = get_args(Keep)

PLAIN = "Read the text, and answer the question about it.\n\n{context}\n\nQuestion: {input}\nAnswer:"
PLAIN_EXAM = PLAIN.replace("about it.", "about it. Where there are options, give the letter alone.")
PLAIN_SUMMARY = "Read the text, and do what is asked for.\n\n{context}\n\nTask: {input}\nAnswer:"
PLAIN_NO_QUESTION = "{context}\n\nA summary of the text above:"
PLAIN_CONTINUED = "{context}{input}"


@dataclass(frozen=True)
class LongPrompt:
    """A question as token ids.

    Attributes:
        head, tail: special tokens and chat marks around the prompt; always visible.
        body: the prompt.
        text: first token of the text in ``body``, and the one behind its last.
    """

    item: Item
    keep: Keep
    head: tuple[int, ...]
    body: tuple[int, ...]
    tail: tuple[int, ...]
    text: tuple[int, int]

    @property
    def around(self) -> int:
        """Tokens of the prompt that are no part of the text."""
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

    def prompt(self, visible: int) -> list[int]:
        """Token ids (T,) with at most ``visible`` tokens of the prompt."""
        return [*self.head, *self.visible_body(visible), *self.tail]


def read_templates(path: Path) -> dict[str, str]:
    """Data set -> template, from a JSON file such as LongBench's ``dataset2prompt.json``.

    Raises:
        DataError: the file is missing, or not of that form.
    """
    found = read_value(path, "one object: data set -> template")
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        raise DataError(f"{path} is not one JSON object of data set -> template, a text with {{context}}")
    return found


def given_template(item: Item, templates: dict[str, str]) -> str | None:
    """A question's own template, or that of its data set; None where neither is given."""
    names = (item.dataset, item.dataset.removesuffix("_e"))
    return item.template or next((templates[name] for name in names if name in templates), None)


def filled(item: Item, templates: dict[str, str]) -> tuple[str, tuple[int, int]]:
    """The whole prompt of a question, and (start, end) of the text in it, in characters.

    Raises:
        DataError: the template has no place for the text, several, or a name that is neither ``context`` nor ``input``.
    """
    template = given_template(item, templates) or _plain(item)
    try:
        pieces = [(text, name) for text, name, _, _ in string.Formatter().parse(template)]
    except ValueError as error:
        raise DataError(
            f"{item.where}: the template of {item.dataset!r} cannot be read ({error}); write {{{{ for a brace"
        ) from None
    names = [name for _, name in pieces if name is not None]
    unknown = sorted(set(names) - {"context", "input"})
    if unknown:
        raise DataError(
            f"{item.where}: the template of {item.dataset!r} names {{{unknown[0]}}}; it may name {{context}} and {{input}}"
        )
    if names.count("context") != 1:
        raise DataError(
            f"{item.where}: the template of {item.dataset!r} names {{context}} {names.count('context')} times; once is needed"
        )
    prompt, start = "", 0
    for text, name in pieces:
        prompt += text
        if name == "context":
            start = len(prompt)
            prompt += item.context
        elif name == "input":
            prompt += item.question
    return prompt, (start, start + len(item.context))


def _plain(item: Item) -> str:
    if item.few_shot:
        return "{context}\n{input}"
    if item.metric == "code":
        return PLAIN_CONTINUED
    if item.metric == "rouge" and not item.question.strip():
        return PLAIN_NO_QUESTION
    if item.metric == "exam":
        return PLAIN_EXAM
    return PLAIN_SUMMARY if item.group == SUMMARY else PLAIN


def encode_item(
    item: Item, templates: dict[str, str], encoder: Encoder, chat: Encoder | None, keep: Keep
) -> LongPrompt:
    """A question as token ids.

    Args:
        encoder: without a chat template.
        chat: with one, for questions that chat models are asked through it; None for no chat model.
    """
    prompt, span = filled(item, templates)
    chosen = chat if chat is not None and item.in_chat else encoder
    # For the encoder the whole prompt is the text, and the text in it what is looked for.
    found: Encoded = chosen.encode(Question("", prompt, "", "", item.answers, (span,)))
    (place,) = found.needles
    count = len(found.body)
    return LongPrompt(
        item, keep, found.head, found.body, found.tail, (count - place.reach, count - place.behind)
    )


def check_visible(prompts: Sequence[LongPrompt], visible: int) -> None:
    """
    Raises:
        ConfigError: so small a visible context holds nothing of some text.
    """
    if visible < 2:
        raise ConfigError(f"a visible context is {visible}, but must be at least 2")
    worst = max(prompts, key=lambda prompt: prompt.around)
    if worst.keep == "nearest" and worst.around >= visible and len(worst.body) > visible:
        raise ConfigError(
            f"a visible context of {visible} shows nothing of a text: what stands around it takes {worst.around} tokens at "
            f"{worst.item.where}; give at least {worst.around + 1}, or --keep ends"
        )
