"""Made-up files of LongBench's and L-Eval's form, and a reader that answers with what it sees."""

import importlib.util
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from contextwise.data.tokenizers import byte_tokenizer

MISSING = [name for name in ("lm_eval", "jieba", "fuzzywuzzy", "rouge") if importlib.util.find_spec(name) is None]
needs_longbench = pytest.mark.skipif(
    bool(MISSING), reason=f"of the extra 'eval' {', '.join(MISSING)} are not installed"
)
BYTES: PreTrainedTokenizerBase = byte_tokenizer().tokenizer


def longbench_line(number: int = 0, **values: Any) -> dict[str, Any]:
    """A question on a text whose answer stands at a place of its own: in the middle of the text for number 0."""
    filler = " ".join(f"Line {i} of text {number} says nothing." for i in range(12))
    cut = len(filler) // 2
    fact = f" The key of house {number} is number {100 + number}. "
    line = {
        "_id": f"id-{number}",
        "dataset": "hotpotqa",
        "input": f"What is the key of house {number}?",
        "context": filler[:cut] + fact + filler[cut:],
        "answers": [f"number {100 + number}"],
        "length": 1000 * number,
        "language": "en",
        "all_classes": None,
    }
    return {**line, **values}


def leval_line(number: int = 0, **values: Any) -> dict[str, Any]:
    """A document with two questions."""
    line = {
        "input": f"Document {number}. " + "It goes on and on. " * 30,
        "instructions": ["Which?\nA. this\nB. that", "True or False?"],
        "outputs": ["B", "True [fact: False]"],
        "source": "made up",
        "evaluation": "exam",
    }
    return {**line, **values}
