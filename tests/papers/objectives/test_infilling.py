"""Fill-in-the-middle: published forms, rates and cuts; documents come back exactly."""

import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, chisquare, kstest
from tokenizers import normalizers, pre_tokenizers

from contextwise.base.errors import ConfigError, DataError
from contextwise.data.tokenizers import CorpusTokenizer
from contextwise.objectives import Cut, Vocabulary, add_special_tokens, build_objective
from contextwise_papers.objectives.infilling import Arrangement
from objective_corpora import CHANCE, of_texts, vocabulary
from small import Memory

P, S, M, E = 1, 2, 3, 4


def rewritten(objective, corpus, words, epoch=0, seed=0):
    """The documents of an epoch."""
    examples = objective.examples(corpus, Cut(8), seed, words)
    return examples.windows(epoch).corpus, examples.arrangement


def test_worked_example():
    prefix, middle, suffix = np.array([10, 11]), np.array([12]), np.array([13, 14])
    write = Arrangement([P, S, M, E]).write
    assert write(prefix, middle, suffix, spm=False).tolist() == [P, 10, 11, S, 13, 14, M, 12, E]
    assert write(prefix, middle, suffix, spm=True).tolist() == [P, S, 13, 14, M, 10, 11, 12, E]
    write = Arrangement([P, S, M, E], marked=True).write
    assert write(prefix, middle, suffix, spm=True).tolist() == [S, 13, 14, P, 10, 11, M, 12, E]
    write = Arrangement([P, S, M]).write
    assert write(prefix, middle, suffix, spm=False).tolist() == [P, 10, 11, S, 13, 14, M, 12]


PIECE = st.lists(st.integers(10, 20), max_size=6).map(lambda ids: np.array(ids, dtype=np.int64))


@given(pieces=st.tuples(PIECE, PIECE, PIECE), spm=st.booleans(), marked=st.booleans(), end=st.booleans())
def test_every_arrangement_comes_back(pieces, spm, marked, end):
    arrangement = Arrangement([P, S, M] + [E] * end, marked)
    ids = arrangement.write(*pieces, spm=spm)
    assert arrangement.restore(ids).tolist() == np.concatenate(pieces).tolist()


def test_broken_documents_do_not_come_back():
    arrangement = Arrangement([P, S, M, E])
    assert arrangement.restore(np.array([10, 11])).tolist() == [10, 11]
    for ids in ([P, 10, S, 11, M, 12], [10, P, S, M, E], [P, M, S, E], [P, S, M, E, 10], [S, P, M, E]):
        with pytest.raises(DataError, match="missing or out of place"):
            arrangement.restore(np.array(ids))


@pytest.fixture(scope="module")
def fillable(bpe, letters):
    """Tokenizers and their vocabularies with the tokens of infilling."""
    tokenizers = {"bpe": bpe, "letters": letters}
    return {kind: (each, vocabulary(build_objective("infilling"), each)) for kind, each in tokenizers.items()}


@given(
    texts=st.lists(st.text(max_size=40), min_size=1, max_size=5),
    seed=st.integers(0, 1000),
    spm=st.sampled_from(["published", "marked"]),
    kind=st.sampled_from(["bpe", "letters"]),
)
def test_any_text_comes_back(fillable, texts, seed, spm, kind):
    tokenizer, words = fillable[kind]
    objective = build_objective("infilling", rate=1.0, spm=spm)
    corpus = of_texts([*texts, "filling up to a window of eight tokens"], tokenizer)
    documents, arrangement = rewritten(objective, corpus, words, seed=seed)
    for index, text in enumerate(texts):
        ids = documents.document(index)
        assert (len(ids) > 0) == (text != "") and documents.lengths[index] == len(ids)
        assert tokenizer.tokenizer.decode(arrangement.restore(ids)) == text


