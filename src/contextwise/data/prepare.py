"""Text in, corpus out.

1. The sources are opened; each is an iterator of documents that can be started again (``sources.py``).
2. ``train:N`` learns its tokenizer in a first pass over the documents of the training split.
3. A thread reads documents into batches, with their sizes and digests (``documents.py``); the tokenizer takes
   a batch on all cores (``tokenizers.py``); each document goes to the split that its digest decides
   (``writing.py``).
4. The metadata columns get their final types (``columns.py``); the splits become Hugging Face datasets.
5. The tokenizer and the manifest are written, everything is synced to disk, and the folder gets its name
   (``output.py``).
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
from contextwise.base.files import write_json
from contextwise.base.progress import console, progress_bar
from contextwise.data.columns import rename_reserved, settle
from contextwise.data.corpus import Corpus
from contextwise.data.documents import (
    SPLITS,
    Batch,
    Document,
    Skipped,
    SplitFractions,
    in_batches,
    read_ahead,
    read_documents,
    text_digest,
)
from contextwise.data.manifest import write_manifest
from contextwise.data.output import check_output, output_folder
from contextwise.data.sources import Source, open_source
from contextwise.data.tokenizers import CorpusTokenizer, learn_bpe, load_tokenizer, vocabulary_to_learn
from contextwise.data.writing import SplitWriter, file_entry, write_split


@dataclass(frozen=True)
class Reading:
    """Which documents are taken from which sources; every pass over :meth:`documents` gives the same ones."""

    sources: list[Source]
    text_field: str
    fractions: SplitFractions
    limit: int | None
    skip_bad: bool

    def documents(self, skipped: Skipped) -> Iterator[Document]:
        """All documents, in the order of the sources; ``skipped`` counts what is left out."""
        records = chain.from_iterable(source.records(self.text_field) for source in self.sources)
        return read_documents(records, self.skip_bad, self.limit, skipped)

    @property
    def done(self) -> float:
        """How much of the sources the current pass has read, from 0 to 1."""
        return sum(source.done for source in self.sources) / len(self.sources)

    def rewind(self) -> None:
        """Before another pass: nothing is read yet."""
        for source in self.sources:
            source.done = 0.0


def prepare_corpus(
    sources: str | Path | Sequence[str | Path],
    tokenizer: str | Path,
    out: str | Path,
    *,
    text_field: str = "text",
    limit: int | None = None,
    validation: float = 0.05,
    test: float = 0.0,
    end_of_text: str | None = None,
    skip_bad: bool = False,
    overwrite: bool = False,
) -> Corpus:
    """Tokenize texts into a corpus folder: complete, or not there at all.

    The same sources and options give the same files, byte for byte. Which split a document goes to depends on
    its text alone.

    Args:
        sources: as for :func:`contextwise.data.open_source`: ``stdlib``, files, folders, patterns, Hub names.
        tokenizer: a folder, a name on the Hub, ``train:N`` (a byte-level BPE of N tokens, learned on the
            training split), or ``bytes``.
        out: folder to write.
        text_field: field or column that holds the text; the others are kept as metadata.
        limit: take at most so many documents.
        validation, test: shares of the documents, from 0 to below 1.
        end_of_text: the token that ends a document; the tokenizer's own if None.
        skip_bad: leave out records that hold no text instead of stopping at the first.
        overwrite: replace the corpus at ``out``.

    Returns:
        The corpus, opened at the training split (at the first split that has documents, if that has none).

    Raises:
        ConfigError: an option is out of its range.
        DataError: a source, the tokenizer or the output folder is at fault. Nothing is left behind.
    """
    given = [sources] if isinstance(sources, str | Path) else list(sources)
    out = Path(out).expanduser()
    if out.is_symlink():
        out = out.resolve()
    if not given:
        raise ConfigError("no source is given; name a file, a folder, a dataset or stdlib")
    if limit is not None and limit < 1:
        raise ConfigError(f"--limit is {limit}, but must be at least 1 document")
    fractions = SplitFractions(validation, test)
    vocabulary = vocabulary_to_learn(str(tokenizer))
    if vocabulary is not None and end_of_text is not None:
        raise ConfigError("--end-of-text names a token of a tokenizer that exists; train:N makes its own")
    check_output(out, overwrite, given)
    reading = Reading([open_source(name, limit) for name in given], text_field, fractions, limit, skip_bad)
    if vocabulary is None:
        chosen = load_tokenizer(str(tokenizer), end_of_text)
    else:
        chosen = _learn(reading, vocabulary)
    with output_folder(out) as folder:
        manifest = _write_corpus(reading, chosen, folder)
        write_manifest(folder, manifest)
    return Corpus.open(out, next(iter(manifest["splits"])))


def _learn(reading: Reading, vocab_size: int) -> CorpusTokenizer:
    """The tokenizer of ``train:N``, from the documents of the training split."""
    used = 0

    def texts() -> Iterator[str]:
        nonlocal used
        shown = 0.0
        for document in read_ahead(reading.documents(Skipped()), depth=64):
            if reading.fractions.split_of(text_digest(document.text.encode())) == "train":
                used += 1
                yield document.text
            if (moved := 100 * reading.done - shown) >= 1:
                advance(moved, note=f"{used:,} documents")
                shown += moved

    reading.rewind()
    with progress_bar("learn the tokenizer", 100, "%") as advance:
        learned = learn_bpe(texts(), vocab_size)
    if not used:
        raise DataError(_nothing_in(reading) + "; there is nothing to learn a tokenizer from")
    if learned.vocab_size < vocab_size:
        console.print(
            f"note: the text is enough for {learned.vocab_size:,} tokens, not for train:{vocab_size}"
        )
    return learned


def _nothing_in(reading: Reading) -> str:
    names = ", ".join(source.name for source in reading.sources)
    return f"no document with text for the training split was found in {names}"


def _write_corpus(reading: Reading, tokenizer: CorpusTokenizer, folder: Path) -> dict[str, Any]:
    """Everything but the manifest, which is returned."""
    skipped = Skipped()
    parts = folder / "parts"
    with contextlib.ExitStack() as stack:
        writers = {name: stack.enter_context(SplitWriter(parts / name, tokenizer.dtype)) for name in SPLITS}
        _tokenize(reading, tokenizer, writers, skipped)
    if not sum(writer.documents for writer in writers.values()):
        names = ", ".join(source.name for source in reading.sources)
        raise DataError(
            f"no document with text was found in {names} ({_count(skipped)}); there is nothing to prepare"
        )
    writers = {name: writer for name, writer in writers.items() if writer.documents}
    _warn_of_empty_splits(reading, writers)
    about_tokenizer = tokenizer.save(folder / "tokenizer")
    types = settle(
        (schema for writer in writers.values() for schema in writer.schemas),
        lambda name: _stored_column(writers, name),
    )
    splits = {}
    for name, writer in writers.items():
        fingerprint = writer.fingerprint(about_tokenizer["sha256"])
        files = write_split(writer, folder / name, types, fingerprint)
        splits[name] = {
            "documents": writer.documents,
            "tokens": writer.tokens,
            "bytes": writer.bytes,
            "words": writer.words,
            "fingerprint": fingerprint,
            "files": {path.relative_to(folder).as_posix(): file_entry(path) for path in files},
        }
    shutil.rmtree(parts)
    write_json(folder / "dataset_dict.json", {"splits": list(splits)})
    tokenizer_files = sorted(path for path in (folder / "tokenizer").rglob("*") if path.is_file())
    return {
        "sources": [source.description() for source in reading.sources],
        "text_field": reading.text_field,
        "limit": reading.limit,
        "split_shares": {"validation": reading.fractions.validation, "test": reading.fractions.test},
        "tokenizer": {
            **about_tokenizer,
            "files": {path.relative_to(folder).as_posix(): file_entry(path) for path in tokenizer_files},
        },
        "dtype": tokenizer.dtype.name,
        "splits": splits,
        "skipped": {"bad": skipped.bad, "empty": skipped.empty},
        "columns": list(types),
        "columns_as_json": [name for name, kind in types.items() if kind is None],
    }


def _tokenize(
    reading: Reading, tokenizer: CorpusTokenizer, writers: dict[str, SplitWriter], skipped: Skipped
) -> None:
    """Read, tokenize and write every document."""
    reading.rewind()
    started, shown, documents, size = time.perf_counter(), 0.0, 0, 0
    with progress_bar("tokenize", 100, "%") as advance:
        for batch in read_ahead(in_batches(reading.documents(skipped))):
            _write_batch(batch, tokenizer.encode(batch.texts), reading.fractions, writers, skipped)
            documents, size = documents + len(batch), size + sum(batch.n_bytes)
            speed = size / 1e6 / (time.perf_counter() - started)
            done = 100 * reading.done
            advance(done - shown, note=f"{documents:,} documents, {speed:.1f} MB/s")
            shown = done
    if skipped.first_bad:
        where, why = skipped.first_bad
        console.print(f"left out {skipped.bad:,} bad records; the first: {where}: {why}", markup=False)


def _write_batch(
    batch: Batch, ids: list[Any], fractions: SplitFractions, writers: dict[str, SplitWriter], skipped: Skipped
) -> None:
    chosen: dict[str, list[int]] = {}
    for index, digest in enumerate(batch.digests):
        if len(ids[index]):
            chosen.setdefault(fractions.split_of(digest), []).append(index)
        else:  # a text of characters that the tokenizer's normalizer drops
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
    """Every stored piece of a metadata column."""
    for writer in writers.values():
        for batch in writer.batches():
            place = batch.schema.get_field_index(name)
            if place >= 0:
                yield batch.column(place)


def _warn_of_empty_splits(reading: Reading, writers: dict[str, SplitWriter]) -> None:
    shares = {"validation": reading.fractions.validation, "test": reading.fractions.test, "train": 1.0}
    for name, share in shares.items():
        if share and name not in writers:
            console.print(
                f"warning: the text is so small that no document fell to the split {name!r}; it is left out"
                + ("" if name == "train" else f"; a larger --{name} makes that less likely"),
                markup=False,
            )


def _count(skipped: Skipped) -> str:
    return f"{skipped.empty:,} records were empty, {skipped.bad:,} were bad"
