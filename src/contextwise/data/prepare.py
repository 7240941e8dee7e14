"""Preparation of a corpus: read, split and tokenize documents, and write them to disk.

1. The sources are opened; each is a repeatable iterator of documents (``sources/``).
2. ``train:N`` learns its tokenizer in a first pass over the documents of the training split.
3. A thread reads documents into batches, with their sizes and digests (``documents.py``); the tokenizer encodes a batch on all
   cores (``tokenizers.py``); each document is assigned to a split by its digest or its source (``splits.py``).
4. The final types of the metadata columns are determined (``corpus/columns.py``); the splits are written as Hugging Face
   datasets (``corpus/writing.py``).
5. The tokenizer and the manifest are written, everything is synced to disk, and the folder is renamed to its final name
   (:func:`contextwise.base.files.atomic_directory`).
"""

import contextlib
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa

from contextwise.base.errors import ConfigError, DataError
from contextwise.base.files import atomic_directory, exclusive, write_json
from contextwise.base.progress import console, progress_bar
from contextwise.data.corpus import Corpus
from contextwise.data.corpus.columns import rename_reserved, settle
from contextwise.data.corpus.manifest import is_corpus, read_manifest, write_manifest
from contextwise.data.corpus.writing import SplitWriter, file_entry, write_split
from contextwise.data.documents import (
    BadRecord,
    Batch,
    Document,
    Skipped,
    in_batches,
    read_ahead,
    read_documents,
    text_digest,
)
from contextwise.data.sources import Source, open_source
from contextwise.data.splits import SPLITS, SplitFractions, read_splits
from contextwise.data.tokenizers import CorpusTokenizer, learn_bpe, load_tokenizer, vocabulary_to_learn


@dataclass(frozen=True)
class Reading:
    """Documents to read from the sources; every pass over :meth:`documents` yields the same documents.

    Attributes:
        names: the split of each source; None if documents are split by shares.
    """

    sources: list[Source]
    names: list[str] | None
    text_field: str
    fractions: SplitFractions
    limit: int | None
    skip_bad: bool

    @property
    def splits(self) -> list[str]:
        """Names of the possible splits."""
        return list(SPLITS) if self.names is None else list(dict.fromkeys(self.names))

    @property
    def source_names(self) -> str:
        """Names of the sources, for messages."""
        return ", ".join(source.name for source in self.sources)

    def documents(self, skipped: Skipped, split: str | None = None) -> Iterator[Document]:
        """Iterate over all documents in the order of the sources, or those of a named split; ``skipped`` counts the others."""
        records = chain.from_iterable(source.records(self.text_field) for source in self._of(split))
        return read_documents(records, self.skip_bad, self.limit, skipped)

    def batches(self, skipped: Skipped) -> Iterator[tuple[str | None, Batch]]:
        """Iterate over all documents in batches, each with its split if the sources name splits."""
        for split in [None] if self.names is None else self.splits:
            for batch in in_batches(self.documents(skipped, split)):
                yield split, batch

    def training_documents(self) -> Iterator[Document]:
        """Iterate over the documents of the training split, on which a tokenizer may be trained."""
        if self.names is not None:
            yield from self.documents(Skipped(), "train")
            return
        for document in self.documents(Skipped()):
            if self.fractions.split_of(text_digest(document.text.encode())) == "train":
                yield document

    def where(self, split: str, digest: bytes) -> str:
        """Location of the document with this digest in the sources of a split."""
        for source in self._of(split):
            for number, record in enumerate(source.records(self.text_field), start=1):
                if not isinstance(record, BadRecord) and text_digest(record.text.encode()) == digest:
                    return f"record {number:,} of {source.name}"
        return "a source that has changed meanwhile"

    def _of(self, split: str | None) -> list[Source]:
        if self.names is None or split is None:
            return self.sources
        return [source for source, name in zip(self.sources, self.names, strict=True) if name == split]

    @property
    def done(self) -> float:
        """Share of the sources that the current pass has read, from 0 to 1."""
        return sum(source.done for source in self.sources) / len(self.sources)

    def rewind(self) -> None:
        """Set :attr:`done` to 0 before another pass."""
        for source in self.sources:
            source.done = 0.0


