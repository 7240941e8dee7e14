"""Preparation of a corpus: read, split and tokenize documents, and write them to disk.

1. The sources are opened; each is a repeatable iterator of documents (``sources/``).
2. ``train:N`` learns its tokenizer in a first pass over the documents of the training split.
3. A thread reads documents into batches, with their sizes and digests; each document is assigned to a split by its digest or
   its source (``documents.py``); the tokenizer encodes a batch on all cores (``tokenizers.py``).
4. The final types of the metadata columns are determined; the splits are written as Hugging Face datasets
   (``corpus/writing.py``).
5. The tokenizer and the manifest are written, everything is synced to disk, and the folder is renamed to its final name
   (:func:`contextwise.base.files.atomic_directory`).
"""

import contextlib
import shutil
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from contextwise.base.config import plain_number
from contextwise.base.errors import ConfigError, DataError, Problem
from contextwise.base.estimates import FEWEST_DOCUMENTS, counted, listed
from contextwise.base.files import atomic_directory, check_nothing_else, exclusive, output_folder, read_json, write_json
from contextwise.base.hashes import content_key, listed_files
from contextwise.base.progress import console, progress_bar, say_once
from contextwise.data.corpus import Corpus
from contextwise.data.corpus.corpus import MANIFEST, is_corpus, lost_note, read_manifest, write_manifest
from contextwise.data.corpus.writing import Encoded, SplitWriter, column_types, write_split
from contextwise.data.documents import (
    ENOUGH_HELD_OUT,
    CountedDocument,
    Reading,
    Skipped,
    SplitFractions,
    map_ahead,
    read_ahead,
    read_splits,
)
from contextwise.data.near_copies import NearCopies, beginning
from contextwise.data.sources import open_source, source_digest, source_path
from contextwise.data.tokenizers import (
    CorpusTokenizer,
    learn_bpe,
    load_tokenizer,
    tokenizer_digest,
    vocabulary_to_learn,
)