@pytest.mark.long
@pytest.mark.parametrize("split", ["character", "token"])
def test_half_the_documents_are_rewritten_and_half_of_those_are_spm(corpus, known, modules, split):
    objective = build_objective("infilling", split=split)
    words = known(objective)
    prefix, suffix, middle, end = words.ids(objective.special_tokens, "infilling")
    changed = spm = total = 0
    for seed in range(20 if split == "token" else 3):
        documents, arrangement = rewritten(objective, corpus, words, seed=seed)
        for index in range(len(corpus)):
            ids, plain = documents.document(index), corpus.document(index)
            if not np.isin([prefix, suffix, middle, end], ids).any():
                assert np.array_equal(ids, plain)
                continue
            assert (ids[0], ids[-1]) == (prefix, end)
            changed, spm = changed + 1, spm + (ids[1] == suffix and ids[2] != middle)
            if split == "token":
                assert np.array_equal(arrangement.restore(ids), plain)
            elif seed == 0:
                assert words.tokenizer.decode(arrangement.restore(ids)) == modules[index]
        total += len(corpus)
    assert binomtest(changed, total, 0.5).pvalue > CHANCE
    assert binomtest(int(spm), changed, 0.5).pvalue > CHANCE


def test_cuts_between_characters_are_uniform(corpus, known):
    objective = build_objective("infilling", rate=1.0, spm_share=0.0)
    words = known(objective)
    _prefix, suffix, middle, _end = words.ids(objective.special_tokens, "infilling")
    places = []
    inside = 0
    documents, _ = rewritten(objective, corpus, words, seed=0)
    for index in range(len(corpus)):
        ids = documents.document(index)
        at = {int(i): int(np.flatnonzero(ids == i)[0]) for i in (suffix, middle)}
        pieces = [ids[1 : at[suffix]], ids[at[suffix] + 1 : at[middle]], ids[at[middle] + 1 : -1]]
        a, b, c = (len(words.tokenizer.decode(piece)) for piece in pieces)
        places.append((a / (a + b + c), (a + c) / (a + b + c)))
        inside += sum(map(len, pieces)) > corpus.lengths[index]
    first, last = np.array(places).T
    # The smaller and the larger of two uniform numbers.
    assert kstest(first, "beta", args=(1, 2)).pvalue > CHANCE
    assert kstest(last, "beta", args=(2, 1)).pvalue > CHANCE
    assert inside > len(places) / 2  # most pairs of cuts fall inside a token


def test_cuts_between_tokens_are_those_of_the_exercise(letters):
    """A start uniform over four positions, then an end uniform over those behind it."""
    objective = build_objective("infilling", rate=1.0, split="token")
    corpus = Memory([[65, 66, 67, 68]] * 5000, end_of_text=256)
    documents, _ = rewritten(objective, corpus, vocabulary(objective, letters))
    cuts = [cut[:2] for cut in documents.cuts.values()]
    seen, counts = np.unique(cuts, axis=0, return_counts=True)
    share = 1 / 4 / (4 - seen[:, 0])
    assert len(seen) == 10
    assert chisquare(counts, share * 5000).pvalue > CHANCE


@given(
    texts=st.lists(st.text(max_size=12), min_size=1, max_size=9),
    split=st.sampled_from(["token", "character"]),
    seed=st.integers(0, 1000),
)
def test_no_middle_is_empty(fillable, texts, split, seed):
    tokenizer, words = fillable["letters"]
    objective = build_objective("infilling", rate=1.0, split=split, spm_share=0.0)
    corpus = of_texts([*texts, "filling up to a window of eight tokens"], tokenizer)
    documents, arrangement = rewritten(objective, corpus, words, seed=seed)
    for index, ids in enumerate(corpus.documents):
        written = documents.document(index).tolist()
        if arrangement.middle in written:
            assert written[-2] != arrangement.middle  # before the end
        else:
            assert written == ids.tolist() == []


@pytest.mark.parametrize("split", ["token", "character"])
def test_cuts_are_drawn_evenly(letters, split):
    """Bytes: a token is a character. Cuts at 0 to 3 of three."""
    objective = build_objective("infilling", rate=1.0, split=split, spm_share=0.0)
    words, corpus = vocabulary(objective, letters), of_texts(["abc", "abcdefgh"], letters)
    examples, cuts = objective.examples(corpus, Cut(8), 0, words), []
    arrangement = examples.arrangement
    for epoch in range(400):
        ids = examples.windows(epoch).corpus.document(0).tolist()
        first = ids.index(arrangement.suffix) - 1
        cuts.append((first, 3 - (ids.index(arrangement.middle) - ids.index(arrangement.suffix) - 1)))
    drawn, counts = np.unique(cuts, axis=0, return_counts=True)
    assert drawn.tolist() == [[a, b] for a in range(3) for b in range(a + 1, 4)]
    shares = [1 / 3 / (3 - a) if split == "token" else 1 / 6 for a, _ in drawn.tolist()]
    assert chisquare(counts, 400 * np.array(shares)).pvalue > CHANCE


