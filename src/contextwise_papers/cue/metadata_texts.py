"""Documents with their metadata as token ids: lines ``name: value`` before or behind the text, with an empty line between."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator

from contextwise.base.progress import say_once
from contextwise.data.tokenizers import CorpusTokenizer
from contextwise.settings import ConfigError, DataError
from contextwise_papers.cue.english import column_texts

if TYPE_CHECKING:
    from contextwise.data import Corpus

LARGEST_SHARE = 4
"""The metadata of a document has at most one in so many positions of a window; longer metadata is cut."""
_GROUP = 1000
"""Documents whose metadata is tokenized in one call."""


def _checked(columns: list[str]) -> list[str]:
    """Raise ValueError if a column is named twice, or gives the text itself away."""
    twice = sorted({name for name in columns if columns.count(name) > 1})
    if twice:
        raise ValueError(f"the column {twice[0]!r} is named twice; name it once")
    if "document_hash" in columns:
        raise ValueError(
            "'document_hash' is computed from the document's own text, which its metadata must not contain; take it out"
        )
    return columns


Columns = Annotated[list[str], AfterValidator(_checked)]
"""Names of metadata columns, as a setting."""


class MetadataTexts:
    """The metadata of the documents of a corpus, or of its first ``limit``, as token ids; ``lengths`` are 0 without any.

    Longer metadata than ``most`` tokens loses the end of its lines, not the empty line; ``cut`` counts these documents.
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
    """The documents of a corpus with the metadata of the ``chosen``, as :class:`~contextwise.data.windows.Windows` reads them.

    ``metadata``: (documents + 1,) tokens of each document's metadata; 0 for the end of the stream.
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
