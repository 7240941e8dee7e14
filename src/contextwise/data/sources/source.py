"""Documents, and the base class of their sources: records in a fixed order that can be read repeatedly.

A package adds a kind of source with an entry point of the group ``contextwise.sources``: a subclass of :class:`Source`. Its
name is the prefix by which ``prepare`` opens it.
"""

import abc
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from contextwise.base.errors import DataError
from contextwise.data.input_files import listed_fields, type_name

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
    """Base class of a source of records.

    One that a package offers takes what follows its prefix: the source that it ``wraps``, opened, or a text.
    """

    kind: str  # in the manifest; of one that a package offers, its prefix
    wraps: ClassVar[bool] = False
    """Whether another source follows the prefix."""
    alone: ClassVar[bool] = True
    """Whether the prefix alone is the name of a source; it is not where another source follows."""
    parts: ClassVar[Sequence[str]] = ()
    """What may follow the prefix if the source has splits of its own: alone, it stands for all of them."""

    def __init__(self, name: str) -> None:
        self.name = name  # as the user entered it, without folders
        self.done = 0.0  # share of its files that the current pass has read

    @classmethod
    def parts_of(cls, rest: str) -> Sequence[str]:
        """The parts that a source stands for whose name ends in ``rest``: all of them where it names none."""
        return () if rest else cls.parts

    @abc.abstractmethod
    def records(self, text_field: str) -> Iterator[Record]:
        """Iterate over all records, in a fixed order.

        Raises:
            DataError: a file is missing, unreadable or damaged, or a table has no column ``text_field``.
        """

    def description(self) -> dict[str, Any]:
        """Manifest entry of this source."""
        return {"kind": self.kind, "name": self.name}


def check_columns(name: str, names: Sequence[str], text_field: str, some: Mapping[str, Sequence[Any]]) -> None:
    """Raise a DataError for a table ``name`` with two columns of one name, or without the column ``text_field``.

    ``some`` are some values of the columns; those with the most text are listed first.
    """
    if twice := [column for column, number in Counter(names).items() if number > 1]:
        raise DataError(f"{name} has two columns {twice[0]!r}; rename one of them")
    if text_field not in names:
        raise DataError(
            f"{name} has no column {text_field!r}; its columns are {listed_fields(some)}: set text_field to one of them"
        )


def as_record(text: Any, metadata: dict[str, Any], where: str, what: str) -> Record:
    """Return a document if ``text`` is a string of a size that Arrow can store, else a bad record."""
    if not isinstance(text, str):
        return BadRecord(where, f"{what} is not a string but {type_name(text)}")
    if len(text) >= LONGEST_TEXT // 4 and len(text.encode()) > LONGEST_TEXT:
        return BadRecord(where, f"{what} is longer than 2 GiB")
    return Document(text, metadata)
