"""Corpus: memory-mapped documents of token ids on disk, with a manifest that has a hash of every file and of itself."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from contextwise.base.errors import ConfigError, DataError, did_you_mean, misspelt
from contextwise.base.files import expanded, read_json, still_at, write_json
from contextwise.base.hashes import content_key, difference
from contextwise.base.machine import own_version
from contextwise.base.pretrained import failure_reason, from_pretrained
from contextwise.base.schemas import parse_json
from contextwise.data.corpus.stores import OWN_COLUMNS, ArrowStore, BinStore, Store, ZarrStore, open_zarr

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

MANIFEST = "manifest.json"
_FORMAT, _VERSION = "contextwise-corpus", 2
_AGAIN = "prepare the corpus again, or fetch it again"
_ZARR_FILES = (".zarray", ".zgroup", "zarr.json")
_BIN_SPLITS = {"train": "train.bin", "validation": "val.bin", "test": "test.bin"}


class Corpus:
    """Memory-mapped documents of token ids; create it with :meth:`open`. A pickled copy opens the same files.

    Attributes:
        path: the folder (or file) that was opened.
        splits: names of all splits of the corpus.
        manifest: the manifest of a prepared corpus; empty for Zarr arrays and ``.bin`` files.
        lengths: int64, tokens of each document, without end-of-text.
        dtype: type of the token ids.
        columns: names of the metadata columns: ``document_hash`` (of the text, hexadecimal) and the source's.
        limit: tokens that :meth:`first` has left; None for all.
        chosen: whether a split was named, or its first tokens; functions measure such a corpus as it is.
    """

    chosen = False

    def __init__(self, path: Path, split: str, splits: list[str], store: Store, manifest: dict[str, Any]) -> None:
        self._places, self.split, self.splits, self.manifest = (path, path.absolute()), split, splits, manifest
        self._store = store
        self.limit: int | None = None
        self.lengths, self.dtype = store.lengths, store.dtype
        self._table: Any = store.table
        names = store.table.column_names if store.table is not None else []
        self.columns = [name for name in names if name not in OWN_COLUMNS or name == "document_hash"]

    @property
    def path(self) -> Path:
        """As it was given; absolute when the process has changed its folder since."""
        return still_at(*self._places)

    @classmethod
    def open(cls, path: str | Path, split: str | None = None) -> "Corpus":
        """Open a corpus.

        Args:
            path: a folder that ``contextwise prepare`` wrote; a Zarr array (documents, length) or a group of
                such arrays; a flat uint16 ``.bin`` file, or a folder with ``train.bin`` and ``val.bin``.
            split: name of the split; by default ``train``. A single array or ``.bin`` file has only ``train``, which is opened
                for any name.

        Raises:
            DataError: the corpus or the split does not exist, or the files differ from those that the manifest lists.
        """
        path, chosen, split = expanded(path), split is not None, "train" if split is None else split
        manifest: dict[str, Any] = {}
        stores: dict[str, Callable[[], Store]]
        if (path / MANIFEST).exists():
            manifest = read_manifest(path)
            stores = {name: partial(_prepared_store, path, name, manifest) for name in manifest["splits"]}
        elif path.suffix == ".bin" and path.is_file():
            stores, split = {"train": partial(BinStore, path)}, "train"
        elif any((path / name).exists() for name in _ZARR_FILES):
            arrays = open_zarr(path)
            stores = {name: partial(ZarrStore, *array) for name, array in arrays.items()}
            split = "train" if any(folder == path for _, folder in arrays.values()) else split
        else:
            files = {name: path / file for name, file in _BIN_SPLITS.items()}
            stores = {name: partial(BinStore, file) for name, file in files.items() if file.is_file()}
        prepare = "contextwise prepare {} --tokenizer train:4096 --out {}"
        if not path.exists():
            from contextwise.data.sources import is_file_name

            if is_file_name(path):
                raise DataError(f"there is no file {path}{misspelt(path)}")
            prepare = prepare.format("SOURCE", path)
            raise DataError(
                f"there is no corpus at {path}; make one with `{prepare}`, or give one that is there (--corpus PATH)"
                f"{misspelt(path)}"
            )
        if not stores:
            raise DataError(
                f"{path} is not a corpus: neither a folder with a {MANIFEST}, a Zarr array, a .bin file nor a folder with a "
                f"train.bin; if it holds texts, make one with `{prepare.format(path, f'corpora/{path.stem}')}`"
            )
        if split not in stores:
            fix = f"; prepare it with --{split} SHARE, or {split}=FILE" if split in ("validation", "test") else ""
            if fix and len(stores) == 1 and manifest and manifest["splits"][next(iter(stores))]["documents"] == 1:
                fix += "; it is one document: with paragraphs:FILE each paragraph of a file is one"
            if meant := [name for name in stores if name.startswith(split[:3])]:
                fix = f"; did you mean {meant[0]}?"
            raise DataError(f"the corpus {path} has no split {split!r}; it has {', '.join(stores)}{fix}")
        corpus = cls(path, split, list(stores), stores[split](), manifest)
        corpus.chosen = chosen
        return corpus

    def first(self, tokens: int) -> "Corpus":
        """Return the corpus truncated to its first ``tokens`` tokens; the last document is cut to fit."""
        if not 0 < tokens <= self.tokens:
            raise DataError(
                f"tokens is {tokens:,}, but the split {self.split!r} of {self.path} has {self.tokens:,}; give at most that"
            )
        part = Corpus(self.path, self.split, self.splits, self._store, self.manifest)
        totals = np.cumsum(self.lengths)
        count = int(np.searchsorted(totals, tokens)) + 1
        part.lengths = self.lengths[:count].copy()
        part.lengths[-1] -= totals[count - 1] - tokens
        part.limit, part.chosen = tokens, True
        return part

    def __len__(self) -> int:
        return len(self.lengths)

    def __repr__(self) -> str:
        counts = f"documents={len(self):,}, tokens={self.tokens:,}"
        return f"Corpus({str(self.path)!r}, split={self.split!r}, {counts})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.path, self.split if self.chosen else None, self.manifest.get("digest"), self.limit)

    def document(self, index: int) -> np.ndarray:
        """Token ids of document ``index``, (tokens,), read-only: a view of the mapped file (Zarr: a copy)."""
        return self._store.document(self._checked(index))[: self.lengths[index]]

    def metadata(self, index: int) -> dict[str, Any]:
        """Values of the document in :attr:`columns`; values stored as JSON text are decoded."""
        row = self._checked(index)
        return {name: self._decoded(name, self._table[name][row].as_py()) for name in self.columns}

    def column(self, name: str) -> list[Any]:
        """Values of a metadata column, one per document; a :class:`DataError` if it does not exist."""
        if name not in self.columns:
            hint = did_you_mean(name, self.columns, f"it has {', '.join(self.columns) or 'no metadata'}")
            raise DataError(f"the corpus {self.path} has no metadata column {name!r}; {hint}")
        return [self._decoded(name, value) for value in self._table[name][: len(self)].to_pylist()]

    def _decoded(self, name: str, value: Any) -> Any:
        return json.loads(value) if value is not None and name in self.manifest["columns_as_json"] else value

    def _checked(self, index: int) -> int:
        if not 0 <= index < len(self):
            raise IndexError(f"document {index} of {len(self)}")
        return index

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

    @cached_property
    def lost(self) -> np.ndarray | None:
        """Whether the tokens of each document do not decode to its text, (documents,) bool; None if it is not known.

        The tokens of such a document predict less than its text, so it has no loss per byte or word of the text.
        """
        return self._numbers("text_lost")

    @property
    def lost_note(self) -> str | None:
        """Sentence on the split's text that its tokens do not hold, or where that is not known; None if they hold all of it."""
        if not self.manifest:
            return "Whether the tokens hold the whole text that they were made from is not known: there are no bytes to count."
        return lost_note([self.manifest["splits"][self.split]])

    def _numbers(self, name: str) -> np.ndarray | None:
        if self.limit is not None or self._table is None:  # the counts of a truncated document differ
            return None
        return self._table[name].to_numpy()

    @property
    def vocab_size(self) -> int | None:
        """Size of the tokenizer's vocabulary; None without a tokenizer."""
        return self.manifest["tokenizer"]["vocab_size"] if self.manifest else None

    @property
    def end_of_text(self) -> int | None:
        """Id of the token between documents; None without a tokenizer."""
        return self.manifest["tokenizer"]["end_of_text"] if self.manifest else None

    @property
    def fingerprint(self) -> str:
        """SHA-256, hexadecimal, of the split's tokens, documents and texts, the tokenizer and its end-of-text.

        A prepared corpus stores it in its manifest. Zarr arrays and ``.bin`` files are read completely on first use.
        """
        complete = self._store.fingerprint
        if self.limit is None:
            return complete
        return hashlib.sha256(f"{complete} {self.limit}".encode()).hexdigest()

    def metadata_digest(self, names: Sequence[str]) -> str:
        """SHA-256, hexadecimal, of metadata columns (of the whole one for a field, ``meta.title``); not in the fingerprint."""
        columns = [name if name in self.columns else name.partition(".")[0] for name in names]
        return content_key(columns=[[name, json.dumps(self.column(name), default=str)] for name in columns])

    def tokenizer(self) -> "PreTrainedTokenizerFast | None":
        """Load the tokenizer in the corpus's folder; None for Zarr and ``.bin``."""
        if not self.manifest:
            return None
        from transformers import AutoTokenizer

        folder = self.path / "tokenizer"
        try:
            return from_pretrained(AutoTokenizer, folder)
        except Exception as error:  # transformers and tokenizers raise errors of many classes here
            raise DataError(
                f"the tokenizer {folder} is damaged: {failure_reason(error)}; prepare the corpus again"
            ) from None

    def window_start(self, wanted: bool | None = None) -> int | None:
        """Id of the start token to put before a window: the tokenizer's (BOS), else the end-of-text; None for none.

        Args:
            wanted: True or False; None for a start token if the tokenizer itself puts one before a text.

        Raises:
            ConfigError: one is wanted, and there is none.
        """
        from contextwise.data.tokenizers import own_start

        tokenizer = None if wanted is False else self.tokenizer()
        if tokenizer is not None and (own := own_start(tokenizer.backend_tokenizer)) is not None:
            return int(tokenizer.convert_tokens_to_ids(own))
        if not wanted:
            return None
        named = None if tokenizer is None else tokenizer.bos_token_id
        if (start := self.end_of_text if named is None else named) is None:
            raise ConfigError(f"the corpus {self.path} has no token to start a window with; leave bos out")
        return start

    def verify(self) -> None:
        """Read every file of the split and the tokenizer, and compare it with its hash in the manifest, if there is one.

        Raises:
            DataError: a file is missing or its content has changed; the message names the first such file.
        """
        if self.manifest:
            read_manifest(self.path)
            _check_files(self.path, self.split, self.manifest, hashes=True)

    def check_in_place(self) -> None:
        """Raise a DataError if another corpus was prepared at this path since this one was opened."""
        if self.manifest and read_manifest(self.path)["digest"] != self.manifest["digest"]:
            raise DataError(f"the corpus {self.path} was replaced while it was in use; start again")


