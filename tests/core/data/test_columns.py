"""Types of metadata columns, inferred batch by batch."""

import json
from typing import Any

import datasets
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextwise.data.corpus.writing import column_of, final_columns, is_json, rename_reserved, settle


def settled(*batches: list[dict[str, Any]]) -> tuple[dict[str, pa.DataType | None], list[dict[str, Any]]]:
    """Final types, and the rows as they would be read back (JSON columns still as text)."""
    stored = []
    for rows in batches:
        names = dict.fromkeys(name for row in rows for name in row)
        columns = [column_of(name, [row.get(name) for row in rows]) for name in names]
        schema = pa.schema([field for field, _ in columns])
        stored.append(pa.RecordBatch.from_arrays([column for _, column in columns], schema=schema))
    types = settle(stored)
    rows = []
    for batch in stored:
        columns = final_columns(batch, types)
        rows += pa.RecordBatch.from_arrays([columns[name] for name in types], names=list(types)).to_pylist()
    return types, rows


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        (1, 2.5, pa.float64()),
        (None, "a", pa.string()),
        ([], [1], pa.list_(pa.int64())),
        ({"a": 1}, {"b": "x"}, pa.struct([("a", pa.int64()), ("b", pa.string())])),
        ({"a": None}, {"a": {"b": 1}}, pa.struct([("a", pa.struct([("b", pa.int64())]))])),
        ([{"a": 1}], [{"a": 2.5}], pa.list_(pa.struct([("a", pa.float64())]))),
    ],
)
def test_different_types_get_a_common_type(first: Any, second: Any, kind: pa.DataType) -> None:
    types, rows = settled([{"x": first}], [{"x": second}])
    assert types == {"x": kind}
    assert rows[0]["x"] == first or isinstance(first, dict)


@pytest.mark.parametrize(
    ("first", "second"),
    [(1, "a"), (True, 1), (1, [1]), ({"a": 1}, "a"), ("a", {"a": "x"}), (2**60 + 1, 0.5), (2**80, 1), ([1], [["a"]])],
)
@pytest.mark.parametrize("apart", [True, False])
def test_values_without_a_common_type_become_json_text(first: Any, second: Any, apart: bool) -> None:
    batches = [[{"x": first}], [{"x": second}, {"x": None}]] if apart else [[{"x": first}, {"x": second}, {"x": None}]]
    types, rows = settled(*batches)
    assert types == {"x": None}
    assert rows[2]["x"] is None
    assert [json.loads(row["x"]) for row in rows[:2]] == [first, second]


def test_a_column_missing_in_a_batch_is_null_there() -> None:
    types, rows = settled([{"a": 1}], [{"b": "x"}, {"a": 2}])
    assert list(types) == ["a", "b"]
    assert rows == [{"a": 1, "b": None}, {"a": None, "b": "x"}, {"a": 2, "b": None}]


def test_an_object_with_a_thousand_keys_is_json_text() -> None:
    field, column = column_of("scores", [{f"key {i}": i} for i in range(1000)])
    assert is_json(field)
    assert json.loads(column[7].as_py()) == {"key 7": 7}


def test_reserved_names_get_a_prefix() -> None:
    assert rename_reserved({"n_bytes": 1, "id": 2}) == {"source_n_bytes": 1, "id": 2}
    assert rename_reserved({"input_ids": 1, "source_input_ids": 2}) == {
        "source_source_input_ids": 1,
        "source_input_ids": 2,
    }


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text('a"\u2028é', max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "_type", ""]), inner, max_size=3)
    ),
    max_leaves=6,
)
rows_of_metadata = st.lists(
    st.fixed_dictionaries({"id": st.integers(0, 9)}, optional={"x": values, "y": values, "_type": values}),
    min_size=1,
    max_size=4,
)


def equal(got: Any, wanted: Any) -> bool:
    """Equal but for keys that are missing on one side and null on the other, and for 1 == 1.0."""
    if isinstance(wanted, dict):
        return isinstance(got, dict) and all(equal(got.get(key), wanted.get(key)) for key in got.keys() | wanted.keys())
    if isinstance(wanted, list):
        return isinstance(got, list) and len(got) == len(wanted) and all(map(equal, got, wanted))
    return got == wanted and isinstance(got, bool) == isinstance(wanted, bool)


@given(st.lists(rows_of_metadata, min_size=1, max_size=3))
def test_any_json_survives_and_datasets_accepts_the_columns(batches: list[list[dict[str, Any]]]) -> None:
    types, rows = settled(*batches)
    for row, wanted in zip(rows, [row for batch in batches for row in batch], strict=True):
        for name, kind in types.items():
            got = json.loads(row[name]) if kind is None and row[name] is not None else row[name]
            assert equal(got, wanted.get(name)), (got, wanted.get(name), kind)
    schema = pa.schema([(name, kind or pa.string()) for name, kind in types.items()])
    assert datasets.Features.from_arrow_schema(schema).arrow_schema.types == schema.types
