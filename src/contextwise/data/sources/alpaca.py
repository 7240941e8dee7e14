"""Instructions in Alpaca's format, as documents: the published prompt, then the response.

A record has an ``instruction``, an ``output``, and an ``input`` that may be empty or absent (Taori et al. 2023, ``train.py``).
``prompt_characters`` in a document's metadata is the length of its prompt in characters.
"""

import json
from collections.abc import Iterator

from contextwise.data.documents import BadRecord, Document
from contextwise.data.sources.source import Record, WrappedSource

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
    if not input_text:
        return f"{_TASK}. {_REQUEST}### Instruction:\n{instruction}\n\n{RESPONSE}"
    return (
        f"{_TASK}{_WITH_INPUT}. {_REQUEST}"
        f"### Instruction:\n{instruction}\n\n### Input:\n{input_text}\n\n{RESPONSE}"
    )


class Instructions(WrappedSource):
    """A source whose records are instructions: ``alpaca:SOURCE``.

    Records with an empty output become empty documents, which are skipped.
    """

    kind = "alpaca"

    def records(self, text_field: str) -> Iterator[Record]:
        """Iterate over the formatted texts; ``text_field`` has no effect, since Alpaca's fields have fixed names."""
        for number, record in enumerate(self.source.records("output"), start=1):
            self.done = self.source.done
            if isinstance(record, BadRecord):
                yield BadRecord(record.where, record.why.replace("; text_field names another", ""))
            else:
                yield instruction_document(record, f"{self.name} record {number:,}")


def instruction_document(record: Document, where: str) -> Record:
    """Build the document of an instruction.

    Args:
        record: the output, with the other fields as metadata.
        where: location of the record for error messages.
    """
    others = dict(record.metadata)
    instruction, input_text = others.pop("instruction", None), others.pop("input", None)
    for name, value in (("instruction", instruction), ("input", input_text or "")):
        if not isinstance(value, str):
            problem = (
                "is missing" if value is None else f"is not a text but {json.dumps(value, default=str)[:40]}"
            )
            return BadRecord(
                where, f"the field {name!r} {problem}; Alpaca's fields are instruction, input, output"
            )
    if not record.text.strip():
        return Document("", {})
    prompt = prompt_text(instruction, input_text or "")
    return Document(prompt + record.text, {**others, PROMPT_CHARACTERS: len(prompt)})
