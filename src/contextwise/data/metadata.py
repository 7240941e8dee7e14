"""The metadata of a corpus's documents: its columns as English text, and documents with their metadata as token ids.

Dates are written as "Wednesday 29 May 1985", categories and symbols as their English text (CUE, Section 3.1). In front of or
behind a text metadata stands in lines ``name: value``, with an empty line between it and the document.
"""

import contextlib
import math
import re
from datetime import date, datetime, time
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from contextwise.base.errors import ConfigError, DataError
from contextwise.base.hashes import content_key
from contextwise.base.progress import say_once
from contextwise.data.tokenizers import CorpusTokenizer

if TYPE_CHECKING:
    from contextwise.data.corpus import Corpus

_DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
_MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August"]
_MONTHS += ["September", "October", "November", "December"]
LARGEST_SHARE = 4
"""The metadata of a document has at most one in so many positions of a window; longer metadata is cut."""

_GROUP = 1000
"""Documents whose metadata is tokenized in one call."""


_ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:?\d{2})?)?")


def check_columns(columns: list[str]) -> None:
    """Raise ValueError if a column is named twice, or gives the text itself away."""
    twice = sorted({name for name in columns if columns.count(name) > 1})
    if twice:
        raise ValueError(f"the column {twice[0]!r} is named twice; name it once")
    if "document_hash" in columns:
        raise ValueError(
            "'document_hash' is computed from the document's own text, which its metadata must not contain; take it out"
        )


def as_english(value: Any) -> str | None:
    """Convert a metadata value to English text on a single line; None if it is empty.

    Dates, and strings that are ISO dates, become "Wednesday 29 May 1985" (and a time of day 14:05); truth values "yes" or
    "no"; numbers decimals (fractions to six digits); lists their items, separated by commas. White space becomes single spaces.

    Raises:
        DataError: the value is an object, or of another type that has no text.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, list | tuple | np.ndarray):
        items = [text for text in map(as_english, value) if text is not None]
        return ", ".join(items) or None
    if isinstance(value, str):
        text = " ".join(value.split())
        if _ISO_DATE.fullmatch(text):
            with contextlib.suppress(ValueError):  # an invalid date such as 1985-02-31 is plain text
                return _date(datetime.fromisoformat(text))
        return text or None
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and not value.is_integer():
        text = f"{value:.6g}"
        return f"{value:.0f}" if "e+" in text else text  # 1234568, and not 1.23457e+06
    if isinstance(value, int | float):
        return str(int(value))
    if isinstance(value, date):  # includes datetime
        return _date(value)
    if isinstance(value, time):
        return f"{value:%H:%M}"
    kind = "an object" if isinstance(value, dict) else f"of type {type(value).__name__}"
    raise DataError(f"a value is {kind}, which has no text of its own; name one of its fields")


def _date(value: date) -> str:
    # strftime would write the names in the language of the machine.
    day = f"{_DAYS[value.weekday()]} {value.day} {_MONTHS[value.month - 1]} {value.year}"
    return f"{day} {value:%H:%M}" if isinstance(value, datetime) and value.time() != time.min else day


def column_values(corpus: "Corpus", name: str) -> list[Any]:
    """The values of a metadata column, which may be a field of objects (``meta.title``), one per document.

    Raises:
        DataError: the column does not exist, or has values of different types.
    """
    column, dot, field = name.partition(".")
    if not dot or name in corpus.columns:
        column, field = name, ""
    values: list[Any] = corpus.column(column)
    if not field and name in corpus.manifest["columns_as_json"]:
        raise DataError(
            f"the values of the column {name!r} of {corpus.path} have no common type, so they are kept as JSON text; "
            "give them one type and prepare the corpus again, or leave the column out"
        )
    if field:
        *parents, last = field.split(".")
        objects = (_field(value, parents) for value in values)
        if not any(isinstance(inner, dict) and last in inner for inner in objects):
            raise DataError(
                f"the column {name!r} of {corpus.path} does not exist: {column} has no field {field!r}; "
                "name one that it has"
            )
        values = [_field(value, [*parents, last]) for value in values]
    return values


def column_texts(corpus: "Corpus", name: str) -> list[str | None]:
    """The text of a metadata column for each document; None where it has none. Equal texts are one string in memory.

    Raises:
        DataError: the column does not exist, has values of different types, or holds objects.
    """
    shared: dict[str, str] = {}
    texts: list[str | None] = []
    for value in column_values(corpus, name):
        try:
            text = as_english(value)
        except DataError:
            fields = f", {name}.{next(iter(value))} for one" if isinstance(value, dict) and value else ""
            raise DataError(
                f"the column {name!r} of {corpus.path} holds objects, which have no text of their own; "
                f"name one of their fields{fields}"
            ) from None
        texts.append(None if text is None else shared.setdefault(text, text))
    return texts


_DIGESTS: dict[tuple[Any, ...], str] = {}


def texts_digest(corpus: "Corpus", columns: list[str]) -> str:
    """SHA-256, hexadecimal, of the texts of metadata columns, which the corpus's fingerprint does not cover."""
    key = corpus.manifest.get("digest"), corpus.split, corpus.fingerprint, *columns
    if key not in _DIGESTS:  # each run of a set asks for it
        _DIGESTS[key] = content_key(texts=[[name, column_texts(corpus, name)] for name in columns])
    return _DIGESTS[key]


