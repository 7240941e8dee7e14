"""The output folder is complete or absent: full disks, kills, folders with other content."""

from pathlib import Path
from typing import Any

import pytest

from contextwise.base.errors import DataError
from contextwise.data import Corpus, prepare_corpus


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


def test_overwriting(corpus: Corpus, stories: Path, tmp_path: Path) -> None:
    before = corpus.document(3).tolist()
    with pytest.raises(DataError, match="there is no file"):
        prepare_corpus(tmp_path / "missing.jsonl", "bytes", corpus.path, overwrite=True)
    assert Corpus.open(corpus.path).fingerprint == corpus.fingerprint
    new = prepare_corpus(stories, "bytes", corpus.path, limit=20, overwrite=True)
    new.verify()
    assert len(new) + len(Corpus.open(corpus.path, "validation")) <= 20
    assert corpus.document(3).tolist() == before  # one that is open keeps its files
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus", "texts.jsonl"]


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