def lost_note(splits: Sequence[Mapping[str, Any]]) -> str | None:
    """Sentence on the text of splits, as the manifest describes them, that their tokens do not hold; None if they hold all."""
    lost = {key: sum(split["lost"][key] for split in splits) for key in ("documents", "bytes")}
    total = {key: sum(split[key] for split in splits) for key in ("documents", "bytes")}
    if not lost["documents"]:
        return None
    return (
        f"The tokenizer loses text: the tokens of {lost['documents']:,} of {total['documents']:,} documents "
        f"({lost['bytes'] / total['bytes']:.1%} of the bytes) do not decode to their text. Figures per byte and per "
        "word leave these documents out."
    )


def _prepared_store(path: Path, split: str, manifest: dict[str, Any]) -> ArrowStore:
    _check_files(path, split, manifest)
    about = manifest["splits"][split]
    files = [path / name for name in about["files"] if name.endswith(".arrow")]
    if not files:
        raise DataError(f"the corpus {path} is damaged: its manifest lists no file of the split {split!r}; {_AGAIN}")
    store = ArrowStore(files, about["fingerprint"])
    counts = len(store.lengths), int(store.lengths.sum())
    if counts != (about["documents"], about["tokens"]) or store.lengths.min(initial=0) < 0:
        raise DataError(
            f"the corpus {path} is damaged: the split {split!r} has {counts[0]:,} documents of {counts[1]:,} tokens, its "
            f"manifest says {about['documents']:,} of {about['tokens']:,}; prepare the corpus again"
        )
    return store


