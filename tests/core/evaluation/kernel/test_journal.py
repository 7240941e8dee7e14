"""Rows kept as soon as they are known, in batches that a stopped measurement resumes, and after a kill."""

import json

import pytest

from contextwise.base.errors import ConfigError, DataError, Interrupted
from contextwise.base.hashes import content_key
from contextwise.evaluation.kernel.work import Work


@pytest.fixture
def work(tmp_path):
    return Work(tmp_path / "kept", "", {})


@pytest.fixture
def file(work):
    return work.path / "x.jsonl"


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


def test_several_rows_at_once(work, file):
    rows = [{"key": number, "text": f"line\n{number}, half a pair: \ud800"} for number in range(3)]
    with work.journal("x") as journal:
        journal.add(*rows[:2])
        journal.add(rows[2])
        journal.add()
        assert list(journal.rows) == [0, 1, 2]
    assert [json.loads(line) for line in file.read_text().splitlines()] == rows
    with work.journal("x") as journal:
        journal.add({"key": 1, "text": "again"})  # the last one counts
    with work.journal("x") as journal:
        assert [row["text"] for row in journal.rows.values()] == [rows[0]["text"], "again", rows[2]["text"]]


def test_a_row_that_was_not_written_to_its_end_is_written_anew(work, file):
    with work.journal("x") as journal:
        journal.add({"key": "a"}, {"key": "b"})
    whole = file.read_bytes()
    for cut in range(1, len(whole)):
        file.write_bytes(whole[:cut])
        with work.journal("x") as journal:
            assert len(journal.rows) == whole[:cut].count(b"\n")
            journal.add(*({"key": key} for key in "ab" if key not in journal.rows))
        assert file.read_bytes() == whole


@pytest.mark.parametrize("content", ["{}\n", "[]\n", "{\n", '{"key": "a"}\n\n'])
def test_what_is_damaged_is_named_and_kept(work, file, content):
    with work.journal("x"):
        file.write_text(content)
    with pytest.raises(DataError, match="x.jsonl is damaged .*; fix that line, or remove the file"), work.journal("x"):
        pass
    assert file.read_text() == content


def test_a_batch_of_which_a_row_is_missing_is_made_whole(work, file, stop_at):
    made = []

    def make(indices):
        made.append(indices)
        return ({"square": index**2} for index in indices)

    def squares():
        return work.rows("x", 5, [range(3, 5), range(3)], make, "squares")

    stop_at(2)
    with pytest.raises(Interrupted, match="stopped after 2 of 5 x"):
        squares()
    stop_at(0)
    file.write_bytes(file.read_bytes()[:-1])  # killed while the last row was written
    assert [row["square"] for row in squares()] == [0, 1, 4, 9, 16]
    assert made == [[3, 4], [3, 4], [0, 1, 2]]
    assert squares() and len(made) == 3


def test_a_key_is_of_content_and_not_of_its_order():
    assert content_key(a=1, b=[2]) == content_key(b=[2], a=1) != content_key(a=1, b=[3])