def prepare_corpus(
    sources: str | Path | Sequence[str | Path],
    tokenizer: str | Path,
    out: str | Path,
    *,
    text_field: str = "text",
    limit: int | None = None,
    validation: float | None = None,
    test: float | None = None,
    end_of_text: str | None = None,
    skip_bad: bool = False,
    overwrite: bool = False,
    reuse: bool = False,
) -> Corpus:
    """Tokenize texts and write them as a corpus folder, atomically.

    The same sources and options produce the same files, byte for byte. A document's split depends on its text alone. If another
    process prepares the same folder, the call waits until it is finished.

    Args:
        sources: as for :func:`contextwise.data.open_source`: ``stdlib``, files, folders, patterns, Hub names. Each may
            name its split, as in ``train=a.jsonl``; then all must.
        tokenizer: a folder, a name on the Hub, ``train:N`` (a byte-level BPE of N tokens, learned on the
            training split), or ``bytes``.
        out: folder to write.
        text_field: field or column that holds the text; the others are kept as metadata.
        limit: maximum number of documents (of each split, if the sources name splits).
        validation, test: shares of the documents, from 0 to below 1; 0.05 and 0 if None.
        end_of_text: the token that ends a document; the tokenizer's own if None.
        skip_bad: skip records without text instead of raising an error at the first.
        overwrite: replace the corpus at ``out``.
        reuse: open an existing corpus at ``out``, whatever its sources, instead of raising an error.

    Returns:
        The corpus, opened at the training split (or, if it has no documents, at the first split that has).

    Raises:
        ConfigError: an option is out of its range.
        DataError: a source, the tokenizer or the output folder is invalid, or a text is in two of the named splits.
            No files remain.
    """
    given = [str(sources)] if isinstance(sources, str | Path) else [str(source) for source in sources]
    out = Path(out).expanduser()
    if out.is_symlink():
        out = out.resolve()
    if not given:
        raise ConfigError("no source is given; name a file, a folder, a dataset or stdlib")
    if limit is not None and limit < 1:
        raise ConfigError(f"limit is {limit}, but must be at least 1 document")
    given, names = read_splits(given)
    fractions = SplitFractions.given(validation, test, names)
    vocabulary = vocabulary_to_learn(str(tokenizer))
    if vocabulary is not None and names is not None and "train" not in names:
        raise ConfigError(
            "train:N learns the tokenizer on the split train, but no source is named so; "
            "name one train=..., or give a tokenizer that exists"
        )
    if vocabulary is not None and end_of_text is not None:
        raise ConfigError("end_of_text names a token of a tokenizer that exists; leave it out with train:N")
    if reuse and is_corpus(out):
        return _open(out)
    _check_output(out, overwrite, given)
    reading = Reading(
        [open_source(name, limit) for name in given], names, text_field, fractions, limit, skip_bad
    )
    with exclusive(out, "the corpus", wait=True):
        if reuse and is_corpus(out):  # another process has prepared the corpus in the meantime
            return _open(out)
        _check_output(out, overwrite, given)
        if vocabulary is None:
            chosen = load_tokenizer(str(tokenizer), end_of_text)
        else:
            chosen = _learn(reading, vocabulary)
        with atomic_directory(out, "the corpus", replace=overwrite, held=True) as folder:
            write_manifest(folder, _write_corpus(reading, chosen, folder))
    return _open(out)


def _open(out: Path) -> Corpus:
    """Open the corpus at its training split, or at the first split that has documents."""
    splits = list(read_manifest(out)["splits"])
    return Corpus.open(out, "train" if "train" in splits else splits[0])