def _field(value: Any, path: list[str]) -> Any:
    """The field of nested objects at a path; None where one of them is missing."""
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    return value


class MetadataTexts:
    """The metadata of the documents of a corpus as token ids.

    Longer metadata than ``most`` tokens loses the end of its lines, not the empty line; a note names the number of documents.

    Args:
        limit: only the first so many documents.

    Attributes:
        lengths: int64, (documents,), tokens of each document's metadata; 0 without any.
        cut: number of documents whose metadata is cut.

    Raises:
        ConfigError: the corpus has no tokenizer, or ``most`` has no room for a token beside the empty line.
        DataError: a column does not exist, or holds objects.
    """

    def __init__(
        self,
        corpus: "Corpus",
        columns: list[str],
        form: Literal["prepend", "append"],
        most: int,
        limit: int | None = None,
    ) -> None:
        tokenizer = corpus.tokenizer()
        if tokenizer is None:
            raise ConfigError(
                f"metadata is text, but the corpus {corpus.path} comes without a tokenizer; prepare it with one"
            )
        about = corpus.manifest["tokenizer"]
        # Special tokens that a metadata text spells are text, as in documents.
        backend = CorpusTokenizer(tokenizer, about["kind"], about["name"], about["end_of_text"]).backend
        self.form, self.most, self.cut = form, most, 0
        self.source = f"{corpus.path} ({corpus.split})"
        values = {name: column_texts(corpus, name)[:limit] for name in columns}
        blocks = [
            "\n".join(f"{name}: {value}" for name, value in zip(values, row, strict=True) if value is not None)
            for row in zip(*values.values(), strict=True)
        ]
        ids: list[np.ndarray] = []
        for first in range(0, len(blocks), _GROUP):
            texts = [self._with_empty_line(block) for block in blocks[first : first + _GROUP]]
            encoded = backend.encode_batch(texts, add_special_tokens=False)
            ids += map(self._shortened, blocks[first : first + _GROUP], encoded)
        self.lengths = np.array([len(each) for each in ids], dtype=np.int64)
        self._ids, self._ends = np.concatenate(ids), np.cumsum(self.lengths)
        if self.cut:
            say_once(
                f"note: the metadata of {self.cut:,} of {len(ids):,} documents of {corpus.path} ({corpus.split}) is cut to "
                f"{most} tokens, a quarter of the context"
            )

    def check_any(self) -> None:
        """Raise DataError if no document has any of the columns."""
        if not self.lengths.any():
            raise DataError(
                f"no document of {self.source} that is read has metadata in the columns; name columns that some have, or leave "
                "metadata out"
            )

    def _with_empty_line(self, block: str) -> str:
        if not block:
            return ""
        return f"{block}\n\n" if self.form == "prepend" else f"\n\n{block}"

    def _shortened(self, block: str, encoding: Any) -> np.ndarray:
        """The token ids of a block with its empty line, without the last ones of the block if they are too many."""
        ids = np.array(encoding.ids, dtype=np.int32)
        if len(ids) <= self.most:
            return ids
        begins, ends = np.array(encoding.offsets).T  # in characters
        empty = ends > len(block) if self.form == "prepend" else begins < len("\n\n")
        room = self.most - int(empty.sum())
        if room < 1:
            raise ConfigError(
                f"the metadata of a document has at most a quarter of the context, which is {self.most} tokens and no room for "
                f"metadata and an empty line; give a context of at least {LARGEST_SHARE * (self.most - room + 1)}"
            )
        self.cut += 1
        return ids[empty | (np.cumsum(~empty) <= room)]

    def of(self, document: int) -> np.ndarray:
        """Token ids of a document's metadata, (tokens,) int32."""
        end = int(self._ends[document])
        return self._ids[end - int(self.lengths[document]) : end]


class DocumentsWithMetadata:
    """The documents of a corpus with the metadata of some, as :class:`~contextwise.data.windows.Windows` reads a corpus.

    Args:
        chosen: bool, (documents,), those with metadata; as many documents as ``texts`` has.

    Attributes:
        metadata: int64, (documents + 1,), tokens of each document's metadata; 0 for the end of the stream.
        lengths: int64, (documents,), tokens of each document with its metadata.
    """

    def __init__(self, corpus: "Corpus", texts: MetadataTexts, chosen: np.ndarray) -> None:
        self.corpus, self.texts = corpus, texts
        self.path, self.split, self.end_of_text = corpus.path, corpus.split, corpus.end_of_text
        self.metadata = np.append(texts.lengths * chosen, 0)
        self.lengths = corpus.lengths[: len(chosen)] + self.metadata[:-1]

    def __len__(self) -> int:
        return len(self.lengths)

    def document(self, index: int) -> np.ndarray:
        """Token ids of a document with its metadata."""
        text = self.corpus.document(index)
        if not self.metadata[index]:
            return text
        parts = [self.texts.of(index), text]
        return np.concatenate(parts if self.texts.form == "prepend" else parts[::-1])
