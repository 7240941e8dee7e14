"""From text to a corpus folder: its content, which the same text always reproduces."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contextwise.base.errors import ConfigError, DataError
from contextwise.base.hashes import sha256_file
from contextwise.base.progress import say_once
from contextwise.data import Corpus, prepare_corpus
from contextwise.data import documents as documents_module
from contextwise.data.corpus import writing as writing_module
from contextwise.data.documents import SplitFractions, text_digest


def texts_of(corpus: Corpus) -> list[str]:
    tokenizer = corpus.tokenizer()
    return [tokenizer.decode(corpus.document(i)) for i in range(len(corpus))]


def files_of(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): sha256_file(path) for path in folder.rglob("*") if path.is_file()}


@settings(max_examples=15)
@given(st.lists(st.text(min_size=1, max_size=60), min_size=1, max_size=12))
@pytest.mark.parametrize("tokenizer", ["bytes", "train:300"])
def test_any_documents_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, tokenizer: str, texts: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("any")
    records = [{"text": text, "n": n} for n, text in enumerate([*texts, "the end"])]
    (folder / "x.jsonl").write_bytes(b"".join(json.dumps(record).encode() + b"\n" for record in records))
    corpus = prepare_corpus(folder / "x.jsonl", tokenizer, folder / "out", validation=0)
    kept = [record for record in records if record["text"].strip()]
    assert texts_of(corpus) == [record["text"] for record in kept]
    assert corpus.column("n") == [record["n"] for record in kept]
    assert corpus.bytes.tolist() == [len(record["text"].encode()) for record in kept]
    assert corpus.words.tolist() == [len(record["text"].split()) for record in kept]
    assert corpus.manifest["skipped"] == {"bad": 0, "empty": len(records) - len(kept)}


def test_manifest_counts_and_splits(corpus: Corpus, stories: Path) -> None:
    records = [json.loads(line) for line in stories.read_text().split("\n") if line]
    fractions = SplitFractions(0.2, 0.1)
    assert corpus.splits == ["train", "validation", "test"]
    assert corpus.manifest["sources"] == [{"kind": "jsonl", "name": "texts.jsonl", "files": 1}]
    for name, about in corpus.manifest["splits"].items():
        mine = [r for r in records if fractions.split_of(text_digest(r["text"].encode())) == name]
        opened = Corpus.open(corpus.path, name)
        assert texts_of(opened) == [record["text"] for record in mine]
        assert opened.column("number") == [record["number"] for record in mine]
        assert opened.column("tags") == [record["tags"] for record in mine]
        assert about["documents"] == len(mine) == len(opened) > 10
        assert about["tokens"] == opened.tokens == about["bytes"] == sum(len(record["text"]) for record in mine)
        assert about["words"] == sum(len(record["text"].split()) for record in mine)
        assert opened.column("document_hash") == [text_digest(r["text"].encode()).hex() for r in mine]
    assert str(corpus.path.parent) not in (corpus.path / "manifest.json").read_text()


def test_hugging_face_datasets_reads_the_folder(corpus: Corpus) -> None:
    loaded = datasets.load_from_disk(str(corpus.path))
    assert list(loaded) == corpus.splits
    train = loaded["train"]
    assert train.column_names == ["input_ids", "n_bytes", "n_words", "text_lost", "document_hash", "number", "tags"]
    assert train.features["input_ids"] == datasets.List(datasets.Value("uint16"))
    assert train[7]["input_ids"] == corpus.document(7).tolist()
    assert train[7]["number"] == corpus.metadata(7)["number"]
    assert train.filter(lambda row: row["number"] < 50, keep_in_memory=True).num_rows == sum(
        n < 50 for n in corpus.column("number")
    )


def test_a_document_keeps_its_split_in_any_order(stories: Path, tmp_path: Path, corpus: Corpus) -> None:
    lines = stories.read_text().splitlines(keepends=True)
    random.Random(3).shuffle(lines)
    (tmp_path / "shuffled.jsonl").write_text("".join(lines[:120]))
    prepare_corpus(tmp_path / "shuffled.jsonl", "train:300", tmp_path / "other", validation=0.2, test=0.1)
    for split in corpus.splits:
        whole = set(Corpus.open(corpus.path, split).column("document_hash"))
        part = set(Corpus.open(tmp_path / "other", split).column("document_hash"))
        assert part and part < whole


@pytest.mark.parametrize("tokenizer", ["bytes", "train:400"])
def test_preparing_again_gives_the_same_bytes(stories: Path, tmp_path: Path, tokenizer: str) -> None:
    prepare_corpus(stories, tokenizer, tmp_path / "a")
    moved = stories.rename(tmp_path / "a" / ".." / "texts.jsonl")
    prepare_corpus(moved, tokenizer, tmp_path / "b")
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")


def test_the_fingerprint_is_of_the_tokens_alone(
    write_jsonl: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"text number {i}" for i in range(40)]

    def fingerprint(name: str, records: list[Any], tokenizer: str = "bytes") -> str:
        source = write_jsonl(records, f"{name}.jsonl")
        return prepare_corpus(source, tokenizer, tmp_path / name, validation=0).fingerprint

    first = fingerprint("a", [{"text": text} for text in texts])
    assert fingerprint("b", [{"text": text} for text in [*texts[:-1], "text number 38!"]]) != first
    assert fingerprint("c", [{"text": "".join(texts[:2])}, *({"text": text} for text in texts[2:])]) != first
    assert fingerprint("d", [{"text": text} for text in texts], "train:257") != first
    monkeypatch.setattr(documents_module, "BATCH_DOCUMENTS", 7)
    monkeypatch.setattr(writing_module, "SHARD_BYTES", 1000)
    assert fingerprint("e", [{"text": text, "n": text} for text in texts]) == first
    assert len(list((tmp_path / "e" / "train").glob("*.arrow"))) > 2


def test_metadata_of_changing_types(
    write_jsonl: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents_module, "BATCH_DOCUMENTS", 5)
    odd = [3, 2.5, "three", None, {"a": 1}]
    records = [
        {"text": f"text {i}", "steady": i, "grows": i if i < 10 else i / 4, "odd": odd[i // 8], "n_words": "mine"}
        for i in range(40)
    ]
    records[33]["late"] = {"deep": [0, 1, 2]}
    corpus = prepare_corpus(write_jsonl(records), "bytes", tmp_path / "out", validation=0)
    assert corpus.columns == ["document_hash", "steady", "grows", "odd", "source_n_words", "late"]
    assert corpus.manifest["columns_as_json"] == ["odd", "late"]
    for name in ("steady", "grows", "odd"):
        assert corpus.column(name) == [record[name] for record in records]
    assert corpus.metadata(33)["late"] == {"deep": [0, 1, 2]} and corpus.metadata(34)["late"] is None
    assert corpus.column("source_n_words") == ["mine"] * 40
    train = datasets.load_from_disk(str(tmp_path / "out"))["train"]
    assert train.features["steady"] == datasets.Value("int64")
    assert train[39]["odd"] == '{"a": 1}' and train[16]["odd"] == '"three"'


def test_bad_lines_are_errors_or_counted(
    write_jsonl: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_jsonl([{"text": "a"}, {"body": "b"}, ["c"], {"text": ""}, {"text": "d"}, {"text": " \t"}])
    with pytest.raises(DataError, match=r"texts\.jsonl:2: there is no field 'text' \(fields: 'body'"):
        prepare_corpus(path, "bytes", tmp_path / "out")
    assert list(tmp_path.iterdir()) == [path]
    corpus = prepare_corpus(path, "bytes", tmp_path / "out", validation=0, skip_bad=True)
    assert corpus.manifest["skipped"] == {"bad": 2, "empty": 2}
    assert corpus.manifest["splits"]["train"]["documents"] == 2
    assert "left out 2 bad records; the first:" in capsys.readouterr().err


def test_limit_and_several_sources(stories: Path, write_jsonl: Callable[..., Path], tmp_path: Path) -> None:
    more = write_jsonl([{"text": "other", "number": -1}], "other.jsonl")
    corpus = prepare_corpus([more, stories], "train:280", tmp_path / "out", validation=0, limit=10)
    assert corpus.column("number") == [-1, *range(9)]
    assert [source["name"] for source in corpus.manifest["sources"]] == ["other.jsonl", "texts.jsonl"]


def test_the_tokenizer_is_learned_on_the_training_split_alone(write_jsonl: Callable[..., Path], tmp_path: Path) -> None:
    fractions = SplitFractions(0.5)
    texts = [f"{i} " + "zebra " * 20 for i in range(40)]
    held = [text.replace("zebra", "quokka") if _split(fractions, text) != "train" else text for text in texts]
    kept = [text for text in held if "zebra" in text or _split(fractions, text) == "validation"]
    corpus = prepare_corpus(write_jsonl({"text": text} for text in kept), "train:300", tmp_path / "out", validation=0.5)
    vocabulary = corpus.tokenizer().get_vocab()
    assert any("zebra" in token for token in vocabulary)
    assert not any("quok" in token for token in vocabulary)


def _split(fractions: SplitFractions, text: str) -> str:
    return fractions.split_of(text_digest(text.encode()))


def test_splits_without_documents_are_left_out(
    write_jsonl: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [text for text in map(str, range(1000)) if _split(SplitFractions(0.3), text) == "train"][:3]
    corpus = prepare_corpus(write_jsonl({"text": text} for text in texts), "bytes", tmp_path / "a", validation=0.3)
    assert corpus.splits == ["train"]
    warning = " ".join(capsys.readouterr().err.split())
    assert "no document fell to the split 'validation'" in warning
    assert "--validation with a larger share, or validation=FILE, holds documents out" in warning
    held = [text for text in map(str, range(1000)) if _split(SplitFractions(0.3), text) == "validation"][:2]
    source = write_jsonl({"text": text} for text in held)
    assert prepare_corpus(source, "bytes", tmp_path / "b", validation=0.3).split == "validation"
    assert "no document fell to the split 'train'" in " ".join(capsys.readouterr().err.split())
    with pytest.raises(
        DataError, match=r"no document .* training split .*; there is nothing to learn a tokenizer from"
    ):
        prepare_corpus(source, "train:300", tmp_path / "c", validation=0.3)


def test_the_default_share_holds_out_enough_for_a_verdict(
    stories: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = prepare_corpus(stories, "train:300", tmp_path / "a")
    splits, shares = corpus.manifest["splits"], corpus.manifest["split_shares"]
    assert (splits["train"]["documents"], splits["validation"]["documents"]) == (170, 30)
    same = prepare_corpus(stories, "train:300", tmp_path / "b", validation=shares["validation"])
    assert same.fingerprint == corpus.fingerprint
    assert "verdict" not in capsys.readouterr().err
    say_once.cache_clear()  # of other tests of this process
    prepare_corpus(stories, "bytes", tmp_path / "c", limit=20)
    warning = " ".join(capsys.readouterr().err.split())
    assert "the split 'validation' of texts.jsonl holds 4 documents; a comparison on it gives no verdict" in warning
    assert "--validation with a larger share holds out more" in warning
    prepare_corpus(stories, "bytes", tmp_path / "d", limit=8)
    assert "holds 2 documents; a comparison" in " ".join(capsys.readouterr().err.split())
    assert "validation" not in prepare_corpus(stories, "bytes", tmp_path / "e", validation=0).splits


def test_uint32_where_the_vocabulary_needs_it(tmp_path: Path, write_jsonl: Callable[..., Path]) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    backend = Tokenizer(models.WordLevel({f"w{i}": i for i in range(70_000)}, unk_token="w0"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.save(str(tmp_path / "tokenizer.json"))
    corpus = prepare_corpus(
        write_jsonl([{"text": "w69999 w1"}]),
        tmp_path / "tokenizer.json",
        tmp_path / "out",
        validation=0,
        end_of_text="w5",
    )
    assert corpus.dtype == np.uint32 and corpus.document(0).tolist() == [69999, 1]
    assert corpus.end_of_text == 5 and corpus.vocab_size == 70_000
    assert datasets.load_from_disk(str(tmp_path / "out"))["train"][0]["input_ids"] == [69999, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limit": 0}, "limit is 0"),
        ({"validation": 1.0}, "validation is 1.0"),
        ({"validation": 0.5, "test": 0.5}, "leave no document for training"),
        ({"tokenizer": "train:12"}, "at least 257"),
        ({"tokenizer": "train:300", "end_of_text": "x"}, "end_of_text"),
        ({"sources": []}, "no source is given"),
    ],
)
def test_invalid_options(stories: Path, tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        prepare_corpus(**{"sources": stories, "tokenizer": "bytes", "out": tmp_path / "out", **options})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("lines", [[], [{"text": ""}, {"text": "\n"}]])
def test_a_source_without_text(write_jsonl: Callable[..., Path], tmp_path: Path, lines: list[Any]) -> None:
    path = write_jsonl(lines)
    with pytest.raises(
        DataError, match=rf"no document with text was found in texts\.jsonl \({len(lines)} empty records"
    ):
        prepare_corpus(path, "bytes", tmp_path / "out")
    assert list(tmp_path.iterdir()) == [path]


def test_the_embedded_corpus(tmp_path: Path) -> None:
    corpus = prepare_corpus("stdlib", "bytes", tmp_path / "out", limit=80)
    tokenizer = corpus.tokenizer()
    modules = corpus.column("module")
    assert modules == sorted(modules)
    index = modules.index("argparse")
    assert "class ArgumentParser" in tokenizer.decode(corpus.document(index))
    assert corpus.metadata(index)["docstring"] == "Command-line parsing library"
    assert corpus.manifest["sources"][0]["kind"] == "stdlib"
