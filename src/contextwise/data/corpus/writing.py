"""Write the Arrow files of a split in two steps: temporary parts as documents arrive, then the final files.

Each part has the types of its own metadata; the final files share a schema that Hugging Face datasets can read.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from contextwise.base.files import sha256_file, write_json
from contextwise.data.corpus.columns import columns_of, final_column
from contextwise.data.corpus.stores import read_stream

SHARD_BYTES = 500_000_000


class SplitWriter:
    """Context manager that writes the documents of a split to temporary Arrow files in ``folder``.

    Attributes:
        documents, tokens, bytes, words: counts so far.
    """

    def __init__(self, folder: Path, dtype: np.dtype) -> None:
        folder.mkdir(parents=True)
        self.folder, self.dtype = folder, dtype
        self.documents = self.tokens = self.bytes = self.words = 0
        self.parts: list[Path] = []
        self.schemas: list[pa.Schema] = []
        self._writer: pa.RecordBatchStreamWriter | None = None
        self._token_hash, self._length_hash = hashlib.sha256(), hashlib.sha256()

    def __enter__(self) -> "SplitWriter":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the current part."""
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.close()

    def add(
        self,
        ids: list[np.ndarray],
        hashes: list[str],
        n_bytes: list[int],
        n_words: list[int],
        metadata: list[dict[str, Any]],
    ) -> None:
        """Append documents."""
        lengths = np.array([len(document) for document in ids], dtype="<i8")
        tokens = np.concatenate(ids)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        fields, columns = columns_of(metadata)
        own = {
            "input_ids": pa.ListArray.from_arrays(pa.array(offsets), pa.array(tokens)),
            "n_bytes": pa.array(n_bytes, pa.int64()),
            "n_words": pa.array(n_words, pa.int64()),
            "document_hash": pa.array(hashes, pa.string()),
        }
        schema = pa.schema([*(pa.field(name, column.type) for name, column in own.items()), *fields])
        self._write(pa.RecordBatch.from_arrays([*own.values(), *columns], schema=schema))
        self._token_hash.update(tokens.astype(tokens.dtype.newbyteorder("<"), copy=False).data)
        self._length_hash.update(lengths.data)
        self.documents += len(ids)
        self.tokens += int(lengths.sum())
        self.bytes += sum(n_bytes)
        self.words += sum(n_words)

    def _write(self, batch: pa.RecordBatch) -> None:
        if self._writer is None or not self.schemas[-1].equals(batch.schema, check_metadata=True):
            self.close()
            self.parts.append(self.folder / f"part-{len(self.parts):05d}.arrow")
            self.schemas.append(batch.schema)
            self._writer = pa.ipc.new_stream(str(self.parts[-1]), batch.schema)
        self._writer.write_batch(batch)

    def fingerprint(self, tokenizer_sha256: str) -> str:
        """SHA-256 of every token, every document's length, the token type and the tokenizer."""
        total = hashlib.sha256(f"{self.dtype.name} {tokenizer_sha256}".encode())
        total.update(self._token_hash.digest())
        total.update(self._length_hash.digest())
        return total.hexdigest()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Iterate over the batches written so far, memory-mapped."""
        for part in self.parts:
            yield from read_stream(part)


def write_split(
    writer: SplitWriter, folder: Path, types: dict[str, pa.DataType | None], fingerprint: str
) -> list[Path]:
    """Write the split as a Hugging Face dataset folder and delete the parts; returns the files.

    Args:
        types: types of the metadata columns, from :func:`contextwise.data.corpus.columns.settle`.
    """
    import datasets

    folder.mkdir()
    schema = _final_schema(writer.schemas[0], types)
    names: list[str] = []
    sink: pa.RecordBatchStreamWriter | None = None
    written = 0
    try:
        for part in writer.parts:
            for batch in read_stream(part):
                if sink is None or written >= SHARD_BYTES:
                    if sink is not None:
                        sink.close()
                    names.append(f"data-{len(names):05d}.arrow")
                    sink, written = pa.ipc.new_stream(str(folder / names[-1]), schema), 0
                final = _final_batch(batch, schema, types)
                sink.write_batch(final)
                written += final.nbytes
            part.unlink()
    finally:
        if sink is not None:
            sink.close()
    write_json(
        folder / "dataset_info.json", {"features": datasets.Features.from_arrow_schema(schema).to_dict()}
    )
    write_json(folder / "state.json", _dataset_state(names, folder.name, fingerprint))
    return [folder / name for name in (*names, "dataset_info.json", "state.json")]


def _final_schema(stored: pa.Schema, types: dict[str, pa.DataType | None]) -> pa.Schema:
    import datasets

    own = [pa.field(field.name, field.type) for field in stored if field.name not in types]
    metadata = [pa.field(name, kind or pa.string()) for name, kind in types.items()]
    schema = pa.schema([*own, *metadata])
    return datasets.Features.from_arrow_schema(schema).arrow_schema  # with the features in its metadata


def _final_batch(
    batch: pa.RecordBatch, schema: pa.Schema, types: dict[str, pa.DataType | None]
) -> pa.RecordBatch:
    columns = [
        final_column(batch, name, types[name])
        if name in types
        else batch.column(batch.schema.get_field_index(name))
        for name in schema.names
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _dataset_state(names: list[str], split: str, fingerprint: str) -> dict[str, Any]:
    """Content of ``state.json`` as ``Dataset.save_to_disk`` writes it."""
    return {
        "_data_files": [{"filename": name} for name in names],
        "_fingerprint": fingerprint[:16],
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": split,
    }


def file_entry(path: Path) -> dict[str, Any]:
    """Manifest entry of a file: its hash and size."""
    return {"sha256": sha256_file(path), "bytes": path.stat().st_size}
