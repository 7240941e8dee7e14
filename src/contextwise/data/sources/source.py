"""What every source of texts is: records that can be read again, in a fixed order. A new kind is one file beside this one."""

import abc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from contextwise.data.documents import LONGEST_TEXT, BadRecord, Document
from contextwise.data.input_files import readable, type_name

Record = Document | BadRecord


class Source(abc.ABC):
    """A readable source. A subclass is registered by its ``kind``.

    Attributes:
        kind: the source's kind in the manifest.
        kinds: all registered kinds.
        name: what the user gave, without folders.
        done: the share of the source that the current pass has read, from 0 to 1.
    """

    kind: str
    kinds: ClassVar[dict[str, type["Source"]]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "kind" in cls.__dict__:
            Source.kinds[cls.kind] = cls

    def __init__(self, name: str) -> None:
        self.name, self.done = name, 0.0

    @classmethod
    def named(cls, given: str, limit: int | None) -> "Source | None":
        """The source that ``given`` names by a form of its own (``stdlib``, a dataset's folder), or None.

        Raises:
            DataError: it is of this kind, but cannot be opened.
        """
        return None

    @abc.abstractmethod
    def records(self, text_field: str) -> Iterator[Record]:
        """All records, in a fixed order.

        Raises:
            DataError: a file is missing, unreadable or damaged, or a table has no column ``text_field``.
        """

    def description(self) -> dict[str, Any]:
        """The manifest's entry about this source."""
        return {"kind": self.kind, "name": self.name}


class FileSource(Source):
    """One or more files, read one after the other.

    Attributes:
        suffixes: what the names of such files end with, also before ``.gz``.
        root: the folder that the user named, or that all files lie in.
    """

    suffixes: ClassVar[tuple[str, ...]] = ()

    def __init__(self, name: str, files: Sequence[Path], root: Path) -> None:
        super().__init__(name)
        self.files, self.root = sorted(files), root

    def description(self) -> dict[str, Any]:
        return {**super().description(), "files": len(self.files)}

    def records(self, text_field: str) -> Iterator[Record]:
        self.done, before = 0.0, 0
        sizes = [path.stat().st_size if path.exists() else 0 for path in self.files]
        total = max(1, sum(sizes))
        for path, size in zip(self.files, sizes, strict=True):
            with readable(path):
                for record, share in self.records_of(path, text_field):
                    self.done = (before + share * size) / total
                    yield record
            before += size

    @abc.abstractmethod
    def records_of(self, path: Path, text_field: str) -> Iterator[tuple[Record, float]]:
        """Records of one file, each with the share of the file that was read up to there."""


class WrappedSource(Source):
    """A source that formats the records of another one, named ``KIND:SOURCE``."""

    def __init__(self, source: Source) -> None:
        super().__init__(source.name)
        self.source = source

    def description(self) -> dict[str, Any]:
        return {**self.source.description(), "kind": self.kind, "form": self.source.kind}


def as_record(text: Any, metadata: dict[str, Any], where: str, what: str) -> Record:
    """A document, if ``text`` is a string of a size that Arrow can hold."""
    if not isinstance(text, str):
        return BadRecord(where, f"{what} is not a string but {type_name(text)}")
    if len(text) >= LONGEST_TEXT // 4 and len(text.encode()) > LONGEST_TEXT:
        return BadRecord(where, f"{what} is longer than 2 GiB")
    return Document(text, metadata)
