"""Write the Arrow files of a split in two steps: temporary parts as documents arrive, then the final files.

Records of a source may have different types in the same field. Each part is written with the types of its own metadata
(:func:`column_of`); once all are written, :func:`settle` selects a type that fits all parts, or JSON text. The final files
share a schema that Hugging Face datasets can read.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from contextwise.base.files import write_json
from contextwise.data.corpus.stores import OWN_COLUMNS, read_stream
from contextwise.data.documents import CountedDocument

SHARD_BYTES = 500_000_000
MOST_FIELDS = 256  # an object with more keys than that is a dictionary, not a record
_AS_JSON = {b"contextwise": b"json"}
_MISFIT = (pa.ArrowException, OverflowError, UnicodeEncodeError, ValueError, TypeError)

Types = dict[str, pa.DataType | None]  # types of the metadata columns, in order of first appearance; None for JSON text


class Encoded(NamedTuple):
    """A document with its token ids; ``lost`` if these do not decode to its text."""

    document: CountedDocument
    ids: np.ndarray
    lost: bool


class SplitWriter:
    """Writes the documents of a split to temporary Arrow files in ``folder``, and counts documents, tokens, bytes and words."""

    def __init__(self, folder: Path, dtype: np.dtype) -> None:
        folder.mkdir(parents=True)
        self.folder, self.dtype = folder, dtype
        self.documents = self.tokens = self.bytes = self.words = 0
        self.lost = {"documents": 0, "bytes": 0}
        self.parts: list[Path] = []
        self.schema: pa.Schema | None = None
        self.part = contextlib.ExitStack()  # the open part
        self._token_hash, self._length_hash, self._text_hash = (hashlib.sha256() for _ in range(3))

    def add(self, encoded: Sequence[Encoded]) -> None:
        """Append documents with their token ids."""
        documents, ids, lost = zip(*encoded, strict=True)
        lengths = np.array([len(tokens) for tokens in ids], dtype="<i8")
        tokens = np.concatenate(ids)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        columns = {
            "input_ids": pa.ListArray.from_arrays(pa.array(offsets), pa.array(tokens)),
            "n_bytes": pa.array([document.n_bytes for document in documents], pa.int64()),
            "n_words": pa.array([document.n_words for document in documents], pa.int64()),
            "text_lost": pa.array(lost, pa.bool_()),
            "document_hash": pa.array([document.digest.hex() for document in documents], pa.string()),
        }
        fields = [pa.field(name, column.type) for name, column in columns.items()]
        metadata = [rename_reserved(document.metadata) for document in documents]
        for name in dict.fromkeys(name for row in metadata for name in row):
            field, columns[name] = column_of(name, [row.get(name) for row in metadata])
            fields.append(field)
        schema = pa.schema(fields)
        if self.schema is None or not self.schema.equals(schema, check_metadata=True):
            self.part.close()
            self.parts.append(self.folder / f"part-{len(self.parts):05d}.arrow")
            self._writer = self.part.enter_context(pa.ipc.new_stream(str(self.parts[-1]), schema))
            self.schema = schema
        self._writer.write_batch(pa.RecordBatch.from_arrays([*columns.values()], schema=schema))
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

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Iterate over the batches written so far, memory-mapped."""
        for part in self.parts:
            yield from read_stream(part)


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


def column_of(name: str, values: Sequence[Any]) -> tuple[pa.Field, pa.Array]:
    """Build a column of the common type of ``values``, or of JSON text (marked in the field) if they have no common type."""
    try:
        column = pa.array(values)
        if _acceptable(column.type) and not any(_bool_as_number(value, column.type) for value in values):
            return pa.field(name, column.type), column
    except _MISFIT:
        pass
    return pa.field(name, pa.string(), metadata=_AS_JSON), _to_json(values)


def is_json(field: pa.Field) -> bool:
    """Whether :func:`column_of` stored the column as JSON text."""
    return bool(field.metadata) and field.metadata.get(b"contextwise") == b"json"


def _to_json(values: Iterable[Any]) -> pa.Array:
    """Convert each value to JSON text; null stays null. Types that JSON lacks (dates, for example) become strings."""
    texts = [None if value is None else json.dumps(value, ensure_ascii=False, default=str) for value in values]
    return pa.array(texts, pa.string())


