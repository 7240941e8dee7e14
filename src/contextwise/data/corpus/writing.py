"""Write the Arrow files of a split in two steps: a temporary part as documents arrive, then the final files.

The part has the metadata of each document as JSON. Once all documents are known, a metadata column whose values are all of one
plain type has that type; every other one is JSON text.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from contextwise.base.files import write_json
from contextwise.data.corpus.stores import OWN_COLUMNS, read_stream
from contextwise.data.documents import CountedDocument

SHARD_BYTES = 500_000_000


class _Long(int):
    """The kind of integers of 64 bits that float64 may not hold."""


_COLUMN = {
    frozenset({bool}): pa.bool_(),
    frozenset({int}): pa.int64(),
    frozenset({_Long}): pa.int64(),
    frozenset({int, _Long}): pa.int64(),
    frozenset({float}): pa.float64(),
    frozenset({int, float}): pa.float64(),
    frozenset({str}): pa.string(),
    frozenset(): pa.string(),  # of nulls
}
_JSON = json.JSONEncoder(ensure_ascii=False, default=str)
_SIXTY_FOUR_BITS, _FLOATS = range(-(2**63), 2**63), range(-(2**53), 2**53 + 1)

Types = dict[str, pa.DataType | None]  # types of the metadata columns, in order of first appearance; None for JSON text


class Encoded(NamedTuple):
    """A document with its token ids; ``lost`` if these do not decode to its text."""

    document: CountedDocument
    ids: np.ndarray
    lost: bool


class SplitWriter:
    """Writes the documents of a split to a temporary Arrow file, and counts documents, tokens, bytes and words."""

    def __init__(self, file: Path, dtype: np.dtype) -> None:
        self.file, self.dtype = file, dtype
        self.documents = self.tokens = self.bytes = self.words = 0
        self.lost = {"documents": 0, "bytes": 0}
        self.kinds: dict[str, set[type]] = {}  # of the values of each metadata column
        types = [pa.list_(pa.from_numpy_dtype(dtype)), pa.int64(), pa.int64(), pa.bool_(), pa.string(), pa.string()]
        self.schema = pa.schema(list(zip((*OWN_COLUMNS, "metadata"), types, strict=True)))
        self.part = pa.ipc.new_stream(str(file), self.schema)
        self._token_hash, self._length_hash, self._text_hash = (hashlib.sha256() for _ in range(3))

    def add(self, encoded: Sequence[Encoded]) -> None:
        """Append documents with their token ids."""
        documents, ids, lost = zip(*encoded, strict=True)
        lengths = np.array([len(tokens) for tokens in ids], dtype="<i8")
        tokens = np.concatenate(ids)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        metadata = [rename_reserved(document.metadata) for document in documents]
        for row in metadata:
            for name, value in row.items():
                kind: type = type(value)
                if kind is int and value not in _FLOATS:
                    kind = _Long if value in _SIXTY_FOUR_BITS else object
                self.kinds.setdefault(name, set()).add(kind)
        columns = [
            pa.ListArray.from_arrays(pa.array(offsets), pa.array(tokens)),
            pa.array([document.n_bytes for document in documents], pa.int64()),
            pa.array([document.n_words for document in documents], pa.int64()),
            pa.array(lost, pa.bool_()),
            pa.array([document.digest.hex() for document in documents], pa.string()),
            _as_json(metadata),
        ]
        self.part.write_batch(pa.RecordBatch.from_arrays(columns, schema=self.schema))
        self._token_hash.update(tokens.astype(tokens.dtype.newbyteorder("<"), copy=False).data)
        self._length_hash.update(lengths.data)
        for document in documents:  # tokens may have lost something of it, and figures per byte count its bytes
            self._text_hash.update(document.digest)
        self.documents += len(documents)
        self.tokens += int(lengths.sum())
        self.bytes += sum(document.n_bytes for document in documents)
        self.words += sum(document.n_words for document in documents)
        self.lost["documents"] += sum(lost)
        self.lost["bytes"] += sum(document.n_bytes for document, out in zip(documents, lost, strict=True) if out)

    def fingerprint(self, tokenizer_sha256: str, end_of_text: int) -> str:
        """SHA-256 of every token, every document's length and text, the token type, the tokenizer and its end-of-text."""
        total = hashlib.sha256(f"{self.dtype.name} {tokenizer_sha256} {end_of_text}".encode())
        for part in (self._token_hash, self._length_hash, self._text_hash):
            total.update(part.digest())
        return total.hexdigest()


def rename_reserved(metadata: dict[str, Any]) -> dict[str, Any]:
    """Prefix the metadata names that the corpus reserves with ``source_``; NUL, at which Arrow ends a name, becomes ``_``."""
    renamed: dict[str, Any] = {}
    for name, value in metadata.items():
        if name in OWN_COLUMNS or "\0" in name:
            name = name.replace("\0", "_") if "\0" in name else f"source_{name}"
            while name in metadata or name in renamed:
                name = f"source_{name}"
        renamed[name] = value
    return renamed


def column_types(writers: Iterable[SplitWriter]) -> Types:
    """The types of the metadata columns of all splits."""
    kinds: dict[str, set[type]] = {}
    for writer in writers:
        for name, some in writer.kinds.items():
            kinds.setdefault(name, set()).update(some)
    return {name: _COLUMN.get(frozenset(some - {type(None)})) for name, some in kinds.items()}


def _as_json(values: Iterable[Any]) -> pa.Array:
    """Each value as JSON text; null stays null. Types that JSON lacks (dates, for example) become strings."""
    return pa.array([None if value is None else _JSON.encode(value) for value in values], pa.string())


def final_columns(part: Path, types: Types) -> Iterator[dict[str, pa.Array]]:
    """The columns of each batch of a part, the metadata in those of ``types``; null where a document lacks one."""
    for batch in read_stream(part):
        rows = [json.loads(text) for text in batch.column("metadata").to_pylist()]
        columns = {name: batch.column(name) for name in OWN_COLUMNS}
        for name, kind in types.items():
            values = [row.get(name) for row in rows]
            columns[name] = _as_json(values) if kind is None else pa.array(values, kind)
        yield columns


def write_split(writer: SplitWriter, folder: Path, types: Types, fingerprint: str) -> list[Path]:
    """Write the split as a Hugging Face dataset folder and delete the part; returns the files."""
    import datasets

    folder.mkdir()
    own = [writer.schema.field(name) for name in OWN_COLUMNS]
    metadata = [pa.field(name, kind or pa.string()) for name, kind in types.items()]
    features = datasets.Features.from_arrow_schema(pa.schema([*own, *metadata]))
    schema = features.arrow_schema  # with the features in its metadata
    names: list[str] = []
    written = SHARD_BYTES
    with contextlib.ExitStack() as shard:
        for columns in final_columns(writer.file, types):
            if written >= SHARD_BYTES:
                shard.close()
                names.append(f"data-{len(names):05d}.arrow")
                sink = shard.enter_context(pa.ipc.new_stream(str(folder / names[-1]), schema))
                written = 0
            final = pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
            sink.write_batch(final)
            written += final.nbytes
    writer.file.unlink()
    write_json(folder / "dataset_info.json", {"features": features.to_dict()})
    state: dict[str, Any] = {  # as Dataset.save_to_disk writes it
        "_data_files": [{"filename": name} for name in names],
        "_fingerprint": fingerprint[:16],
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": folder.name,
    }
    write_json(folder / "state.json", state)
    return [folder / name for name in (*names, "dataset_info.json", "state.json")]
