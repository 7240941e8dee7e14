"""Rows kept as soon as they are known: by several threads, by one process at a time, and after a kill."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from contextwise.base.errors import ConfigError, DataError
from contextwise.base.hashes import content_key
from contextwise.evaluation.kernel.work import Journal, Work


def by_number(row):
    return row["task"], row["number"]


def test_one_process_at_a_time_and_nothing_left_of_nothing(tmp_path):
    with Journal.opened(tmp_path / "new" / "x.jsonl") as journal:
        with (
            pytest.raises(ConfigError, match="another process is using the answers .*x.jsonl"),
            Journal.opened(journal.path),
        ):
            pass
        journal.add({"key": "a", "text": "half a pair: \ud800"})
    with Journal.opened(journal.path) as again:
        assert again.rows == {"a": {"key": "a", "text": "half a pair: \ud800"}}
    with Journal.opened(tmp_path / "other" / "x.jsonl"):
        pass
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("kept", [[], [{"key": "a"}]])
def test_work_that_fails_before_anything_is_kept_leaves_nothing(tmp_path, kept):
    with (
        pytest.raises(ConfigError, match="no"),
        Work.opened(tmp_path / "new" / "result", "key", {}) as work,
        work.journal("answers") as journal,
    ):
        journal.add(*kept)
        raise ConfigError("no")
    assert len([*tmp_path.rglob("*.json*")]) == (2 if kept else 0)
    assert (tmp_path / "new").exists() == bool(kept)


def test_several_rows_at_once_by_keys_of_ones_own(tmp_path):
    rows = [{"task": "a", "number": number, "text": f"line\n{number}"} for number in range(3)]
    with Journal.opened(tmp_path / "x", by_number) as journal:
        journal.add(*rows[:2])
        journal.add(rows[2])
        journal.add()
        assert list(journal.rows) == [("a", 0), ("a", 1), ("a", 2)]
    assert [json.loads(line) for line in (tmp_path / "x").read_text().splitlines()] == rows
    with Journal.opened(tmp_path / "x", by_number) as journal:
        journal.add({**rows[1], "text": "again"})  # the last one counts
    with Journal.opened(tmp_path / "x", by_number) as journal:
        assert [row["text"] for row in journal.rows.values()] == ["line\n0", "again", "line\n2"]


def test_a_row_that_was_not_written_to_its_end_is_written_anew(tmp_path):
    with Journal.opened(tmp_path / "x") as journal:
        journal.add({"key": "a"}, {"key": "b"})
    whole = (tmp_path / "x").read_bytes()
    for cut in range(1, len(whole)):
        (tmp_path / "x").write_bytes(whole[:cut])
        with Journal.opened(tmp_path / "x") as journal:
            assert len(journal.rows) == whole[:cut].count(b"\n")
            journal.add(*({"key": key} for key in "ab" if key not in journal.rows))
        assert (tmp_path / "x").read_bytes() == whole


@pytest.mark.parametrize("content", ["{}\n", "[]\n", "{\n", '{"key": "a"}\n\n'])
def test_what_is_damaged_is_named_and_kept(tmp_path, content):
    (tmp_path / "x").write_text(content)
    with (
        pytest.raises(DataError, match="x is damaged .*; fix that line, or remove the file"),
        Journal.opened(tmp_path / "x"),
    ):
        pass
    assert (tmp_path / "x").read_text() == content


def test_threads_may_add_at_once(tmp_path):
    with Journal.opened(tmp_path / "x") as journal, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: journal.add({"key": str(i), "text": "x" * i}), range(200)))
    with Journal.opened(tmp_path / "x") as journal:
        assert {int(key): len(row["text"]) for key, row in journal.rows.items()} == {i: i for i in range(200)}


def test_a_key_is_of_content_and_not_of_its_order():
    assert content_key(a=1, b=[2]) == content_key(b=[2], a=1) != content_key(a=1, b=[3])