def _check_output(out: Path, overwrite: bool, sources: Sequence[str]) -> None:
    """Check that the output folder is empty or a corpus that may be replaced.

    Raises:
        DataError: ``out`` exists and may not be replaced, or is inside a source folder or contains a source.
    """
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        if not overwrite:
            raise DataError(
                f"{out} already exists; choose another folder, or set overwrite to replace a corpus"
            )
        if not is_corpus(out):
            raise DataError(
                f"{out} is not a prepared corpus, so it is not overwritten; choose another folder"
            )
    target = out.resolve()
    for source in sources:
        path = Path(source.removeprefix("alpaca:")).expanduser().resolve()
        if path.is_dir() and (path in (target, *target.parents) or target in path.parents):
            raise DataError(f"{out} and the source {source} lie one in the other; choose a folder beside it")
        if overwrite and target in path.parents:
            raise DataError(
                f"the source {source} lies in {out}, which overwriting would remove; choose another folder"
            )


def _learn(reading: Reading, vocab_size: int) -> CorpusTokenizer:
    """Train the tokenizer of ``train:N`` on the documents of the training split."""
    used = 0

    def texts() -> Iterator[str]:
        nonlocal used
        shown = 0.0
        for document in read_ahead(reading.training_documents(), depth=64):
            used += 1
            yield document.text
            if (moved := 100 * reading.done - shown) >= 1:
                advance(moved, note=f"{used:,} documents")
                shown += moved

    reading.rewind()
    with progress_bar("learn the tokenizer", 100, "%") as advance:
        learned = learn_bpe(texts(), vocab_size)
    if not used:
        raise DataError(
            f"no document with text for the training split was found in {reading.source_names}; "
            "there is nothing to learn a tokenizer from"
        )
    if learned.vocab_size < vocab_size:
        console.print(
            f"note: the text is enough for {learned.vocab_size:,} tokens, not for train:{vocab_size}"
        )
    return learned


def _write_corpus(reading: Reading, tokenizer: CorpusTokenizer, folder: Path) -> dict[str, Any]:
    """Write all files of the corpus except the manifest; return the manifest's content."""
    skipped = Skipped()
    parts = folder / "parts"
    with contextlib.ExitStack() as stack:
        writers = {
            name: stack.enter_context(SplitWriter(parts / name, tokenizer.dtype)) for name in reading.splits
        }
        _tokenize(reading, tokenizer, writers, skipped)
    if not sum(writer.documents for writer in writers.values()):
        raise DataError(
            f"no document with text was found in {reading.source_names} ({skipped.empty:,} records were empty, "
            f"{skipped.bad:,} were bad); there is nothing to prepare"
        )
    writers = {name: writer for name, writer in writers.items() if writer.documents}
    _report_empty_splits(reading, writers)
    about_tokenizer = tokenizer.save(folder / "tokenizer")
    types = settle(
        (schema for writer in writers.values() for schema in writer.schemas),
        lambda name: _stored_column(writers, name),
    )
    splits = {}
    for name, writer in writers.items():
        fingerprint = writer.fingerprint(about_tokenizer["sha256"])
        splits[name] = {
            "documents": writer.documents,
            "tokens": writer.tokens,
            "bytes": writer.bytes,
            "words": writer.words,
            "fingerprint": fingerprint,
            "files": _entries(folder, write_split(writer, folder / name, types, fingerprint)),
        }
    shutil.rmtree(parts)
    write_json(folder / "dataset_dict.json", {"splits": list(splits)})
    tokenizer_files = sorted(path for path in (folder / "tokenizer").rglob("*") if path.is_file())
    return {
        "sources": _about_sources(reading),
        "text_field": reading.text_field,
        "limit": reading.limit,
        "split_shares": {
            name: getattr(reading.fractions, name) if reading.names is None else None
            for name in ("validation", "test")
        },
        "tokenizer": {**about_tokenizer, "files": _entries(folder, tokenizer_files)},
        "dtype": tokenizer.dtype.name,
        "splits": splits,
        "skipped": {"bad": skipped.bad, "empty": skipped.empty},
        "columns": list(types),
        "columns_as_json": [name for name, kind in types.items() if kind is None],
    }