EXAMPLES = 5  # near-copies that the manifest shows


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
    deduplicate: float | None = None,
    overwrite: bool = False,
) -> Corpus:
    """Tokenize texts and write them as a corpus folder, atomically.

    The same sources and options produce the same files, byte for byte; if ``out`` was prepared from them, it is opened. A
    document's split depends on its text alone. If another process prepares the same folder, the call waits until it is
    finished.

    Args:
        sources: as for :func:`contextwise.data.sources.open_source`: ``stdlib``, files, folders, patterns, Hub names. Each may
            name its split, as in ``train=a.jsonl``; then all must. A source with parts, given alone, has splits of its own.
        tokenizer: a folder, a name on the Hub, ``train:N`` (a byte-level BPE of N tokens, learned on the
            training split), or ``bytes``.
        out: folder to write.
        text_field: field or column that holds the text; the others are kept as metadata.
        limit: maximum number of documents (of each split, if the sources name splits).
        validation, test: shares of the documents, from 0 to below 1. If None, 0 for ``test``; for ``validation`` 0.05, or what
            holds out 30 documents of a small corpus (a fifth of one with fewer than 150).
        end_of_text: the token that ends a document; the tokenizer's own if None.
        skip_bad: skip records without text instead of raising an error at the first.
        deduplicate: leave out documents whose 5-grams of tokens have at least this Jaccard similarity to those of an earlier
            document, above 0 to 1 (:class:`~contextwise.data.near_copies.NearCopies`).
        overwrite: replace the corpus at ``out``.

    Returns:
        The corpus, opened at the training split (or, if it has no documents, at the first split that has).

    Raises:
        ConfigError: an option is out of its range.
        DataError: a source, the tokenizer or the output folder is invalid, or a text is in two of the named splits; ``out``
            holds something else; a source was changed while it was read. No files remain.
    """
    if not isinstance(sources, str | Path | Iterable):
        raise ConfigError(Problem("but must be a file, a folder, a dataset or stdlib, or several", "sources", sources))
    given = [str(sources)] if isinstance(sources, str | Path) else [str(source) for source in sources]
    limit, validation = plain_number("limit", limit), plain_number("validation", validation)
    test, deduplicate = plain_number("test", test), plain_number("deduplicate", deduplicate)
    out = output_folder(Path(out))
    if not given:
        raise ConfigError("no source is given; name a file, a folder, a dataset or stdlib")
    if pipes := [name for name in given if source_path(name).is_fifo()]:
        raise DataError(f"{pipes[0]} is a pipe, which can be read once, but texts are read twice; write them to a file")
    if limit is not None and limit < 1:
        raise ConfigError(f"limit is {limit}, but must be at least 1 document")
    if deduplicate is not None and not 0 < deduplicate <= 1:
        raise ConfigError(f"deduplicate is {deduplicate:g}, but must be a similarity above 0, at most 1, such as 0.8")
    given, names = read_splits(given)
    fractions = SplitFractions.given(validation, test, names)
    vocabulary = vocabulary_to_learn(str(tokenizer))
    if vocabulary is not None:
        tokenizer = f"train:{vocabulary}"  # of train:4k too
    if vocabulary is not None and names is not None and "train" not in names:
        raise ConfigError(
            "train:N learns the tokenizer on the split train, but no source is named so; "
            "name one train=..., or give a tokenizer that exists"
        )
    if vocabulary is not None and end_of_text is not None:
        raise ConfigError("end_of_text names a token of a tokenizer that exists; leave it out with train:N")
    reading = Reading([open_source(name, limit) for name in given], names, text_field, fractions, limit, skip_bad)
    options = (text_field, limit, validation, test, end_of_text, skip_bad, deduplicate)
    if overwrite or not is_corpus(out):
        _check_output(out, overwrite, given)
    identity = _identity(given, names, tokenizer, options)
    if not overwrite and _prepared_from(out, identity):
        return _open(out)
    with exclusive(out, "the corpus", wait=True):
        if not overwrite and _prepared_from(out, identity):  # by another process, in the meantime
            return _open(out)
        _check_output(out, overwrite, given)
        if validation is None and names is None:
            reading = reading.holding_out_enough()
        if vocabulary is None:
            chosen = load_tokenizer(str(tokenizer), end_of_text)
        else:
            chosen = _learn(reading, vocabulary)
        with atomic_directory(out, "the corpus", replace=overwrite, held=True) as folder:
            content = _write_corpus(reading, chosen, folder, deduplicate)
            if _identity(given, names, tokenizer, options) != identity:
                raise DataError(
                    f"{', '.join(given)} or the tokenizer was changed while it was read; run the same command again"
                )
            write_manifest(folder, {**content, "prepared_from": identity})
            _check_output(out, overwrite, given)  # something may have appeared there in the meantime
    return _open(out)


def _identity(
    sources: Sequence[str], names: Sequence[str] | None, tokenizer: str | Path, options: Sequence[Any]
) -> str:
    """Hash of the content of the sources and the tokenizer, and of the options: the same one gives the same corpus."""
    digests = [source_digest(source) for source in sources]
    return content_key(sources=digests, splits=names, tokenizer=tokenizer_digest(tokenizer), options=options)


def _prepared_from(out: Path, identity: str) -> bool:
    return is_corpus(out) and read_manifest(out).get("prepared_from") == identity


def _open(out: Path) -> Corpus:
    """Open the corpus at its training split, or at the first split that has documents."""
    splits = list(read_manifest(out)["splits"])
    return Corpus.open(out) if "train" in splits else Corpus.open(out, splits[0])


def _check_output(out: Path, overwrite: bool, sources: Sequence[str]) -> None:
    """Check that the output folder is empty or a corpus that may be replaced, apart from the sources."""
    if out.exists() and not out.is_dir():
        raise DataError(f"{out} is a file; give the name of a folder for the corpus")
    if out.exists() and any(out.iterdir()):
        if not overwrite:
            other = ", prepared from other texts or with other options" if is_corpus(out) else ""
            raise DataError(
                f"{out} already exists{other}; choose another folder, or set `overwrite` to replace a corpus"
            )
        if not is_corpus(out):
            raise DataError(f"{out} is not a prepared corpus, so it is not overwritten; choose another folder")
        splits = read_json(out / MANIFEST, "the corpus's manifest").get("splits", {})
        check_nothing_else(out, {MANIFEST, "dataset_dict.json", "tokenizer", *splits})
    target = out.resolve()
    for source in sources:
        path = source_path(source).resolve()
        if path.is_dir() and (path in (target, *target.parents) or target in path.parents):
            raise DataError(f"{out} and the source {source} lie one in the other; choose a folder beside it")
        if overwrite and target in path.parents:
            raise DataError(f"the source {source} lies in {out}, which overwriting would remove; choose another folder")


