"""Reading a corpus: no copies, pickling for workers, and detection of changed files."""

import json
import pickle
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest

from contextwise.base.errors import DataError
from contextwise.data import Corpus, prepare_corpus
from contextwise.data import documents as documents_module
from contextwise.data.corpus import writing as writing_module
from small import write_rows


@pytest.fixture
def scattered(stories: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    """The stories in many record batches and several files."""
    monkeypatch.setattr(documents_module, "BATCH_DOCUMENTS", 9)
    monkeypatch.setattr(writing_module, "SHARD_BYTES", 6000)
    return prepare_corpus(stories, "bytes", tmp_path / "scattered", validation=0.2, test=0.1)


def test_batches_and_files_make_no_difference(scattered: Corpus, corpus: Corpus) -> None:
    assert len(list((scattered.path / "train").glob("*.arrow"))) > 3
    assert len(scattered) == len(corpus) and scattered.fingerprint == corpus.fingerprint
    np.testing.assert_array_equal(scattered.lengths, corpus.lengths)
    for index in range(len(corpus)):
        np.testing.assert_array_equal(scattered.document(index), corpus.document(index))
        assert scattered.metadata(index) == corpus.metadata(index)
    for name in corpus.columns:
        assert scattered.column(name) == corpus.column(name)
    np.testing.assert_array_equal(scattered.bytes, corpus.bytes)
    np.testing.assert_array_equal(scattered.words, corpus.words)


def test_attributes(corpus: Corpus) -> None:
    assert corpus.lengths.dtype == np.int64 and corpus.tokens == corpus.lengths.sum() == corpus.bytes.sum()
    assert corpus.dtype == corpus.document(0).dtype == np.uint16
    assert (corpus.vocab_size, corpus.end_of_text, corpus.split) == (257, 256, "train")
    assert corpus.columns == ["document_hash", "number", "tags"]
    assert len(corpus.fingerprint) == 64
    assert repr(corpus).endswith(f"split='train', documents={len(corpus)}, tokens={corpus.tokens:,})")
    for index in (-1, len(corpus)):
        with pytest.raises(IndexError):
            corpus.document(index)
        with pytest.raises(IndexError):
            corpus.metadata(index)


def test_documents_are_views_of_the_mapped_file(corpus: Corpus) -> None:
    first, again, other = corpus.document(3), corpus.document(3), corpus.document(4)
    assert np.shares_memory(first, again)
    assert not first.flags.owndata and not first.flags.writeable
    address = first.__array_interface__["data"][0]
    # One behind the other, as in the file
    assert other.__array_interface__["data"][0] == address + first.nbytes
    mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if "data-00000.arrow" in line]
    spans = [[int(part, 16) for part in line.split()[0].split("-")] for line in mapped]
    assert any(start <= address < end for start, end in spans)


def test_opening_a_large_corpus_takes_no_memory(tmp_path: Path, write_jsonl: Callable[..., Path]) -> None:
    path = write_jsonl({"text": f"{i} " + "x" * 1_000_000} for i in range(30))
    prepare_corpus(path, "bytes", tmp_path / "out", validation=0)
    process = psutil.Process()
    before = process.memory_info().rss
    corpus = Corpus.open(tmp_path / "out")
    total = sum(len(corpus.document(i)) for i in range(len(corpus)))
    grown = process.memory_info().rss - before
    assert total > 30_000_000  # 60 MB as uint16
    assert grown < 10_000_000


def test_a_pickled_corpus_opens_the_same_files(corpus: Corpus, stories: Path) -> None:
    validation = Corpus.open(corpus.path, "validation")
    content = pickle.dumps(validation)
    assert len(content) < 500
    copy = pickle.loads(content)
    assert (copy.split, len(copy), copy.fingerprint) == ("validation", len(validation), validation.fingerprint)
    prepare_corpus(stories, "bytes", corpus.path, validation=0.3, overwrite=True)
    with pytest.raises(DataError, match="was replaced while it was in use; start again"):
        pickle.loads(content)


