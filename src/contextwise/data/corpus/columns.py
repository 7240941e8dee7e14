"""Type inference for the metadata columns.

Records of a source may have different types in the same field. Each batch is written with the types of its own values
(:func:`column_of`); once all batches are written, :func:`settle` selects a type that fits all of them, or JSON text.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from contextwise.data.corpus.stores import OWN_COLUMNS

MOST_FIELDS = 256  # an object with more keys than that is a dictionary, not a record
_AS_JSON = {b"contextwise": b"json"}
_MISFIT = (pa.ArrowException, OverflowError, UnicodeEncodeError, ValueError, TypeError)


def rename_reserved(metadata: dict[str, Any]) -> dict[str, Any]:
    """Prefix the metadata names that the corpus reserves with ``source_``."""
    if metadata.keys().isdisjoint(OWN_COLUMNS):
        return metadata
    renamed = {}
    for name, value in metadata.items():
        if name in OWN_COLUMNS:
            name = f"source_{name}"
            while name in metadata:
                name = f"source_{name}"
        renamed[name] = value
    return renamed


def to_json(values: Iterable[Any]) -> pa.Array:
    """Convert each value to JSON text; null stays null. Types that JSON lacks (dates, for example) become strings."""
    texts = [
        None if value is None else json.dumps(value, ensure_ascii=False, default=str) for value in values
    ]
    return pa.array(texts, pa.string())


def column_of(name: str, values: Sequence[Any]) -> tuple[pa.Field, pa.Array]:
    """Build a column of the common type of ``values``, or of JSON text (marked in the field) if they have no common type."""
    try:
        column = pa.array(values)
        if _acceptable(column.type) and not any(_bool_as_number(value, column.type) for value in values):
            return pa.field(name, column.type), column
    except _MISFIT:
        pass
    return pa.field(name, pa.string(), metadata=_AS_JSON), to_json(values)


def columns_of(rows: Sequence[dict[str, Any]]) -> tuple[list[pa.Field], list[pa.Array]]:
    """Build all metadata columns of a batch, in the order in which their names appear."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = [column_of(name, [row.get(name) for row in rows]) for name in names]
    return [field for field, _ in columns], [column for _, column in columns]


def is_json(field: pa.Field) -> bool:
    """Whether :func:`column_of` stored the column as JSON text."""
    return bool(field.metadata) and field.metadata.get(b"contextwise") == b"json"


def _bool_as_number(value: Any, kind: pa.DataType) -> bool:
    """Whether Arrow would store true as 1.0, as it does for a bool among floats."""
    if isinstance(value, bool):
        return not pa.types.is_boolean(kind)
    if isinstance(value, dict) and pa.types.is_struct(kind):
        return any(_bool_as_number(inner, kind.field(name).type) for name, inner in value.items())
    if isinstance(value, list) and pa.types.is_list(kind):
        return any(_bool_as_number(inner, kind.value_type) for inner in value)
    return False


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
    inner = max((_widest(kind.field(i).type) for i in range(kind.num_fields)), default=0)
    return max(inner, kind.num_fields)


def settle(
    schemas: Iterable[pa.Schema], columns: Callable[[str], Iterable[pa.Array]]
) -> dict[str, pa.DataType | None]:
    """Determine the final type of every metadata column, in order of first appearance; None for JSON text.

    Args:
        schemas: schemas of all batches.
        columns: returns the stored arrays of a column by its name; they are used to test a type.
    """
    fields: dict[str, dict[pa.DataType, pa.Field]] = {}
    forced = set()
    for schema in schemas:
        for field in schema:
            if field.name in OWN_COLUMNS:
                continue
            fields.setdefault(field.name, {})[field.type] = field.remove_metadata()
            if is_json(field):
                forced.add(field.name)
    return {
        name: None if name in forced else _common_type(list(variants.values()), partial(columns, name))
        for name, variants in fields.items()
    }


def _common_type(fields: list[pa.Field], pieces: Callable[[], Iterable[pa.Array]]) -> pa.DataType | None:
    if len(fields) == 1:
        return fields[0].type
    try:
        schemas = [pa.schema([field]) for field in fields]
        common = pa.unify_schemas(schemas, promote_options="permissive").field(0).type
        if not _acceptable(common):
            return None
        for piece in pieces():
            convert(piece, common)
    except _MISFIT:
        return None
    return common


def convert(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert a column to another type (without a copy if it already has that type).

    Raises:
        pyarrow.ArrowInvalid: a value would change.
    """
    return column if column.type == kind else pa.array(column.to_pylist(), kind)


def final_column(batch: pa.RecordBatch, name: str, kind: pa.DataType | None) -> pa.Array:
    """Read a column of a stored batch as type ``kind``, or as JSON text if None; nulls if the batch lacks it."""
    index = batch.schema.get_field_index(name)
    if index < 0:
        return pa.nulls(batch.num_rows, kind or pa.string())
    column = batch.column(index)
    if kind is None:
        return column if is_json(batch.schema.field(index)) else to_json(column.to_pylist())
    return convert(column, kind)