def _learn(reading: Reading, vocab_size: int) -> CorpusTokenizer:
    """Train the tokenizer of ``train:N`` on the documents of the training split."""
    used = 0

    def texts() -> Iterator[str]:
        nonlocal used
        for document in read_ahead(reading.training_documents(), depth=64):
            used += 1
            yield document.text
            advance(done=100 * reading.done, note=f"{used:,} documents")

    with progress_bar("learn the tokenizer", 100, "%") as advance:
        learned = learn_bpe(texts(), vocab_size)
    if not used:
        names = ", ".join(source.name for source in reading.sources)
        raise DataError(
            f"no document with text for the training split was found in {names}; "
            "there is nothing to learn a tokenizer from"
        )
    if learned.vocab_size < vocab_size:
        console.print(f"note: the text is enough for {learned.vocab_size:,} tokens, not for train:{vocab_size}")
    return learned


def _write_corpus(
    reading: Reading, tokenizer: CorpusTokenizer, folder: Path, deduplicate: float | None
) -> dict[str, Any]:
    """Write all files of the corpus except the manifest; return the manifest's content."""
    skipped = Skipped()
    parts = folder / "parts"
    parts.mkdir()
    with contextlib.ExitStack() as stack:
        writers = {name: SplitWriter(parts / f"{name}.arrow", tokenizer.dtype) for name in reading.splits}
        for writer in writers.values():
            stack.enter_context(writer.part)
        near_copies = None if deduplicate is None else NearCopies(deduplicate, folder)
        _tokenize(reading, tokenizer, writers, skipped, near_copies)
    writers = {name: writer for name, writer in writers.items() if writer.documents}
    if not writers:
        names = ", ".join(source.name for source in reading.sources)
        raise DataError(
            f"no document with text was found in {names} ({skipped.empty:,} empty records, {skipped.bad:,} bad ones); "
            "there is nothing to prepare"
        )
    _report_small_splits(reading, writers)
    about_tokenizer = tokenizer.save(folder / "tokenizer")
    types = column_types(writers.values())
    splits = {}
    for name, writer in writers.items():
        fingerprint = writer.fingerprint(about_tokenizer["sha256"], about_tokenizer["end_of_text"])
        splits[name] = {
            "documents": writer.documents,
            "tokens": writer.tokens,
            "bytes": writer.bytes,
            "words": writer.words,
            "lost": writer.lost,
            "fingerprint": fingerprint,
            "files": listed_files(folder, write_split(writer, folder / name, types, fingerprint)),
        }
    if note := lost_note(list(splits.values())):
        console.print(f"warning: {note}", markup=False)
    shutil.rmtree(parts)
    write_json(folder / "dataset_dict.json", {"splits": list(splits)})
    sources = [source.description() for source in reading.sources]
    shares: dict[str, float | None] = {"validation": reading.fractions.validation, "test": reading.fractions.test}
    if reading.names is not None:
        sources = [{**about, "split": name} for about, name in zip(sources, reading.names, strict=True)]
        shares = dict.fromkeys(shares)
    found = {"similarity": deduplicate, "left_out": skipped.near_copies, "examples": skipped.examples}
    deduplicated = {} if deduplicate is None else {"deduplicated": found}
    return {
        "sources": sources,
        "text_field": reading.text_field,
        "limit": reading.limit,
        "split_shares": shares,
        "tokenizer": {**about_tokenizer, "files": listed_files(folder, (folder / "tokenizer").rglob("*"))},
        "dtype": tokenizer.dtype.name,
        "splits": splits,
        "skipped": {"bad": skipped.bad, "empty": skipped.empty},
        **deduplicated,
        "columns": list(types),
        "columns_as_json": [name for name, kind in types.items() if kind is None],
    }


