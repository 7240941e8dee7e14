"""JSON objects from files: the forms that are read, and errors that name file and line."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextwise.base.errors import DataError
from contextwise.data.input_files import read_objects

BOM = b"\xef\xbb\xbf"
ROWS = [{"text": "one\u2028two\x85"}, {"text": "déjà 🙂", "n": [1, {"a": None}]}]


def lines(rows: list[dict[str, object]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


@pytest.mark.parametrize(
    ("content", "locations"),
    [
        (lines(ROWS), [":1", ":2"]),
        (lines(ROWS).rstrip(), [":1", ":2"]),
        (BOM + lines(ROWS).replace(b"\n", b"\r\n"), [":1", ":2"]),
        (b"\n  \n" + lines(ROWS[:1]) + b"\r\n" + lines(ROWS[1:]), [":3", ":5"]),
        (lines(ROWS[:1]) + BOM + lines(ROWS[1:]), [":1", ":2"]),
        (BOM + b"\n" + "\n".join(json.dumps(r, ensure_ascii=False) for r in ROWS).encode(), [":2", ":3"]),
        (json.dumps(ROWS).encode(), [" entry 1", " entry 2"]),
        (BOM + b"\n " + json.dumps(ROWS, indent=2).encode(), [" entry 1", " entry 2"]),
    ],
)
def test_forms(tmp_path: Path, content: bytes, locations: list[str]) -> None:
    plain, packed = tmp_path / "x.jsonl", tmp_path / "x.json.gz"
    plain.write_bytes(content)
    packed.write_bytes(gzip.compress(content))
    for path in (plain, packed):
        assert list(read_objects(path, "rows")) == [(f"{path}{p}", r) for p, r in zip(locations, ROWS, strict=True)]


@given(st.lists(st.dictionaries(st.text(), st.text() | st.integers() | st.none(), max_size=3), max_size=4))
def test_written_objects_are_read_back(tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, object]]) -> None:
    folder = tmp_path_factory.mktemp("rows")
    for name, content in (("lines", lines(rows)), ("list", json.dumps(rows).encode())):
        (folder / name).write_bytes(content)
        assert [row for _, row in read_objects(folder / name, "rows")] == rows


@pytest.mark.parametrize("content", [b"", b"\n \r\n", BOM, b"[]", b" [\n]\n"])
def test_empty_files(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    assert list(read_objects(tmp_path / "x", "rows")) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": 1}\n{', r"x:2 is not JSON \(Expecting property name.*\); give rows of mine$"),
        (b'{"a": 1}\n[1]', "x:2 is not a JSON object; give rows of mine$"),
        (b"7", "x:1 is not a JSON object; give rows of mine$"),
        (b'{"a": 1}\n{"a": "\xe9"}', "x:2 is not UTF-8 text; give rows of mine$"),
        (b"[" * 100_000, r"x is not JSON \("),
        (b'{"a": ' + b"[" * 100_000, r"x:1 is not JSON \("),
        (b'[{"a": 1}, 2]', "x entry 2 is not a JSON object; give rows of mine$"),
        (b'[{"a": 1},', r"x is not JSON \("),
        (b'[{"a": "\xe9"}]', "x is not UTF-8 text; give rows of mine$"),
        (b'{"a": "\\ud83d\\ude42"}\n{"a": "\\uD83d"}', "x:2 holds half of a surrogate pair, which is no text"),
        (b'[{}, {"a": {"\\udc00": 1}}]', "x entry 2 holds half of a surrogate pair"),
    ],
)
def test_errors_name_the_location(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(DataError, match=message) as error:
        list(read_objects(tmp_path / "x", "rows of mine"))
    assert "\n" not in str(error.value) and len(str(error.value)) < 300 + len(str(tmp_path))


def test_rows_before_an_invalid_line_are_yielded(tmp_path: Path) -> None:
    (tmp_path / "x").write_text('{"a": 1}\n{')
    rows = read_objects(tmp_path / "x", "rows")
    assert next(rows) == (f"{tmp_path / 'x'}:1", {"a": 1})
    with pytest.raises(DataError, match="x:2 is not JSON"):
        next(rows)
