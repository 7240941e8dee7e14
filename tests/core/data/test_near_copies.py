"""Near-copies: similarity and containment against exact sets, what prepare leaves out, what the verbs report."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

from contextwise.base.errors import ConfigError
from contextwise.data import Corpus, near_copies, prepare_corpus
from contextwise.data.near_copies import NearCopies, containment, ngram_hashes
from small import WORDS, Memory, write_rows


def grams(ids: np.ndarray, length: int) -> set[tuple[int, ...]]:
    return {tuple(ids[i : i + length].tolist()) for i in range(len(ids) - length + 1)}


def changed(ids: np.ndarray, share: float, seed: int) -> np.ndarray:
    draw = np.random.default_rng(seed)
    return np.where(draw.random(len(ids)) < share, draw.integers(0, 500, len(ids)), ids)


def test_ngrams_are_hashed_without_collisions():
    ids = np.random.default_rng(0).integers(0, 3, 20_000)  # many n-grams occur several times
    assert len(np.unique(ngram_hashes(ids, 5))) == len(grams(ids, 5)) == 3**5
    assert len(np.unique(ngram_hashes(ids, 13))) == len(grams(ids, 13))
    short = [np.array(each) for each in ([1], [1, 1], [1, 1, 1], [2, 1], [1, 2])]
    assert len({int(ngram_hashes(each, 5)[0]) for each in short}) == 5


@pytest.mark.parametrize("share", [0.0, 0.005, 0.02, 0.05, 0.3])
def test_the_similarity_is_that_of_the_sets(share):
    ids = np.random.default_rng(1).integers(0, 500, 2000)
    for seed in range(3):
        other = changed(ids, share, seed)
        one, two = grams(ids, 5), grams(other, 5)
        exact = len(one & two) / len(one | two)
        found = NearCopies(0.0)
        assert found.original(ids) is None
        result = found.original(other)
        if exact > 0.75:
            assert result == (0, pytest.approx(exact))
        kept = NearCopies(0.9)
        kept.original(ids)
        assert (kept.original(other) is not None) == (exact >= 0.9)


def test_texts_that_are_less_alike_than_the_threshold_are_kept():
    """Forms of which two share 0.7 of their 5-grams at most: none may go for the error of an estimate."""
    draw = np.random.default_rng(2)
    form = draw.integers(0, 1000, 120)
    forms = [form.copy() for _ in range(300)]
    for number, each in enumerate(forms):
        each[10:12], each[50:60] = 1000 + number, draw.integers(2000, 9000, 10)
    copies, sets = NearCopies(0.8), [grams(each, 5) for each in forms]
    assert 0.6 < max(len(one & sets[0]) / len(one | sets[0]) for one in sets[1:]) < 0.72
    assert all(copies.original(each) is None for each in forms)


def test_an_exact_copy_is_found_behind_texts_that_are_less_alike():
    """Forms with a name and a date: of one, all bands may stand in others with the same name or the same date."""
    form = np.random.default_rng(0).integers(0, 1000, 120)
    forms = [form.copy() for _ in range(144)]
    for number, each in enumerate(forms):
        each[30:34], each[90:94] = 1000 + number // 12, 2000 + number % 12
    copies = NearCopies(1.0)
    kept = [each for each in forms if copies.original(each) is None]
    assert len(kept) > 130
    assert all(copies.original(each) == (number, 1.0) for number, each in enumerate(kept))


def test_exact_copies_of_long_texts_in_which_one_word_differs_are_found():
    """The minima of some are equal, though their sets are not."""
    text = np.random.default_rng(0).integers(0, 1000, 20_000)
    copies, texts = NearCopies(1.0), [text.copy() for _ in range(14)]
    for number, each in enumerate(texts):
        each[500 + number * 1000] = 2000 + number
    assert all(copies.original(each) is None for each in texts)
    assert [copies.original(each) for each in texts] == [(number, 1.0) for number in range(14)]


def test_containment_of_ngrams_by_hand(tmp_path, monkeypatch):
    monkeypatch.setattr(near_copies, "COPIED_BYTES", 0)  # 13-grams of bytes, too
    # 20 bytes have 8 13-grams; the first 15 bytes hold 3 of them, and the 5 in the middle none.
    text = "abcdefghijklmnopqrst"
    lines = ["0" * 30 + text[:15] + "0" * 30, "0" * 30 + text[7:12], text[:12]]
    corpus = prepare_corpus(
        write_rows(tmp_path / "t.jsonl", [{"text": t} for t in lines]), "bytes", tmp_path / "c", validation=0.0
    )
    texts = [np.frombuffer(each.encode(), np.uint8) for each in (text, text[:15], text[5:], text[:12], "0" * 40)]
    assert containment(corpus, texts).tolist() == [3 / 8, 1.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize("block", [1, 7, 2**16])
def test_containment_is_that_of_the_sets_wherever_long_documents_are_cut(block, monkeypatch):
    monkeypatch.setattr(near_copies, "BLOCK", block)
    monkeypatch.setattr(near_copies, "copied_length", lambda corpus: 4)
    draw = np.random.default_rng(3)
    corpus = Memory([draw.integers(0, 3, length) for length in (40, 3, 4, 25)])
    texts = [draw.integers(0, 3, length) for length in (3, 4, 5, 30)] + [corpus.document(2), corpus.document(3)[-4:]]
    held = set.union(*(grams(document, 4) for document in corpus.documents))
    exact = [len(own & held) / len(own) if (own := grams(text, 4)) else 0.0 for text in texts]
    assert containment(corpus, texts).tolist() == exact and exact[4:] == [1, 1] and 0 < exact[3] < 1


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Thirty texts; every third is followed by a copy of it in which one word is another."""
    draw, texts = random.Random(0), []
    for i in range(30):
        words = [f"{draw.choice(WORDS)}{draw.randrange(50)}" for _ in range(120)]
        texts.append(" ".join([f"text {i:02d}", *words]))
        if i % 3 == 0:
            words[draw.randrange(120)] = "changed"
            texts.append(" ".join([f"text {i:02d}", *words]))
    return texts


