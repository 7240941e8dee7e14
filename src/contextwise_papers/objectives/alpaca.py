"""Instructions in Alpaca's format, as documents: the published prompt, then the response.

A record has an ``instruction``, an ``output``, and an ``input`` that may be empty or absent (Taori et al. 2023, ``train.py``).
``prompt_characters`` in a document's metadata is the length of its prompt in characters.
"""

import json
from collections.abc import Iterator
from typing import Any

from contextwise.data import BadRecord, Document, Record, Source

PROMPT_CHARACTERS = "prompt_characters"
RESPONSE = "### Response:"
_TASK = "Below is an instruction that describes a task"
_REQUEST = "Write a response that appropriately completes the request.\n\n"
_WITH_INPUT = ", paired with an input that provides further context"

CHAT_TEMPLATE = (
    "{{ eos_token or bos_token }}" + f"{_TASK}. {_REQUEST}"
    "{% for message in messages %}"
    "{% if message['role'] != 'user' %}"
    "{{ message['content'] + '\n\n' }}"
    "{% else %}"
    "{{ '### Instruction:\n' + message['content'] + '\n\n" + RESPONSE + "' }}"
    "{% endif %}"
    "{% endfor %}"
)
"""The prompt without input, as a chat template of transformers. Further turns follow in the same form; a system message is
copied unchanged.

It begins with the token that a document begins with in training. An answer that is given ends with an empty line instead of
end-of-text, after which a model expects another document.
"""


def prompt_text(instruction: str, input_text: str = "") -> str:
    """Build the published prompt, up to the beginning of the response."""
    more, given = (_WITH_INPUT, f"### Input:\n{input_text}\n\n") if input_text else ("", "")
    return f"{_TASK}{more}. {_REQUEST}### Instruction:\n{instruction}\n\n{given}{RESPONSE}"


class Instructions(Source):
    """The records of another source as instructions: ``alpaca:SOURCE``. Empty outputs become empty documents."""

    kind = "alpaca"
    wraps = True

    def __init__(self, source: Source) -> None:
        super().__init__(source.name)
        self.source = source

    def description(self) -> dict[str, Any]:
        return {**self.source.description(), "kind": self.kind, "form": self.source.kind}

    def records(self, text_field: str) -> Iterator[Record]:
        """Iterate over the formatted texts; ``text_field`` has no effect, since Alpaca's fields have fixed names."""
        for number, record in enumerate(self.source.records("output"), start=1):
            if isinstance(record, BadRecord):
                yield BadRecord(record.where, record.why.replace("; text_field names another", ""))
            else:
                yield _instruction(record, f"{self.name} record {number:,}")


def _instruction(record: Document, where: str) -> Record:
    """Build the document of an instruction from the output, whose metadata are the other fields."""
    others = dict(record.metadata)
    instruction, input_text = others.pop("instruction", None), others.pop("input", None) or ""
    for name, value in (("instruction", instruction), ("input", input_text)):
        if not isinstance(value, str):
            shown = json.dumps(value, default=str)[:40]
            problem = "is missing" if value is None else f"is not a text but {shown}"
            return BadRecord(where, f"the field {name!r} {problem}; Alpaca's fields are instruction, input, output")
    if not record.text.strip():
        return Document("", {})
    prompt = prompt_text(instruction, input_text)
    return Document(prompt + record.text, {**others, PROMPT_CHARACTERS: len(prompt)})