def _bool_as_number(value: Any, kind: pa.DataType) -> bool:
    """Whether Arrow would store true as 1.0, as it does for a bool among floats."""
    if isinstance(value, bool):
        return not pa.types.is_boolean(kind)
    if isinstance(value, dict) and pa.types.is_struct(kind):
        return any(_bool_as_number(inner, kind.field(name).type) for name, inner in value.items())
    if isinstance(value, list) and pa.types.is_list(kind):
        return any(_bool_as_number(inner, kind.value_type) for inner in value)
    return False


@lru_cache
def _acceptable(kind: pa.DataType) -> bool:
    """Whether Hugging Face datasets can serialize the type, and no struct has more than ``MOST_FIELDS`` fields."""
    import datasets

    try:
        features = datasets.Features.from_arrow_schema(pa.schema([("column", kind)]))
        again = datasets.Features.from_dict(json.loads(json.dumps(features.to_dict())))
    except Exception:  # datasets raises errors of many classes here
        return False
    return again.arrow_schema.field("column").type == kind and _widest(kind) <= MOST_FIELDS


def _widest(kind: pa.DataType) -> int:
    return max([kind.num_fields, *(_widest(kind.field(i).type) for i in range(kind.num_fields))])


def settle(batches: Sequence[pa.RecordBatch]) -> Types:
    """Determine the final types of the metadata columns of all splits."""
    kinds: dict[str, dict[pa.DataType, None]] = {}
    columns: dict[str, list[pa.Array]] = {}
    as_json = set()
    for batch in batches:
        for field, column in zip(batch.schema, batch.columns, strict=True):  # a look-up by name reads all names
            if field.name not in OWN_COLUMNS:
                kinds.setdefault(field.name, {})[field.type] = None
                columns.setdefault(field.name, []).append(column)
                if is_json(field):
                    as_json.add(field.name)
    return {
        name: None if name in as_json else _common_type([*variants], columns[name]) for name, variants in kinds.items()
    }


def _common_type(kinds: list[pa.DataType], columns: Iterable[pa.Array]) -> pa.DataType | None:
    if len(kinds) == 1:
        return kinds[0]
    try:
        schemas = [pa.schema([("column", kind)]) for kind in kinds]
        common = pa.unify_schemas(schemas, promote_options="permissive").field(0).type
        if not _acceptable(common):
            return None
        for column in columns:
            _convert(column, common)
    except _MISFIT:
        return None
    return common


def _convert(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert a column to another type, without a copy if it has that type; a value that would change raises ArrowInvalid."""
    return column if column.type == kind else pa.array(column.to_pylist(), kind)


def final_columns(batch: pa.RecordBatch, types: Types) -> dict[str, pa.Array]:
    """The columns of a stored batch, those of ``types`` as that type, or as JSON text if None; nulls if the batch lacks one."""
    columns = {field.name: (field, column) for field, column in zip(batch.schema, batch.columns, strict=True)}
    final = {name: column for name, (_, column) in columns.items()}
    for name, kind in types.items():
        if name not in columns:
            final[name] = pa.nulls(batch.num_rows, kind or pa.string())
        elif kind is not None:
            final[name] = _convert(final[name], kind)
        elif not is_json(columns[name][0]):
            final[name] = _to_json(final[name].to_pylist())
    return final


def write_split(writer: SplitWriter, folder: Path, types: Types, fingerprint: str) -> list[Path]:
    """Write the split as a Hugging Face dataset folder and delete the parts; returns the files."""
    import datasets

    folder.mkdir()
    own = [field for field in writer.schema or () if field.name in OWN_COLUMNS]
    metadata = [pa.field(name, kind or pa.string()) for name, kind in types.items()]
    features = datasets.Features.from_arrow_schema(pa.schema([*own, *metadata]))
    schema = features.arrow_schema  # with the features in its metadata
    names: list[str] = []
    written = SHARD_BYTES
    with contextlib.ExitStack() as shard:
        for part in writer.parts:
            for batch in read_stream(part):
                if written >= SHARD_BYTES:
                    shard.close()
                    names.append(f"data-{len(names):05d}.arrow")
                    sink = shard.enter_context(pa.ipc.new_stream(str(folder / names[-1]), schema))
                    written = 0
                columns = final_columns(batch, types)
                final = pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
                sink.write_batch(final)
                written += final.nbytes
            part.unlink()
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
