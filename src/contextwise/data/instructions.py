"""Instructions in Alpaca's format, as documents: the published prompt, then the response.

A record has an ``instruction``, an ``output``, and an ``input`` that may be empty or absent (Taori et al. 2023, ``train.py``).
``prompt_characters`` in a document's metadata says where its response begins.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from contextwise.data.documents import BadRecord, Document
from contextwise.data.sources import JsonLines, Record, Source, parse_line, unpacked

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
"""The prompt without input, as transformers renders conversations. Further turns follow in the same form; what a system says
stands as it is.

It begins with the token that a document begins with in training. Behind an answer that is to be read, and not to be written,
stands an empty line and no end-of-text, behind which a model expects another document.
"""


def prompt_text(instruction: str, input_text: str = "") -> str:
    """The published prompt, up to where the response begins."""
    if not input_text:
        return f"{_TASK}. {_REQUEST}### Instruction:\n{instruction}\n\n{RESPONSE}"
    return (
        f"{_TASK}{_WITH_INPUT}. {_REQUEST}"
        f"### Instruction:\n{instruction}\n\n### Input:\n{input_text}\n\n{RESPONSE}"
    )


class Instructions(Source):
    """Any source whose records are instructions: ``alpaca:SOURCE``.

    Records with an empty output are empty documents, which nothing can be learned from.
    """

    kind = "alpaca"

    def __init__(self, source: Source) -> None:
        super().__init__(source.name)
        self.source = JsonRecords(source.name, source.files) if isinstance(source, JsonLines) else source

    def records(self, text_field: str) -> Iterator[Record]:
        """The formatted texts; ``text_field`` counts for nothing, since Alpaca's fields have fixed names."""
        for number, record in enumerate(self.source.records("output"), start=1):
            self.done = self.source.done
            if isinstance(record, BadRecord):
                yield BadRecord(record.where, record.why.replace("; --text-field names another", ""))
            else:
                yield instruction_document(record, f"{self.name} record {number:,}")

    def description(self) -> dict[str, Any]:
        return {**self.source.description(), "kind": self.kind, "form": self.source.kind}


def instruction_document(record: Document, where: str) -> Record:
    """The document of an instruction.

    Args:
        record: the output, with the other fields as metadata.
        where: what it is called in an error.
    """
    others = dict(record.metadata)
    instruction, given = others.pop("instruction", None), others.pop("input", None)
    for name, value in (("instruction", instruction), ("input", given or "")):
        if not isinstance(value, str):
            what = "is missing" if value is None else f"is no text but {json.dumps(value, default=str)[:40]}"
            return BadRecord(
                where, f"the field {name!r} {what}; Alpaca's fields are instruction, input, output"
            )
    if not record.text.strip():
        return Document("", {})
    prompt = prompt_text(instruction, given or "")
    return Document(prompt + record.text, {**others, PROMPT_CHARACTERS: len(prompt)})


class JsonRecords(JsonLines):
    """JSON Lines, or files that hold one JSON list of objects, as Alpaca's own does."""

    def records_of(self, path: Path, text_field: str) -> Iterator[tuple[Record, float]]:
        with path.open("rb") as raw, unpacked(raw, path) as file:
            head = file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()
            if not head.startswith(b"["):
                yield from super().records_of(path, text_field)
                return
            content = head + file.read()
        try:
            items = json.loads(content)
        except (ValueError, RecursionError) as error:
            yield BadRecord(str(path), f"the file is not JSON ({str(error)[:100]})"), 1.0
            return
        for number, item in enumerate(items, start=1):
            line = json.dumps(item).encode()
            yield parse_line(line, f"{path} item {number:,}", text_field), number / len(items)
