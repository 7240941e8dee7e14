"""A NumPy file written block by block: what NumPy itself reads, or nothing."""

import numpy as np
import pytest

from contextwise.base.errors import DataError
from contextwise.base.vectors import write_vectors

ROWS = np.arange(21, dtype=np.float32).reshape(7, 3)


def test_numpy_reads_what_came_in_blocks(tmp_path):
    out = tmp_path / "new" / "v.npy"
    assert write_vectors(out, iter([ROWS[:2], ROWS[2:6].astype(np.float64), ROWS[6:]]), 7) == (7, 3)
    for mode in (None, "r"):
        found = np.load(out, mmap_mode=mode, allow_pickle=False)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, ROWS)


@pytest.mark.parametrize("rows", [6, 8])
def test_another_number_of_rows_is_refused(tmp_path, rows):
    with pytest.raises(DataError, match=f"the input had {rows} texts .*, and 7 now"):
        write_vectors(tmp_path / "v.npy", [ROWS], rows)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="the vectors cannot be written to .*v.npy"):
        write_vectors(tmp_path / "file" / "v.npy", [ROWS], 7)


def test_a_full_disk(tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    (tmp_path / "v.npy").write_text("before")
    monkeypatch.setattr("contextwise.base.vectors.os.fsync", full)
    with pytest.raises(DataError, match="no space left while writing the vectors"):
        write_vectors(tmp_path / "v.npy", [ROWS], 7)
    assert [file.read_text() for file in tmp_path.iterdir()] == ["before"]