def _entries(folder: Path, files: Sequence[Path]) -> dict[str, dict[str, Any]]:
    return {path.relative_to(folder).as_posix(): file_entry(path) for path in files}


def _about_sources(reading: Reading) -> list[dict[str, Any]]:
    about = [source.description() for source in reading.sources]
    if reading.names is None:
        return about
    return [{**entry, "split": name} for entry, name in zip(about, reading.names, strict=True)]


def _tokenize(
    reading: Reading, tokenizer: CorpusTokenizer, writers: dict[str, SplitWriter], skipped: Skipped
) -> None:
    """Read, tokenize and write every document."""
    reading.rewind()
    started, shown, documents, size = time.perf_counter(), 0.0, 0, 0
    split_of: dict[bytes, str] = {}  # only for named splits; about 120 bytes per document
    with progress_bar("tokenize", 100, "%") as advance:
        for split, batch in read_ahead(reading.batches(skipped)):
            if split is not None:
                _keep_apart(reading, split_of, split, batch)
            splits = [split or reading.fractions.split_of(digest) for digest in batch.digests]
            _write_batch(batch, tokenizer.encode(batch.texts), splits, writers, skipped)
            documents, size = documents + len(batch), size + sum(batch.n_bytes)
            speed = size / 1e6 / (time.perf_counter() - started)
            done = 100 * reading.done
            advance(done - shown, note=f"{documents:,} documents, {speed:.1f} MB/s")
            shown = done
    if skipped.first_bad:
        where, why = skipped.first_bad
        console.print(f"left out {skipped.bad:,} bad records; the first: {where}: {why}", markup=False)


def _keep_apart(reading: Reading, split_of: dict[bytes, str], split: str, batch: Batch) -> None:
    """Record the split of each text in ``split_of``, and check that no text is in two splits.

    Raises:
        DataError: a text is already in another split; the message names both locations.
    """
    for text, digest in zip(batch.texts, batch.digests, strict=True):
        other = split_of.setdefault(digest, split)
        if other != split:
            shown = " ".join(text.split())
            shown = shown if len(shown) <= 60 else shown[:57] + "..."
            raise DataError(
                f"the same text is in two splits, {other} ({reading.where(other, digest)}) and {split} "
                f"({reading.where(split, digest)}): {shown!r}; take it out of one of them"
            )


def _write_batch(
    batch: Batch, ids: list[Any], splits: list[str], writers: dict[str, SplitWriter], skipped: Skipped
) -> None:
    chosen: dict[str, list[int]] = {}
    for index, name in enumerate(splits):
        if len(ids[index]):
            chosen.setdefault(name, []).append(index)
        else:  # the tokenizer's normalizer removed all characters of the text
            skipped.empty += 1
    for split, rows in chosen.items():
        writers[split].add(
            ids=[ids[row] for row in rows],
            hashes=[batch.digests[row].hex() for row in rows],
            n_bytes=[batch.n_bytes[row] for row in rows],
            n_words=[batch.n_words[row] for row in rows],
            metadata=[rename_reserved(batch.metadata[row]) for row in rows],
        )


def _stored_column(writers: dict[str, SplitWriter], name: str) -> Iterator[pa.Array]:
    """Iterate over the stored arrays of a metadata column."""
    for writer in writers.values():
        for batch in writer.batches():
            if name in batch.schema.names:
                yield batch.column(name)


def _report_empty_splits(reading: Reading, writers: dict[str, SplitWriter]) -> None:
    """Warn about splits without documents.

    Raises:
        DataError: a split that a source names has no documents.
    """
    for name in reading.splits:
        if name in writers:
            continue
        if reading.names is not None:
            raise DataError(
                f"the sources of the split {name!r} hold no document with text; leave that split out"
            )
        if name == "train" or getattr(reading.fractions, name):
            console.print(
                f"warning: the text is so small that no document fell to the split {name!r}; it is left out"
                + ("" if name == "train" else f"; a larger {name} share makes that less likely"),
                markup=False,
            )
