"""Base classes of the sources of texts: records in a fixed order that can be read repeatedly.

To add a kind of source, add a module to this package.
"""

import abc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from contextwise.data.documents import LONGEST_TEXT, BadRecord, Document
from contextwise.data.input_files import readable, type_name

Record = Document | BadRecord


class Source(abc.ABC):
    """Base class of a source of records. A subclass is registered by its ``kind``.

    Attributes:
        kind: the source's kind in the manifest.
        kinds: all registered kinds.
        name: name of the source as the user entered it, without folders.
        done: share of the source that the current pass has read, from 0 to 1.
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
        """Open the source ``given`` if it names this kind (``stdlib``, a dataset's folder); None otherwise.

        Raises:
            DataError: the source is of this kind, but cannot be opened.
        """
        return None

    @abc.abstractmethod
    def records(self, text_field: str) -> Iterator[Record]:
        """Iterate over all records, in a fixed order.

        Raises:
            DataError: a file is missing, unreadable or damaged, or a table has no column ``text_field``.
        """

    def description(self) -> dict[str, Any]:
        """Manifest entry of this source."""
        return {"kind": self.kind, "name": self.name}


class FileSource(Source):
    """Base class of a source of one or more files, read in order.

    Attributes:
        suffixes: suffixes of the file names, without ``.gz``.
        root: the folder that the user named, or the common folder of all files.
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
        """Iterate over the records of a file, each with the share of the file read so far."""


class WrappedSource(Source):
    """Base class of a source that formats the records of another source, named ``KIND:SOURCE``."""

    def __init__(self, source: Source) -> None:
        super().__init__(source.name)
        self.source = source

    def description(self) -> dict[str, Any]:
        return {**self.source.description(), "kind": self.kind, "form": self.source.kind}


def as_record(text: Any, metadata: dict[str, Any], where: str, what: str) -> Record:
    """Return a document if ``text`` is a string of a size that Arrow can store, else a bad record."""
    if not isinstance(text, str):
        return BadRecord(where, f"{what} is not a string but {type_name(text)}")
    if len(text) >= LONGEST_TEXT // 4 and len(text.encode()) > LONGEST_TEXT:
        return BadRecord(where, f"{what} is longer than 2 GiB")
    return Document(text, metadata)
