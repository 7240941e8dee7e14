"""The output folder is complete or absent: full disks, kills, folders with other content."""

import multiprocessing
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from contextwise.base import files
from contextwise.base.errors import DataError
from contextwise.base.files import PARTIAL
from contextwise.data import Corpus, prepare_corpus
from faults import no_file_above
from processes import Program

PREPARE = """
import sys
from contextwise.data import prepare_corpus
prepare_corpus(sys.argv[1], "bytes", sys.argv[2], **{name: True for name in sys.argv[3:]})
"""


def prepare_in_process(source: Path, out: Path, *flags: str) -> Program:
    """A process of its own that prepares ``source``."""
    return Program(PREPARE, source, out, *flags)


@pytest.fixture
def big(write_jsonl: Callable[..., Path]) -> Path:
    """24 MB of text in many batches."""
    return write_jsonl(({"text": f"document {i} " + "some words " * 1000} for i in range(2200)), "big.jsonl")


@pytest.mark.parametrize(
    ("words", "limit", "where"), [(50_000, 50_000, "writing bytes"), (100, 5000, "the tokenizer cannot be written")]
)
def test_a_full_disk_leaves_nothing(
    write_jsonl: Callable[..., Path], tmp_path: Path, words: int, limit: int, where: str
) -> None:
    source = write_jsonl([{"text": " ".join(map(str, range(words)))}, {"text": "short"}, {"text": "shorter"}])
    with no_file_above(limit), pytest.raises(DataError) as caught:
        prepare_corpus(source, "bytes", tmp_path / "out")
    assert str(caught.value).startswith(
        f"no space left while writing the corpus to {tmp_path / 'out'}; existing files are unchanged"
    )
    assert where in str(caught.value.__cause__)
    assert list(tmp_path.iterdir()) == [source]
    assert len(prepare_corpus(source, "bytes", tmp_path / "out")) > 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    mount = tmp_path / "disk"
    mount.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(mount)], capture_output=True)
    if made.returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield mount
    subprocess.run(["umount", "--lazy", str(mount)], check=True)


def test_a_small_file_system_that_fills_up(small_disk: Path, big: Path, stories: Path) -> None:
    old = prepare_corpus(stories, "bytes", small_disk / "old")
    with pytest.raises(DataError, match=r"no space left while writing the corpus to .*/new"):
        prepare_corpus(big, "bytes", small_disk / "new")
    with pytest.raises(DataError, match=r"no space left while writing the corpus"):
        prepare_corpus(big, "bytes", small_disk / "old", overwrite=True)
    assert [path.name for path in small_disk.iterdir()] == ["old"]
    Corpus.open(small_disk / "old").verify()
    assert Corpus.open(small_disk / "old").fingerprint == old.fingerprint


