"""Corpus: memory-mapped documents of token ids on disk."""

import difflib
import hashlib
import json
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from contextwise.base.errors import DataError
from contextwise.data.corpus.manifest import FILE, check_files, read_manifest
from contextwise.data.corpus.stores import ArrowStore, BinStore, Store, open_zarr, zarr_store

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_ZARR_FILES = (".zarray", ".zgroup", "zarr.json")
_BIN_SPLITS = {"train": "train.bin", "validation": "val.bin", "test": "test.bin"}


class Corpus:
    """Memory-mapped documents of token ids; create it with :meth:`open`. A pickled copy opens the same files.

    Attributes:
        path: the folder (or file) that was opened.
        split: the split that was opened.
        splits: names of all splits of the corpus.
        manifest: the manifest of a prepared corpus; empty for Zarr arrays and ``.bin`` files.
        lengths: int64, tokens of each document, without end-of-text.
    """

    def __init__(
        self, path: Path, split: str, splits: list[str], store: Store, manifest: dict[str, Any]
    ) -> None:
        self.path, self.split, self.splits, self.manifest = path, split, splits, manifest
        self._store = store
        self.lengths: np.ndarray = store.lengths
        self._limit: int | None = None

    @classmethod
    def open(cls, path: str | Path, split: str = "train") -> "Corpus":
        """Open a corpus.

        Args:
            path: a folder that ``contextwise prepare`` wrote; a Zarr array (documents, length) or a group of
                such arrays; a flat uint16 ``.bin`` file, or a folder with ``train.bin`` and ``val.bin``.
            split: name of the split. A single array or ``.bin`` file has only ``train``, which is opened for any name.

        Raises:
            DataError: the corpus or the split does not exist, or the files differ from those that the manifest lists.
        """
        path = Path(path).expanduser()
        if (path / FILE).exists():
            return cls._open_prepared(path, split)
        if path.suffix == ".bin" and path.is_file():
            return cls(path, "train", ["train"], BinStore(path), {})
        if any((path / name).exists() for name in _ZARR_FILES):
            arrays = open_zarr(path)
            split = "train" if list(arrays.values()) == [path] else split
            _check_split(path, split, list(arrays))
            return cls(path, split, list(arrays), zarr_store(arrays[split]), {})
        bins = {name: path / file for name, file in _BIN_SPLITS.items() if (path / file).is_file()}
        if bins:
            _check_split(path, split, list(bins))
            return cls(path, split, list(bins), BinStore(bins[split]), {})
        if not path.exists():
            raise DataError(
                f"there is no corpus at {path}; make one with `contextwise prepare SOURCE --out {path}`"
            )
        raise DataError(
            f"{path} is not a corpus: neither a folder with a {FILE} (`contextwise prepare` writes it), a Zarr array, "
            "a .bin file nor a folder with a train.bin"
        )

    @classmethod
    def _open_prepared(cls, path: Path, split: str) -> "Corpus":
        manifest = read_manifest(path)
        _check_split(path, split, list(manifest["splits"]))
        about = manifest["splits"][split]
        check_files(path, {**about["files"], **manifest["tokenizer"]["files"]})
        files = [path / name for name in about["files"] if name.endswith(".arrow")]
        store = ArrowStore(files, about["fingerprint"])
        counts = len(store.lengths), int(store.lengths.sum())
        if counts != (about["documents"], about["tokens"]) or store.lengths.min(initial=0) < 0:
            raise DataError(
                f"the corpus {path} is damaged: the split {split!r} has {counts[0]:,} documents of "
                f"{counts[1]:,} tokens, its manifest says {about['documents']:,} of {about['tokens']:,}; "
                "prepare the corpus again"
            )
        return cls(path, split, list(manifest["splits"]), store, manifest)

    def first(self, tokens: int) -> "Corpus":
        """Return the corpus truncated to its first ``tokens`` tokens; the last document is cut to fit.

        Raises:
            DataError: the corpus has fewer tokens.
        """
        if not 0 < tokens <= self.tokens:
            raise DataError(
                f"tokens is {tokens:,}, but the split {self.split!r} of {self.path} has {self.tokens:,}; give at most that"
            )
        part = Corpus(self.path, self.split, self.splits, self._store, self.manifest)
        totals = np.cumsum(self.lengths)
        count = int(np.searchsorted(totals, tokens)) + 1
        part.lengths = self.lengths[:count].copy()
        part.lengths[-1] -= totals[count - 1] - tokens
        part._limit = tokens
        return part

    def __len__(self) -> int:
        return len(self.lengths)

    def __repr__(self) -> str:
        counts = f"documents={len(self):,}, tokens={self.tokens:,}"
        return f"Corpus({str(self.path)!r}, split={self.split!r}, {counts})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.path, self.split, self.manifest.get("digest"), self._limit)

    def document(self, index: int) -> np.ndarray:
        """Token ids of document ``index``, (tokens,), read-only: a view of the mapped file (Zarr: a copy).

        Raises:
            IndexError: the index is out of range.
        """
        return self._store.document(self._checked(index))[: self.lengths[index]]

    def metadata(self, index: int) -> dict[str, Any]:
        """Values of the document in :attr:`columns`; values stored as JSON text are decoded."""
        self._checked(index)
        if not isinstance(self._store, ArrowStore):
            return {}
        row = self._store.row(index, self.columns)
        return {name: self._decoded(name, value) for name, value in row.items()}

    def column(self, name: str) -> list[Any]:
        """Values of a metadata column, one per document.

        Raises:
            DataError: the column does not exist.
        """
        if name not in self.columns or not isinstance(self._store, ArrowStore):
            near = difflib.get_close_matches(name, self.columns, n=1)
            hint = (
                f"did you mean {near[0]!r}?" if near else f"it has {', '.join(self.columns) or 'no metadata'}"
            )
            raise DataError(f"the corpus {self.path} has no metadata column {name!r}; {hint}")
        return [self._decoded(name, value) for value in self._store.column(name)[: len(self)]]

    def _decoded(self, name: str, value: Any) -> Any:
        return json.loads(value) if value is not None and name in self.manifest["columns_as_json"] else value

    def _checked(self, index: int) -> int:
        if not 0 <= index < len(self):
            raise IndexError(f"document {index} of {len(self)}")
        return index

    @property
    def columns(self) -> list[str]:
        """Names of the metadata columns: ``document_hash`` (of the text, hexadecimal) and the source's."""
        return self._store.columns if isinstance(self._store, ArrowStore) else []

    @cached_property
    def tokens(self) -> int:
        """Tokens of all documents, without end-of-text."""
        return int(self.lengths.sum())

    @cached_property
    def bytes(self) -> np.ndarray | None:
        """int64, bytes of each document's text in UTF-8; None if the texts are not known."""
        return self._numbers("n_bytes")

    @cached_property
    def words(self) -> np.ndarray | None:
        """int64, words (between whitespace) of each document's text; None if the texts are not known."""
        return self._numbers("n_words")

    def _numbers(self, name: str) -> np.ndarray | None:
        if self._limit is not None or not isinstance(
            self._store, ArrowStore
        ):  # the counts of a truncated document differ
            return None
        return self._store.numbers(name)

    @property
    def vocab_size(self) -> int | None:
        """Size of the tokenizer's vocabulary; None without a tokenizer."""
        return self.manifest["tokenizer"]["vocab_size"] if self.manifest else None

    @property
    def end_of_text(self) -> int | None:
        """Id of the token between documents; None without a tokenizer."""
        return self.manifest["tokenizer"]["end_of_text"] if self.manifest else None

    @property
    def dtype(self) -> np.dtype:
        """Type of the token ids."""
        return self._store.dtype

    @property
    def fingerprint(self) -> str:
        """SHA-256, hexadecimal, of the split's tokens (and the tokenizer).

        A prepared corpus stores it in its manifest. For Zarr and ``.bin`` it covers names, sizes and 64 evenly spaced blocks of
        1 MiB, read on first use: those arrays may be too large to read completely at every start.
        """
        complete = self._store.fingerprint
        return (
            complete
            if self._limit is None
            else hashlib.sha256(f"{complete} {self._limit}".encode()).hexdigest()
        )

    def tokenizer(self) -> "PreTrainedTokenizerFast | None":
        """Load the tokenizer in the corpus's folder; None for Zarr and ``.bin``.

        Raises:
            DataError: the tokenizer is damaged.
        """
        if not self.manifest:
            return None
        from transformers import AutoTokenizer

        folder = self.path / "tokenizer"
        try:
            return AutoTokenizer.from_pretrained(folder)
        except Exception as error:  # transformers and tokenizers raise errors of many classes here
            raise DataError(
                f"the tokenizer {folder} is damaged: {str(error)[:200]}; prepare the corpus again"
            ) from None

    def verify(self) -> None:
        """Read every file of the split and the tokenizer, and compare it with its hash in the manifest.

        Zarr arrays and ``.bin`` files have no hashes to compare with; they pass.

        Raises:
            DataError: a file is missing or its content has changed; the message names the first such file.
        """
        if self.manifest:
            read_manifest(self.path)
            files = {**self.manifest["splits"][self.split]["files"], **self.manifest["tokenizer"]["files"]}
            check_files(self.path, files, hashes=True)


def _check_split(path: Path, split: str, splits: list[str]) -> None:
    if split not in splits:
        raise DataError(f"the corpus {path} has no split {split!r}; it has {', '.join(splits)}")


def _reopen(path: Path, split: str, digest: str | None, limit: int | None) -> Corpus:
    """Reopen a pickled corpus (in a worker process, for example).

    Raises:
        DataError: the corpus at ``path`` has been replaced.
    """
    corpus = Corpus.open(path, split)
    if corpus.manifest.get("digest") != digest:
        raise DataError(f"the corpus {path} was replaced while it was in use; start again")
    return corpus if limit is None else corpus.first(limit)
