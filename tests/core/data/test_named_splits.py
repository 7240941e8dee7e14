"""Splits that the sources name: the split of each document, and errors."""

import pytest

from contextwise.base.errors import ConfigError, DataError
from contextwise.data import Corpus, prepare_corpus
from contextwise.data.documents import read_splits
from small import write_rows


@pytest.fixture
def write(tmp_path):
    """Texts to a file of JSON Lines in the test's folder."""

    def to_file(name, texts):
        path = tmp_path / name
        write_rows(path, ({"text": text, "from": name} for text in texts))
        return path

    return to_file


@pytest.fixture
def parts(write):
    """Sources of three splits."""
    return [
        f"train={write('a.jsonl', ['one apple', 'two apples', 'three apples'])}",
        f"adapt={write('b.jsonl', ['four apples'])}",
        f"test={write('c.jsonl', ['five apples', 'six apples'])}",
    ]


def texts(path, split):
    corpus = Corpus.open(path, split)
    return [corpus.tokenizer().decode(corpus.document(i)) for i in range(len(corpus))]


def test_each_document_goes_to_the_split_of_its_source(parts, tmp_path):
    corpus = prepare_corpus(parts, "bytes", tmp_path / "out")
    assert (corpus.split, corpus.splits) == ("train", ["train", "adapt", "test"])
    assert texts(tmp_path / "out", "train") == ["one apple", "two apples", "three apples"]
    assert texts(tmp_path / "out", "adapt") == ["four apples"]
    assert texts(tmp_path / "out", "test") == ["five apples", "six apples"]
    assert Corpus.open(tmp_path / "out", "test").column("from") == ["c.jsonl"] * 2
    assert [source["split"] for source in corpus.manifest["sources"]] == ["train", "adapt", "test"]
    assert corpus.manifest["split_shares"] == {"validation": None, "test": None}
    corpus.verify()


def test_a_split_may_have_several_sources_and_repeats_of_its_own(write, tmp_path):
    sources = [f"train={write('a.jsonl', ['x one', 'x two'])}", f"test={write('b.jsonl', ['y'])}"]
    sources.append(f"train={write('c.jsonl', ['x one', 'x three'])}")
    prepare_corpus(sources, "bytes", tmp_path / "out")
    assert texts(tmp_path / "out", "train") == ["x one", "x two", "x one", "x three"]


def test_the_limit_is_for_each_split(parts, tmp_path):
    prepare_corpus(parts, "bytes", tmp_path / "out", limit=1)
    assert texts(tmp_path / "out", "train") == ["one apple"]
    assert texts(tmp_path / "out", "test") == ["five apples"]


def test_a_tokenizer_learns_on_the_training_split_alone(write, tmp_path):
    train = write("a.jsonl", [f"the green ship {i}" for i in range(50)])
    alone = prepare_corpus([f"train={train}"], "train:300", tmp_path / "alone")
    other = write("b.jsonl", [f"quixotic zebras {i}" for i in range(500)])
    both = prepare_corpus([f"test={other}", f"train={train}"], "train:300", tmp_path / "both")
    assert both.split == "train"  # though it is named second
    assert both.tokenizer().get_vocab() == alone.tokenizer().get_vocab()
    assert both.fingerprint == alone.fingerprint


def test_the_same_text_in_two_splits_is_refused_with_both_locations(write, tmp_path):
    sources = [
        f"train={write('a.jsonl', ['first', 'shared   text'])}",
        f"test={write('b.jsonl', ['', 'x', 'shared   text'])}",
    ]
    with pytest.raises(DataError) as error:
        prepare_corpus(sources, "bytes", tmp_path / "out")
    assert str(error.value) == (
        "the same text is in two splits, train (record 2 of a.jsonl) and test (record 3 of b.jsonl): "
        "'shared text'; take it out of one of them"
    )
    # Nothing is left behind
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "b.jsonl"]


@pytest.mark.parametrize("share", [{"validation": 0.1}, {"validation": 0.0}, {"test": 0.5}])
def test_shares_are_refused_beside_named_splits(parts, tmp_path, share):
    with pytest.raises(ConfigError, match=r"is a share of the documents, but the sources name their splits"):
        prepare_corpus(parts, "bytes", tmp_path / "out", **share)


def test_a_split_without_documents_is_refused(parts, write, tmp_path):
    empty = write("empty.jsonl", ["", "  "])
    with pytest.raises(DataError, match="the split 'dev' hold no document with text; leave that split out"):
        prepare_corpus([*parts, f"dev={empty}"], "bytes", tmp_path / "out")


def test_learning_a_tokenizer_needs_a_split_named_train(parts, tmp_path):
    with pytest.raises(ConfigError, match="on the split train, but no source is named so"):
        prepare_corpus(parts[1:], "train:300", tmp_path / "out")


def test_all_sources_name_a_split_or_none(tmp_path, monkeypatch):
    assert read_splits(["a.jsonl", "stdlib", "owner/name:config"]) == (["a.jsonl", "stdlib", "owner/name:config"], None)
    assert read_splits(["train=alpaca:x.json", "test=data/*=1.jsonl"])[0] == ["alpaca:x.json", "data/*=1.jsonl"]
    with pytest.raises(ConfigError, match="the source b.jsonl names no split, but others do; write train=b.jsonl"):
        read_splits(["train=a.jsonl", "b.jsonl"])
    with pytest.raises(ConfigError, match="no split can be called 'tokenizer'"):
        read_splits(["tokenizer=a.jsonl"])
    with pytest.raises(ConfigError, match="train= names a split, but no source; write train=FILE"):
        read_splits(["train="])
    for name in ("my-split", "2nd", ""):
        with pytest.raises(ConfigError, match=f"is called '{name}', but a split's name is a letter and then"):
            read_splits([f"{name}=a.jsonl"])
    assert read_splits(["./year=2020/*.jsonl"]) == (["./year=2020/*.jsonl"], None)
    # A path that is there is a source, whatever its name.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "year=2020").mkdir()
    (tmp_path / "year=2020" / "x.jsonl").write_text('{"text": "x"}\n')
    assert read_splits(["year=2020/x.jsonl"]) == (["year=2020/x.jsonl"], None)


def test_a_missing_file_is_named_without_its_split(tmp_path):
    with pytest.raises(DataError, match=r"^there is no file or folder nowhere\.jsonl$"):
        prepare_corpus(["train=nowhere.jsonl"], "bytes", tmp_path / "out")


def test_the_command_takes_named_splits(contextwise, parts):
    status, printed, errors = contextwise("prepare --tokenizer bytes --out out", *parts)
    assert status == 0, errors
    rows = [line.split()[:2] for line in printed.split("\n") if line.startswith((" train", " adapt", " test"))]
    assert rows == [["train", "3"], ["adapt", "1"], ["test", "2"]]


def test_a_split_whose_name_is_nearly_a_known_one_gets_a_note(capsys):
    for name, known in (("trian", "train"), ("val", "validation")):
        read_splits([f"{name}=texts.jsonl"])
        assert f"note: the split is called {name!r}, not {known!r}" in " ".join(capsys.readouterr().err.split())
    read_splits(["german=texts.jsonl"])
    assert not capsys.readouterr().err