def _reopen(path: Path, split: str | None, digest: str | None, limit: int | None) -> Corpus:
    """Reopen a pickled corpus (in a worker process, for example); a corpus that was replaced is an error."""
    corpus = Corpus.open(path, split)
    if corpus.manifest.get("digest") != digest:
        raise DataError(f"the corpus {path} was replaced while it was in use; start again")
    return corpus if limit is None else corpus.first(limit)


def write_manifest(folder: Path, content: dict[str, Any]) -> None:
    """Write the manifest: ``content``, the format, its version and a digest of the manifest."""
    created_with = f"contextwise {own_version()}"
    manifest = {"format": _FORMAT, "format_version": _VERSION, "created_with": created_with, **content}
    write_json(folder / MANIFEST, {**manifest, "digest": _digest(manifest)}, "the manifest")


def holds_corpus(path: Path) -> bool:
    """Whether a path is one that :meth:`Corpus.open` opens: a prepared folder, a Zarr array, ``.bin`` files."""
    known = (MANIFEST, *_ZARR_FILES, *_BIN_SPLITS.values())
    return path.suffix == ".bin" or any((path / name).exists() for name in known)


def is_corpus(folder: Path) -> bool:
    """Whether a folder has the manifest of a prepared corpus; the other files are not checked."""
    try:
        content = parse_json((folder / MANIFEST).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and content.get("format") == _FORMAT


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read a manifest; a :class:`DataError` if it is missing, damaged, changed or of another format version."""
    path = folder / MANIFEST
    manifest = read_json(path, "the corpus's manifest")
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        raise DataError(f"{path} is not the manifest of a corpus; give a folder that `contextwise prepare` wrote")
    if (version := manifest.get("format_version")) != _VERSION:
        raise DataError(
            f"{path} has format version {version!r}, but this Contextwise reads version {_VERSION}; "
            "prepare the corpus again with it"
        )
    digest = manifest.pop("digest", None)
    if digest != _digest(manifest):
        raise DataError(f"{path} was changed after the corpus was prepared; {_AGAIN}")
    return {**manifest, "digest": digest}


def _check_files(folder: Path, split: str, manifest: dict[str, Any], hashes: bool = False) -> None:
    """Check the size of each file of the split and the tokenizer and, with ``hashes``, its content."""
    files = {**manifest["splits"][split]["files"], **manifest["tokenizer"]["files"]}
    if (problem := difference(folder, files, hashes)) is not None:
        raise DataError(f"the corpus {folder} is damaged: {problem}; {_AGAIN}")


def _digest(manifest: dict[str, Any]) -> str:
    content = json.dumps(manifest, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(content.encode(errors="surrogatepass")).hexdigest()