def test_prepare_leaves_near_copies_out(copied, tmp_path):
    rows = write_rows(tmp_path / "t.jsonl", [{"text": text, "number": i} for i, text in enumerate(copied)])
    corpus = prepare_corpus(rows, "bytes", tmp_path / "kept", deduplicate=0.8, validation=0.3)
    near = corpus.manifest["deduplicated"]
    assert near["left_out"] == 10 and near["similarity"] == 0.8
    assert near["examples"][0]["kept"].startswith("text 00 ") and near["examples"][0]["similarity"] > 0.9
    numbers = [i for split in corpus.splits for i in Corpus.open(corpus.path, split).column("number")]
    originals = [i for i, text in enumerate(copied) if text.split()[1] not in {t.split()[1] for t in copied[:i]}]
    assert sorted(numbers) == originals
    again = prepare_corpus(rows, "bytes", tmp_path / "again", deduplicate=0.8, validation=0.3)
    assert again.manifest == corpus.manifest
    with pytest.raises(ConfigError, match=r"deduplicate is 1\.5, but must be a similarity above 0, at most 1"):
        prepare_corpus(rows, "bytes", tmp_path / "no", deduplicate=1.5)


def beginnings(path: Path, split: str) -> list[str]:
    """The first characters of a split's documents, which a text shares with its copy."""
    corpus = Corpus.open(path, split)
    return [bytes(corpus.document(i)[:7].tolist()).decode() for i in range(len(corpus))]


def test_the_verbs_report_copies_in_other_splits(copied, contextwise, workplace):
    write_rows(workplace / "t.jsonl", [{"text": text} for text in copied])
    command = "prepare t.jsonl --tokenizer bytes --validation 0.4 --out"
    status, _, errors = contextwise(f"{command} all")
    assert status == 0 and "share half or more of their 40-grams with 'train'" in " ".join(errors.split())
    train, held_out = (beginnings(workplace / "all", split) for split in ("train", "validation"))
    (found,) = json.loads(contextwise("corpus all --overlap validation --json")[1])
    assert found["copied"] == sum(each in train for each in held_out) > 0 and found["texts"] == len(held_out)

    status, printed, errors = contextwise(f"{command} one --deduplicate 0.8")
    assert status == 0 and "left out: 10 of 40 documents (25.0%) nearly copy" in printed and "-grams" not in errors
    assert json.loads(contextwise("corpus one --overlap validation --json")[1])[0]["copied"] == 0
    contextwise.refused("corpus all --overlap benchmark", "has no split 'benchmark'")
