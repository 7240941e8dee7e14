"""Documents, and the base class of their sources: records in a fixed order that can be read repeatedly.

To add a kind of source, add a module to this package, and a line to ``open_source``.
"""

import abc
from collections.abc import Iterator
from typing import Any, NamedTuple

from contextwise.data.input_files import type_name

LONGEST_TEXT = 2**31 - 1  # Arrow's list offsets are 32-bit, and a token has at least one byte


class Document(NamedTuple):
    """A text and its metadata."""

    text: str
    metadata: dict[str, Any]


class BadRecord(NamedTuple):
    """An invalid record of a source: its location (``file:line``), and the reason."""

    where: str
    why: str


Record = Document | BadRecord


class Source(abc.ABC):
    """Base class of a source of records."""

    kind: str  # in the manifest

    def __init__(self, name: str) -> None:
        self.name = name  # as the user entered it, without folders
        self.done = 0.0  # share of the source that the current pass has read, to 1

    @abc.abstractmethod
    def records(self, text_field: str) -> Iterator[Record]:
        """Iterate over all records, in a fixed order.

        Raises:
            DataError: a file is missing, unreadable or damaged, or a table has no column ``text_field``.
        """

    def description(self) -> dict[str, Any]:
        """Manifest entry of this source."""
        return {"kind": self.kind, "name": self.name}


def as_record(text: Any, metadata: dict[str, Any], where: str, what: str) -> Record:
    """Return a document if ``text`` is a string of a size that Arrow can store, else a bad record."""
    if not isinstance(text, str):
        return BadRecord(where, f"{what} is not a string but {type_name(text)}")
    if len(text) >= LONGEST_TEXT // 4 and len(text.encode()) > LONGEST_TEXT:
        return BadRecord(where, f"{what} is longer than 2 GiB")
    return Document(text, metadata)
