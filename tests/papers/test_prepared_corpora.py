"""Items take a prepared corpus again only for the same content of its source and tokenizer, and the same share held out."""

import gzip
import json
import platform
import shutil

import pytest

from contextwise.data import Corpus
from contextwise.data.tokenizers import byte_tokenizer
from contextwise.evaluation.measures.curve import Curve
from contextwise_papers.item import CorpusMeasure, measure_at
from shipped import ALL_ITEMS
from small import save_model, small_gpt2, write_rows


class Counted(CorpusMeasure):
    """Tokens of a corpus."""

    def measure(self, item, folder):
        raise NotImplementedError


def rows(word):
    return [{"text": f"{word} number {number}"} for number in range(30)]


def of(folder, **settings):
    path = Counted(**{"tokenizer": "bytes"} | settings).prepared(folder / "out")
    return path, Corpus.open(path)


def text_of(corpus):
    return bytes(corpus.document(0).tolist()).decode()


def line_file(folder, word):
    return write_rows(folder / "texts.jsonl", rows(word))


def text_folder(folder, word):
    for number, row in enumerate(rows(word)):
        (folder / "texts" / "inner").mkdir(parents=True, exist_ok=True)
        (folder / "texts" / "inner" / f"{number}.txt").write_text(row["text"])
    return folder / "texts"


def pattern(folder, word):
    line_file(folder, word)
    return folder / "*.jsonl"


def packed(folder, word):
    content = "".join(json.dumps(row) + "\n" for row in rows(word)).encode()
    (folder / "texts.jsonl.gz").write_bytes(gzip.compress(content, mtime=0))
    return folder / "texts.jsonl.gz"


@pytest.mark.parametrize("write", [line_file, text_folder, pattern, packed])
def test_a_source_of_the_same_name_is_another(write, tmp_path):
    """In another folder, and edited in place."""
    for name in ("A", "B"):
        (tmp_path / name).mkdir()
    first, corpus = of(tmp_path, corpus=str(write(tmp_path / "A", "apple")))
    other, of_other = of(tmp_path, corpus=str(write(tmp_path / "B", "lemon")))
    assert first != other and "apple" in text_of(corpus) and "lemon" in text_of(of_other)
    assert of(tmp_path, corpus=str(write(tmp_path / "A", "apple")))[0] == first
    assert "grape" in text_of(of(tmp_path, corpus=str(write(tmp_path / "A", "grape")))[1])


def test_another_share_or_tokenizer_is_another_corpus(tmp_path):
    source = str(line_file(tmp_path, "apple"))
    paths = {of(tmp_path, corpus=source, **own)[0] for own in ({}, {"validation": 0.3}, {"tokenizer": "train:270"})}
    for seed in (1, 2):  # a tokenizer in a folder of one name
        tokenizer = byte_tokenizer().tokenizer
        tokenizer.add_tokens([f"number {seed}"])
        tokenizer.save_pretrained(tmp_path / "tokenizer")
        paths.add(of(tmp_path, corpus=source, tokenizer=str(tmp_path / "tokenizer"))[0])
    assert len(paths) == 5


def test_a_prepared_corpus_stays_and_the_library_has_a_version(tmp_path, monkeypatch):
    path, _ = of(tmp_path, corpus=str(line_file(tmp_path, "apple")))
    assert Counted(corpus=str(path)).corpus_folder(tmp_path) == path
    before = Counted().corpus_folder(tmp_path)
    monkeypatch.setattr(platform, "python_version", lambda: "9.9.9")
    assert Counted().corpus_folder(tmp_path) != before


def test_the_shipped_item_counts_the_documents_that_are_given(tmp_path):
    item = ALL_ITEMS["context_scaling/document-lengths"]

    def tables(word):
        source = line_file(tmp_path, word)
        measure = measure_at(item, "tiny", [f"corpus={source}", "tokenizer=bytes"])
        return [table.to_dict() for table in measure.reproduce(item, tmp_path / "r").tables]

    first = tables("apple")
    assert tables("a much longer word for an apple") != first and tables("apple") == first


def test_a_corpus_is_prepared_with_the_tokenizer_of_the_other(tmp_path):
    """A new corpus, whose texts the tokenizer of an old one reads."""
    new = line_file(tmp_path, "new")
    item, places = ALL_ITEMS["objectives/exercise-6.2.4"], set()
    for word in ("apple", "lemon"):
        old, _ = of(tmp_path, corpus=str(write_rows(tmp_path / "old.jsonl", rows(word))), tokenizer="train:270")
        moved = shutil.copytree(old, tmp_path / word / "same-name")
        settings = [f"corpus={moved}", f"new={new}"]
        places.add(measure_at(item, "tiny", settings).new_folder(tmp_path / "r"))
    measure = measure_at(item, "tiny", [f"new={new}"])
    before = measure.new_folder(tmp_path / "r")
    write_rows(new, rows("newer"))
    places |= {before, measure.new_folder(tmp_path / "r")}
    assert len(places) == 4


def test_a_measured_model_that_was_replaced_is_measured_again(tmp_path):
    item = ALL_ITEMS["context_scaling/contextwise-loss"]
    source, model = line_file(tmp_path, "apple"), tmp_path / "model"
    own = [f"corpus={source}", f"model={model}", "context=8", "tokenizer=bytes"]
    measured = set()
    for seed in (1, 2):
        shutil.rmtree(model, ignore_errors=True)
        save_model(model, small_gpt2(seed=seed))
        measure = measure_at(item, "tiny", own)
        measure.measure(item, tmp_path / "r")
        measured.add(measure.measured(Curve(mode="running", context=8), tmp_path / "r").summary["digest"])
    assert len(measured) == len([*(tmp_path / "r" / "measured" / "model").glob("curve-*")]) == 2