@pytest.mark.long
def test_windows_are_cut_from_the_rewritten_documents(corpus, known):
    objective = build_objective("infilling")
    examples = objective.examples(corpus, Cut(64), 0, known(objective))
    counts = [examples.count(epoch) for epoch in range(3)]
    lengths = set()
    for epoch in (2, 0):
        documents = examples.windows(epoch).corpus
        stream = [corpus.end_of_text]
        for index in range(len(corpus)):
            stream += [*documents.document(index).tolist(), corpus.end_of_text]
        assert counts[epoch] == (len(stream) - 1) // 64
        lengths.add(len(stream))
        for index in (0, 7, counts[epoch] - 1):
            example = examples.example(epoch, index)
            assert example["input_ids"].tolist() == stream[index * 64 : index * 64 + 64]
            assert example["labels"].tolist() == stream[index * 64 + 1 : index * 64 + 65]
    assert len(lengths) == 2  # rewriting changes the number of tokens


def test_special_tokens_written_in_a_document_stay_text(bpe):
    text = "what <|fim_prefix|> and <|fim_end|> mean " * 3
    objective = build_objective("infilling", rate=1.0)
    words = vocabulary(objective, bpe)
    examples = objective.examples(of_texts([text], bpe), Cut(8), 0, words)
    # Elsewhere the same tokenizer reads them as tokens; the documents of later epochs do not mind.
    assert len(words.tokenizer.encode("<|fim_prefix|>")) == 1
    for epoch in range(3):
        ids = examples.windows(epoch).corpus.document(0)
        assert np.isin(ids, words.special).sum() == 4
        assert words.tokenizer.decode(examples.arrangement.restore(ids)) == text


def test_tokenizers_that_change_pieces_need_cuts_between_tokens(letters):
    objective = build_objective("infilling")
    words = vocabulary(objective, letters)
    words.tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    corpus = Memory([range(90)], 256)
    with pytest.raises(ConfigError, match="the tokenizer makes ' a b' of 'a b'; set objective.split=token"):
        objective.examples(corpus, Cut(8), 0, words)
    objective = build_objective("infilling", split="token")
    assert objective.examples(corpus, Cut(8), 0, words).count(0) > 0


def test_tokenizers_that_normalize_give_back_what_the_corpus_holds(letters):
    objective = build_objective("infilling", rate=1.0)
    words = vocabulary(objective, letters)
    words.tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
    text = "e\u0301 \u0301 Å 한국 " * 9
    ids = words.tokenizer.encode(text, add_special_tokens=False)
    for seed in range(20):
        documents, arrangement = rewritten(objective, Memory([ids], 256), words, seed=seed)
        restored = words.tokenizer.decode(arrangement.restore(documents.document(0)))
        assert restored == unicodedata.normalize("NFC", text)


def test_missing_tokens_are_named_and_can_be_added(bpe, corpus):
    objective = build_objective("infilling")
    tokenizer = corpus.tokenizer()
    with pytest.raises(ConfigError, match="special tokens <.fim_prefix.>, <.fim_suffix.>.*add them"):
        objective.examples(corpus, Cut(8), 0, Vocabulary(tokenizer, corpus.end_of_text))
    before = len(tokenizer)
    assert add_special_tokens(tokenizer, objective.special_tokens) == [
        "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_end|>",
    ]  # fmt: skip
    assert add_special_tokens(tokenizer, objective.special_tokens) == []
    assert len(tokenizer) == before + 4
    masked = build_objective("masked")
    assert add_special_tokens(tokenizer, masked.special_tokens) == ["[MASK]", "[CLS]", "[SEP]"]
    assert tokenizer.mask_token == "[MASK]"
    everything = CorpusTokenizer(tokenizer, "folder", "x", corpus.end_of_text)
    assert everything.vocab_size == before + 7
    assert len(Vocabulary(tokenizer).special) == 8