def files(corpus: Corpus) -> list[str]:
    return [*corpus.manifest["splits"]["train"]["files"], *corpus.manifest["tokenizer"]["files"]]


@pytest.mark.parametrize("share", [0.0, 0.3, 0.77, 1.0])
def test_the_first_tokens_of_a_corpus_are_a_corpus(corpus: Corpus, share: float) -> None:
    count = max(1, round(share * corpus.tokens))
    part = corpus.first(count)
    whole = np.concatenate([corpus.document(i) for i in range(len(corpus))])
    np.testing.assert_array_equal(np.concatenate([part.document(i) for i in range(len(part))]), whole[:count])
    assert part.tokens == part.lengths.sum() == count and (part.lengths > 0).all()
    assert part.fingerprint == corpus.first(count).fingerprint != corpus.fingerprint
    assert len(part.column(corpus.columns[0])) == len(part)
    assert part.bytes is None and part.words is None  # those of the cut document are not known
    again = pickle.loads(pickle.dumps(part))
    assert again.tokens == count and again.fingerprint == part.fingerprint
    with pytest.raises(IndexError):
        part.document(len(part))


def test_verify_names_the_file_whose_bytes_changed(corpus: Corpus) -> None:
    corpus.verify()
    assert {"train/data-00000.arrow", "train/state.json", "tokenizer/tokenizer.json"} <= set(files(corpus))
    for name in files(corpus):
        path = corpus.path / name
        whole = path.read_bytes()
        changed = bytearray(whole)
        changed[len(whole) // 2] ^= 1
        path.write_bytes(changed)
        with pytest.raises(DataError, match=rf"is damaged: {name} has changed since it was written"):
            corpus.verify()
        path.write_bytes(whole)
    corpus.verify()


def test_an_incomplete_corpus_does_not_open(corpus: Corpus, tmp_path: Path) -> None:
    for name in files(corpus):
        path = corpus.path / name
        whole = path.read_bytes()
        path.write_bytes(whole[:-1])
        with pytest.raises(DataError, match=rf"{name} has changed since it was written"):
            Corpus.open(corpus.path)
        path.unlink()
        with pytest.raises(DataError, match=rf"is damaged: {name} is missing"):
            Corpus.open(corpus.path)
        path.write_bytes(whole)
    assert len(Corpus.open(corpus.path)) == len(corpus)
    (corpus.path / "train" / "data-00000.arrow").write_bytes(
        bytes((corpus.path / "train" / "data-00000.arrow").stat().st_size)
    )
    with pytest.raises(DataError, match=r"data-00000\.arrow is damaged"):
        Corpus.open(corpus.path)


def test_a_changed_manifest_does_not_open(corpus: Corpus) -> None:
    path = corpus.path / "manifest.json"
    manifest = json.loads(path.read_text())
    for change, message in (
        ({"text_field": "other"}, "was changed after the corpus was prepared"),
        ({"text_field": "\ud800"}, "was changed after the corpus was prepared"),  # has no UTF-8
        ({"digest": "0"}, "was changed after the corpus was prepared"),
        ({"format_version": 9}, "has format version 9, but this Contextwise reads version 2"),
        ({"format": "other"}, "is not the manifest of a corpus"),
    ):
        path.write_text(json.dumps({**manifest, **change}))
        with pytest.raises(DataError, match=message):
            Corpus.open(corpus.path)
    path.write_text("{")
    with pytest.raises(DataError, match=r"the corpus's manifest cannot be read: .*manifest\.json"):
        Corpus.open(corpus.path)


REFUSED: dict[str, tuple[Callable[[Corpus], Any], str]] = {
    "missing": (lambda c: Corpus.open(c.path / "missing"), "there is no corpus at .*missing"),
    "another folder": (
        lambda c: Corpus.open(c.path.parent),
        r"is not a corpus: neither a folder with a manifest\.json",
    ),
    "no split": (lambda c: Corpus.open(c.path, ""), "has no split ''; it has train, validation, test"),
    "another split": (lambda c: Corpus.open(c.path, "tset"), "has no split 'tset'; it has train, validation, test"),
    "more tokens than it has": (lambda c: c.first(c.tokens + 1), r"has [\d,]+; give at most that"),
    "no column": (lambda c: c.column("nubmer"), r"no metadata column 'nubmer'; did you mean 'number'\?"),
}


@pytest.mark.parametrize(("call", "message"), REFUSED.values(), ids=REFUSED)
def test_what_a_corpus_refuses(corpus: Corpus, call: Callable[[Corpus], Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        call(corpus)


def test_a_corpus_can_be_moved_and_copied(corpus: Corpus, tmp_path: Path) -> None:
    shutil.copytree(corpus.path, tmp_path / "elsewhere" / "copy")
    copy = Corpus.open(tmp_path / "elsewhere" / "copy")
    copy.verify()
    assert copy.fingerprint == corpus.fingerprint


@pytest.mark.parametrize("name", ["one.bin", "train.bin"])
def test_flat_bin_files(tmp_path: Path, name: str) -> None:
    tokens = np.arange(5000, dtype=np.uint16) * 13
    (tmp_path / name).write_bytes(tokens.tobytes())
    corpus = Corpus.open(tmp_path / name, "validation")
    assert (len(corpus), corpus.tokens, corpus.split, corpus.splits) == (1, 5000, "train", ["train"])
    np.testing.assert_array_equal(corpus.document(0), tokens)
    assert isinstance(corpus.document(0), np.memmap)
    assert (corpus.bytes, corpus.words, corpus.vocab_size, corpus.end_of_text) == (None, None, None, None)
    assert corpus.tokenizer() is None and corpus.columns == [] and corpus.metadata(0) == {}
    fingerprint = corpus.fingerprint
    assert pickle.loads(pickle.dumps(corpus)).fingerprint == fingerprint
    tokens[2500] += 1
    (tmp_path / name).write_bytes(tokens.tobytes())
    assert Corpus.open(tmp_path / name).fingerprint != fingerprint


def test_bin_files_with_a_header_and_in_a_folder(tmp_path: Path) -> None:
    tokens = np.array([5, 6, 7], dtype=np.uint16)
    header = np.zeros(256, dtype=np.int32)
    header[:3] = 20240520, 1, 3
    (tmp_path / "train.bin").write_bytes(header.tobytes() + tokens.tobytes())
    (tmp_path / "val.bin").write_bytes(tokens[:2].tobytes())
    assert Corpus.open(tmp_path).splits == ["train", "validation"]
    assert Corpus.open(tmp_path).document(0).tolist() == [5, 6, 7]
    assert Corpus.open(tmp_path, "validation").document(0).tolist() == [5, 6]
    for content in (b"", b"abc", header.tobytes()):
        (tmp_path / "val.bin").write_bytes(content)
        with pytest.raises(DataError, match=r"val\.bin has [\d,]+ bytes, which is not a whole number of uint16"):
            Corpus.open(tmp_path, "validation")


@pytest.mark.parametrize("version", [2, 3])
def test_zarr_arrays(tmp_path: Path, version: int) -> None:
    zarr = pytest.importorskip("zarr", reason="needs zarr")
    tokens = np.random.default_rng(0).integers(0, 50257, (7, 64)).astype(np.uint16)
    group = zarr.open_group(str(tmp_path / "long"), mode="w", zarr_format=version)
    for name, rows in (("train", tokens[:5]), ("heldout", tokens[5:])):
        group.create_array(name, shape=rows.shape, chunks=(1, 64), dtype="u2")[:] = rows
    corpus = Corpus.open(tmp_path / "long" / "train")
    assert (len(corpus), corpus.tokens, corpus.dtype, corpus.splits) == (5, 320, np.uint16, ["train"])
    assert corpus.lengths.tolist() == [64] * 5 and corpus.end_of_text is None and corpus.tokenizer() is None
    np.testing.assert_array_equal(corpus.document(4), tokens[4])
    held_out = pickle.loads(pickle.dumps(Corpus.open(tmp_path / "long", "heldout")))
    np.testing.assert_array_equal(held_out.document(0), tokens[5])
    assert sorted(held_out.splits) == ["heldout", "train"]
    fingerprint = corpus.fingerprint
    zarr.open(str(tmp_path / "long" / "train"), mode="r+")[2, 3] = 7
    assert Corpus.open(tmp_path / "long" / "train").fingerprint != fingerprint
    with pytest.raises(DataError, match="has no split 'test'; it has heldout, train"):
        Corpus.open(tmp_path / "long", "test")


def test_zarr_arrays_that_are_damaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """zarr itself reads a chunk that is not there as zeros."""
    zarr = pytest.importorskip("zarr", reason="needs zarr")
    array = zarr.create_array(str(tmp_path / "train"), shape=(4, 64), chunks=(1, 64), dtype="u2")
    array[:] = np.random.default_rng(0).integers(1, 50257, (4, 64))
    corpus, chunk = Corpus.open(tmp_path / "train"), tmp_path / "train" / "c" / "2" / "0"
    chunk.write_bytes(b"no chunk")
    assert len(corpus.document(1)) == 64
    with pytest.raises(DataError, match=r"the Zarr array .*train is damaged: .*; copy it again"):
        corpus.document(2)
    chunk.unlink()
    assert not Corpus.open(tmp_path / "train").document(2).any()
    assert "train lacks 1 of its 4 chunks, which are read as zeros" in " ".join(capsys.readouterr().err.split())


def test_zarr_arrays_that_are_no_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zarr = pytest.importorskip("zarr", reason="needs zarr")
    for name, shape, dtype in (("flat", (5,), "u2"), ("floats", (5, 5), "f4")):
        zarr.create_array(str(tmp_path / name), shape=shape, dtype=dtype)
        with pytest.raises(DataError, match=r"but a corpus is \(documents, length\) of token ids"):
            Corpus.open(tmp_path / name)
    (tmp_path / "flat" / "zarr.json").write_text("{")
    with pytest.raises(DataError, match="cannot be opened"):
        Corpus.open(tmp_path / "flat")
    monkeypatch.setitem(sys.modules, "zarr", None)
    with pytest.raises(DataError, match=r"pip install zarr"):
        Corpus.open(tmp_path / "floats")


def test_arrow_files_without_the_columns(corpus: Corpus) -> None:
    table = pa.ipc.open_stream(corpus.path / "train" / "data-00000.arrow").read_all()
    assert table.schema.field("input_ids").type == pa.list_(pa.uint16())
    assert json.loads(table.schema.metadata[b"huggingface"])["info"]["features"].keys() == set(table.column_names)


def test_the_digest_of_metadata_is_of_names_and_values(tmp_path: Path) -> None:
    """Of a field, of its whole column."""

    def prepared(name: str, *values: Any) -> Corpus:
        rows = [{"text": f"text {n}", "a": v, "b": v, "meta": {"title": "t", "v": v}} for n, v in enumerate(values)]
        return prepare_corpus(write_rows(tmp_path / f"{name}.jsonl", rows), "bytes", tmp_path / name, validation=0)

    one, same, other = prepared("one", 1, None), prepared("same", 1, None), prepared("other", None, 1)
    assert one.fingerprint == other.fingerprint
    for names in (["a"], ["b"], ["meta"], ["a", "meta.title"]):
        assert one.metadata_digest(names) == same.metadata_digest(names) != other.metadata_digest(names)
    assert one.metadata_digest(["meta.title"]) == one.metadata_digest(["meta"])
    assert len({one.metadata_digest(names) for names in (["a"], ["b"], ["a", "b"], ["b", "a"])}) == 4