def test_killed_while_writing_then_run_again(big: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    # A fork is there at once; what it does (bytes, so no threads of the tokenizer) is safe in one.
    process = multiprocessing.get_context("fork").Process(target=prepare_corpus, args=(big, "bytes", out))
    process.start()
    deadline = time.monotonic() + 60
    begun = f"out{PARTIAL}*/parts/train.arrow"
    while not any(part.stat().st_size > 10_000 for part in tmp_path.glob(begun)) and time.monotonic() < deadline:
        time.sleep(0.002)
    process.kill()
    process.join()
    assert not out.exists()
    assert list(tmp_path.glob(f"out{PARTIAL}*")), "the kill came after the work"
    prepare_corpus(big, "bytes", out, limit=10).verify()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["big.jsonl", "out"]


@pytest.mark.slow
def test_a_kill_leaves_the_old_corpus_or_the_new_one(big: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    whole = {prepare_corpus(big, "bytes", out, limit=20).fingerprint}
    whole.add(prepare_corpus(big, "bytes", tmp_path / "reference").fingerprint)
    seen = set()
    for attempt in range(12):
        process = prepare_in_process(big, out, "overwrite")
        while not list(tmp_path.glob(f"out{PARTIAL}*")) and process.poll() is None:
            time.sleep(0.002)
        time.sleep(0.25 * attempt)
        process.kill()
        process.communicate()
        corpus = Corpus.open(out)
        corpus.verify()
        seen.add(corpus.fingerprint)
    assert seen <= whole


def test_an_interrupted_run_leaves_nothing(stories: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("contextwise.data.prepare.write_split", interrupt)
    with pytest.raises(KeyboardInterrupt):
        prepare_corpus(stories, "bytes", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["texts.jsonl"]


def test_a_folder_that_exists(stories: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert len(prepare_corpus(stories, "bytes", tmp_path / "empty")) > 100
    with pytest.raises(
        DataError, match=r"empty already exists, prepared from other texts or with other options; choose"
    ):
        prepare_corpus(stories, "bytes", tmp_path / "empty", limit=20)
    (tmp_path / "empty" / "run").mkdir()
    with pytest.raises(DataError, match=r"empty holds run, which overwriting would remove; move it"):
        prepare_corpus(stories, "bytes", tmp_path / "empty", overwrite=True)
    assert (tmp_path / "empty" / "run").is_dir()
    (tmp_path / "papers").mkdir()
    (tmp_path / "papers" / "thesis.txt").write_text("years of work")
    (tmp_path / "papers" / "manifest.json").write_text("{}")
    with pytest.raises(DataError, match=r"papers is not a prepared corpus, so it is not overwritten"):
        prepare_corpus(stories, "bytes", tmp_path / "papers", overwrite=True)
    with pytest.raises(DataError, match=r"texts\.jsonl is a file; give the name of a folder"):
        prepare_corpus(stories, "bytes", stories, overwrite=True)
    assert (tmp_path / "papers" / "thesis.txt").read_text() == "years of work"


def test_the_same_texts_and_options_are_prepared_once(stories: Path, tmp_path: Path) -> None:
    def prepared(**options: Any) -> tuple[int, str]:
        corpus = prepare_corpus(stories, "train:300", tmp_path / "out", **options)
        return (corpus.path / "manifest.json").stat().st_ino, corpus.fingerprint

    first = prepared(limit=20)
    assert prepared(limit=20) == first
    again = prepared(limit=20, overwrite=True)
    assert again[0] != first[0] and again[1] == first[1]
    with stories.open("a") as file:
        file.write('{"text": "one more"}\n')
    with pytest.raises(DataError, match="prepared from other texts or with other options"):
        prepared(limit=20)


def test_texts_that_change_while_they_are_read(stories: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from contextwise.data import prepare as module

    write_split = module.write_split

    def and_the_source_grows(*args: Any) -> list[Path]:
        with stories.open("a") as file:
            file.write('{"text": "one more"}\n')
        return write_split(*args)

    monkeypatch.setattr(module, "write_split", and_the_source_grows)
    with pytest.raises(DataError, match="was changed while it was read; run the same command again"):
        prepare_corpus(stories, "bytes", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["texts.jsonl"]


@pytest.mark.parametrize("swap", [True, False], ids=["one step", "two steps"])
def test_overwriting(
    corpus: Corpus, stories: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swap: bool
) -> None:
    if not swap:
        monkeypatch.setattr(files.ctypes, "CDLL", lambda *args, **kwargs: object())
    before = corpus.document(3).tolist()
    with pytest.raises(DataError, match="there is no file"):
        prepare_corpus(tmp_path / "missing.jsonl", "bytes", corpus.path, overwrite=True)
    assert Corpus.open(corpus.path).fingerprint == corpus.fingerprint
    new = prepare_corpus(stories, "bytes", corpus.path, limit=20, overwrite=True)
    new.verify()
    assert len(new) + len(Corpus.open(corpus.path, "validation")) <= 20
    assert corpus.document(3).tolist() == before  # one that is open keeps its files
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus", "texts.jsonl"]


def test_a_failed_replacement_leaves_the_old_corpus(corpus: Corpus, write_jsonl: Callable[..., Path]) -> None:
    bad = write_jsonl([{"text": "fine"}] * 3 + [[]], "bad.jsonl")
    with pytest.raises(DataError, match=r"bad\.jsonl:4"):
        prepare_corpus(bad, "bytes", corpus.path, overwrite=True)
    Corpus.open(corpus.path).verify()
    assert sorted(path.name for path in corpus.path.parent.iterdir()) == ["bad.jsonl", "corpus", "texts.jsonl"]


def test_output_inside_a_source_and_a_source_inside_the_output(tmp_path: Path, corpus: Corpus) -> None:
    texts = tmp_path / "folder"
    texts.mkdir()
    (texts / "a.txt").write_text("text")
    for out in (texts / "corpus", tmp_path):
        with pytest.raises(DataError, match=r"lie one in the other|already exists"):
            prepare_corpus(texts, "bytes", out)
    (corpus.path / "raw.txt").write_text("text")
    with pytest.raises(DataError, match="which overwriting would remove"):
        prepare_corpus(corpus.path / "raw.txt", "bytes", corpus.path, overwrite=True)
    assert [path.name for path in texts.iterdir()] == ["a.txt"]


def test_a_path_that_cannot_be_written(stories: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises((DataError, NotADirectoryError)):
        prepare_corpus(stories, "bytes", tmp_path / "file" / "out")
    assert (tmp_path / "file").read_text() == ""


def test_a_folder_created_by_another_process(stories: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from contextwise.data import prepare as module

    write_manifest = module.write_manifest

    def and_another_run_finishes(folder: Path, content: dict[str, object]) -> None:
        write_manifest(folder, content)
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "theirs").touch()

    monkeypatch.setattr(module, "write_manifest", and_another_run_finishes)
    with pytest.raises(DataError, match="already exists; choose another folder"):
        prepare_corpus(stories, "bytes", tmp_path / "out")
    with pytest.raises(DataError, match="theirs is a file; give the name of a folder for the corpus"):
        prepare_corpus(stories, "bytes", tmp_path / "out" / "theirs", overwrite=True)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["theirs"]


@pytest.mark.long
def test_two_processes_prepare_one_folder(big: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with files.exclusive(out, "the corpus"):
        first = prepare_in_process(big, out)
        assert "another process is writing the corpus" in first.stderr.readline()
        second = prepare_in_process(big, out)
        assert "another process is writing the corpus" in second.stderr.readline()
    texts = [process.communicate()[1] for process in (first, second)]
    Corpus.open(out).verify()
    assert first.returncode == second.returncode == 0, texts  # one prepares, the other opens what that has written
    assert sorted(path.name for path in tmp_path.iterdir()) == ["big.jsonl", "out"]
