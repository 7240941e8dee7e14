"""Types of metadata columns."""

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextwise.data.corpus.writing import Encoded, SplitWriter, column_types, rename_reserved, write_split
from contextwise.data.documents import CountedDocument


def written(folder: Path, *batches: list[dict[str, Any]]) -> tuple[dict[str, str | None], list[dict[str, Any]]]:
    """The type of each column, None for JSON text, and the rows that datasets reads, JSON text decoded."""
    writer = SplitWriter(folder / "part.arrow", np.dtype(np.uint16))
    with writer.part:
        for rows in batches:
            documents = [CountedDocument("a", row, bytes(16), 1, 1) for row in rows]
            writer.add([Encoded(document, np.array([97], np.uint16), False) for document in documents])
    types = column_types([writer])
    write_split(writer, folder / "split", types, "0" * 64)
    read = datasets.load_from_disk(str(folder / "split"))
    assert all(read.features[name] == datasets.Value(str(kind or "string")) for name, kind in types.items())
    rows = [{name: row[name] for name in types} for row in read.with_format("arrow")[:].to_pylist()]
    for row in rows:
        row |= {name: json.loads(row[name]) for name, kind in types.items() if kind is None and row[name] is not None}
    return {name: None if kind is None else str(kind) for name, kind in types.items()}, rows


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        (1, -(2**63), "int64"),
        (1.0, 2.5, "double"),
        (1, 2.5, "double"),
        (2**60 + 1, 1, "int64"),
        (True, False, "bool"),
        (None, "a", "string"),
        (None, None, "string"),
        *((first, second, None) for first, second in [(1, "a"), (True, 1), (2**63, 1), (2**60 + 1, 0.5)]),
        *(
            (first, second, None)
            for first, second in [([], [1]), ([1], [["a"]]), ({"a": 1}, "a"), ({"a": None}, {"b": 2})]
        ),
    ],
)
@pytest.mark.parametrize("apart", [True, False])
def test_values_of_one_type_have_a_column_of_it(
    first: Any, second: Any, kind: str | None, apart: bool, tmp_path: Path
) -> None:
    batches = [[{"x": first}], [{"x": second}, {"x": None}]] if apart else [[{"x": first}, {"x": second}, {"x": None}]]
    types, rows = written(tmp_path, *batches)
    assert types == {"x": kind}
    assert rows == [{"x": first}, {"x": second}, {"x": None}]


def test_a_column_missing_in_a_batch_is_null_there(tmp_path: Path) -> None:
    types, rows = written(tmp_path, [{"a": 1}], [{"b": "x"}, {"a": 2}])
    assert list(types) == ["a", "b"]
    assert rows == [{"a": 1, "b": None}, {"a": None, "b": "x"}, {"a": 2, "b": None}]


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


@given(st.lists(rows_of_metadata, min_size=1, max_size=3))
def test_any_json_survives(tmp_path_factory: pytest.TempPathFactory, batches: list[list[dict[str, Any]]]) -> None:
    types, rows = written(tmp_path_factory.mktemp("split"), *batches)
    wanted = [{name: row.get(name) for name in types} for batch in batches for row in batch]
    assert json.dumps(rows) == json.dumps(wanted)  # 1, 1.0 and true differ
