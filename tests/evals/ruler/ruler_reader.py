"""A reader that knows no more than what it is shown, and questions made for it."""

import re
from collections.abc import Sequence
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from contextwise.data.tokenizers import byte_tokenizer
from contextwise_evals.ruler.questions import Size
from small import write_rows

BYTES: PreTrainedTokenizerBase = byte_tokenizer().tokenizer
COLOURS = ("red", "blue", "green", "white", "black", "brown", "pink", "grey")


def size(length: int, gamma: float = 0.0, seed: int = 0) -> Size:
    """Lengths in characters, which are the tokens of :data:`BYTES` where the text is ASCII."""
    return Size(length, gamma, len, seed)


def paragraph(item: int) -> str:
    """80 characters; the colour at its end, so that a reader of the end alone finds it, too."""
    return f"Item {item:04d} was bought in a shop near the old harbour, and it is".ljust(72, ".") + _colour(item)


def _colour(item: int) -> str:
    return f" {COLOURS[item % len(COLOURS)]:.<6}."


def write_squad(path: Path, items: int = 40) -> Path:
    """Paragraphs of 80 characters on items, four an article, with one question each."""
    rows = [
        {
            "id": f"q{item}",
            "title": f"Shop {item // 4}",
            "context": paragraph(item),
            "question": f"Which colour has item {item:04d}?",
            "answers": {"text": [COLOURS[item % len(COLOURS)]], "answer_start": [73]},
        }
        for item in range(items)
    ]
    return write_rows(path, rows)


class WholeParagraphReader:
    """Answers from a paragraph that it sees whole, and says that it does not know where it sees none.

    Attributes:
        batches: lengths of the prompts that were answered together.
    """

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    def answer(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> list[str]:
        assert new_tokens == 32
        self.batches.append([len(prompt) for prompt in prompts])
        return [self._read(BYTES.decode(prompt)) for prompt in prompts]

    def _read(self, text: str) -> str:
        item = re.findall(r"has item (\d{4})\?", text)[-1]
        found = re.search(rf"Item {item} was [^\n]* (\w+)\.+(?:\n|$)", text)
        return f" It is {found.group(1)}." if found else " That is not in the text."