def _tokenize(
    reading: Reading,
    tokenizer: CorpusTokenizer,
    writers: dict[str, SplitWriter],
    skipped: Skipped,
    near_copies: NearCopies | None,
) -> None:
    """Read, tokenize and write every document but near-copies; a text in two of the named splits is an error."""
    started, documents, size = time.perf_counter(), 0, 0
    split_of: dict[bytes, str] = {}  # only for named splits; about 120 bytes per document
    kept: list[str] = []  # the beginnings of the documents that near-copies are looked for of

    def encoded(item: tuple[str | None, list[CountedDocument]]) -> tuple[str | None, list[Encoded]]:
        split, batch = item
        texts = [document.text for document in batch]
        ids = tokenizer.encode(texts)
        return split, list(map(Encoded, batch, ids, (~tokenizer.gives_back(texts, ids)).tolist()))

    with progress_bar("tokenize", 100, "%") as advance:
        # Two batches at once: while the ids of one are copied and written on one core, the others tokenize.
        for split, batch in map_ahead(encoded, read_ahead(reading.batches(skipped))):
            chosen: dict[str, list[Encoded]] = defaultdict(list)
            for each in batch:
                document, ids = each.document, each.ids
                if split is not None and (other := split_of.setdefault(document.digest, split)) != split:
                    raise DataError(
                        f"the same text is in two splits, {other} ({reading.where(other, document.digest)}) and {split} "
                        f"({reading.where(split, document.digest)}): {beginning(document.text)!r}; take it out of one of them"
                    )
                if not len(ids):  # the tokenizer's normalizer removed all characters of the text
                    skipped.empty += 1
                    continue
                original = None if near_copies is None else near_copies.original(ids)
                if original is not None:
                    skipped.near_copies += 1
                    if len(skipped.examples) < EXAMPLES:
                        of, similarity = original
                        texts = {"left_out": beginning(document.text), "kept": kept[of]}
                        skipped.examples.append(texts | {"similarity": round(similarity, 3)})
                    continue
                if near_copies is not None:
                    kept.append(beginning(document.text))
                chosen[split or reading.fractions.split_of(document.digest)].append(each)
            for name, added in chosen.items():
                writers[name].add(added)
            documents, size = documents + len(batch), size + sum(each.document.n_bytes for each in batch)
            speed = size / 1e6 / max(1e-9, time.perf_counter() - started)
            advance(done=100 * reading.done, note=f"{documents:,} documents, {speed:.1f} MB/s")
    if skipped.first_bad:
        where, why = skipped.first_bad
        console.print(f"left out {skipped.bad:,} bad records; the first: {where}: {why}", markup=False)


def _report_small_splits(reading: Reading, writers: dict[str, SplitWriter]) -> None:
    """Warn about splits without documents, or with too few for a verdict; an empty one that a source names is an error."""
    for name in reading.splits:
        if name in writers:
            documents = writers[name].documents
            if name != "train" and documents < FEWEST_DOCUMENTS:
                fix = f"; --{name} with a larger share holds out more" if reading.names is None else ""
                named = zip(reading.sources, reading.names or [name] * len(reading.sources), strict=True)
                of = listed([source.name for source, split in named if split == name][:3])
                say_once(  # each model of a comparison prepares the same text with its tokenizer
                    f"warning: the split {name!r} of {of} holds {counted(documents, 'document')}; a comparison on "
                    f"it gives no verdict, which takes {FEWEST_DOCUMENTS} or more, and {ENOUGH_HELD_OUT} for a narrow "
                    f"interval{fix}"
                )
            continue
        if reading.names is not None:
            raise DataError(f"the sources of the split {name!r} hold no document with text; leave that split out")
        if name == "train" or getattr(reading.fractions, name):
            fix = "" if name == "train" else f"; --{name} with a larger share, or {name}=FILE, holds documents out"
            why = "the text is so small that no document fell"
            if sum(each.documents for each in writers.values()) == 1:
                why = "the text is one document, which did not fall"
                fix = f"; {name}=FILE gives it another text, and of paragraphs:FILE each paragraph is a document"
            console.print(f"warning: {why} to the split {name!r}; the corpus has no such split{fix}", markup=False)
