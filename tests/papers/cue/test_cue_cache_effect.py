"""Section 7 of CUE: which tokens are of words that stand in the contexts, and what contexts gain for those and for others."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contextwise.base.errors import DataError
from contextwise.base.estimates import joint_freedom
from contextwise.base.intervals import student_t
from contextwise.data import Corpus
from contextwise.data.tokenizers import byte_tokenizer, load_tokenizer
from contextwise_papers.cue.sentences.cache_effect import (
    ALL,
    BINS,
    END,
    IN,
    NOT_IN,
    SPACE,
    bins_of,
    cache_effect,
    effect_between,
    occurrences,
    shares_of_types,
)
from contextwise_papers.objectives.text import TokenText
from measured import evaluate_model, evaluate_sentences
from sentence_models import cue_model, make_corpus, write_text_encoder
from small import save_model

BYTES = byte_tokenizer().tokenizer


def ids(text):
    return np.array(BYTES(text).input_ids)


def found(text, contexts):
    """The characters of each context's words in a text of ASCII, others as dots; and those of any word."""
    occurs, visible = occurrences(TokenText(BYTES), ids(text), contexts)
    shown = ["".join(c if hit else "." for c, hit in zip(text, row, strict=True)) for row in occurs]
    return shown, "".join(c if hit else "." for c, hit in zip(text, visible, strict=True))


def test_a_word_occurs_whole_and_in_any_case():
    occurs, visible = found("Oil rises, oil 86.", ["OIL up 86", None, "rise", ", no"])
    assert occurs == ["Oil........oil.86.", "..................", "..................", ".........,........"]
    assert visible == "Oil.rises,.oil.86."


def test_all_tokens_of_a_word_share_its_bin():
    tokenizer = load_tokenizer("bytes").tokenizer
    text = TokenText(tokenizer)
    occurs, visible = occurrences(text, ids(" straße über"), ["STRASSE", "ÜBER"])
    written, _ = text.read(ids(" straße über"))
    of_bytes = [character for character in written for _ in character.encode()]
    assert [character for character, hit in zip(of_bytes, occurs[0], strict=True) if hit] == list("straßße")
    assert [character for character, hit in zip(of_bytes, occurs[1], strict=True) if hit] == list("üüber")
    assert visible.tolist() == [character != " " for character in of_bytes]


def test_bins_and_shares_worked_by_hand():
    bins, occurs = bins_of(TokenText(BYTES), [ids("a b"), ids("b")], [["a", "a b"], [None, "c"]])
    assert [BINS[number] for number in bins] == [BINS[i] for i in (IN, SPACE, IN, END, NOT_IN, END)]
    assert occurs.tolist() == [[True] + [False] * 5, [True, False, True, False, False, False]]
    shares = shares_of_types(occurs, bins, np.array([0, 0, 0, 0, 1, 1]), ["title", "date"])
    assert shares["title"]["value"] == 1 / 4 and shares["date"]["value"] == 2 / 4


def test_the_effect_worked_by_hand():
    bins = np.array([IN, NOT_IN, END, IN, NOT_IN, NOT_IN, END], dtype=np.int8)
    articles = np.array([0, 0, 0, 1, 1, 1, 1])
    without = np.array([4.0, 2.0, 1.0, 2.0, 3.0, 3.0, 1.0])
    with_contexts = np.array([1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 1.0])
    effect = cache_effect(bins, articles, with_contexts[None], without[None])
    inside, outside, ends = (effect[BINS[number]] for number in (IN, NOT_IN, END))
    assert (inside["tokens"], outside["tokens"], ends["tokens"]) == (2, 3, 2)
    assert inside["share"]["value"] == 2 / 5 and outside["share"]["value"] == 3 / 5 and ends["share"] is None
    assert (inside["loss_without"], inside["loss_with"]) == (3.0, 1.5)
    assert inside["gain"]["value"] == 1.5 and inside["log_likelihood_gain"]["value"] == 3 / 6
    assert inside["likelihood_gain"]["value"] == pytest.approx(math.exp(1.5) - 1)
    assert outside["log_likelihood_gain"]["value"] == 2 / 8 and ends["gain"]["value"] == -0.5
    assert effect[ALL]["gain"]["value"] == 5 / 5 and effect[ALL]["log_likelihood_gain"]["value"] == 5 / 14
    # Without either article the gain in the bin is 0 or 3: a variance of (1.5² + 1.5²) / 2, and one degree of freedom.
    half = 12.706205 * 1.5
    assert (inside["gain"]["low"], inside["gain"]["high"]) == pytest.approx((1.5 - half, 1.5 + half))
    assert BINS[SPACE] not in effect


def test_seeds_widen_the_interval():
    """Equal seeds leave the interval as it is; those with gains of 1 and 2 add the variance 1/4, of one degree of freedom."""
    bins, articles = np.array([IN, IN, IN, IN], dtype=np.int8), np.array([0, 0, 1, 1])
    without, worse, better = np.full((2, 4), 3.0), np.array([2.0, 2, 2, 2]), np.array([1.0, 1, 1, 1])
    spread = np.array([0.5, 0.0, 0.0, -0.5])
    one = cache_effect(bins, articles, (worse + spread)[None], without[:1])[BINS[IN]]["gain"]
    same = cache_effect(bins, articles, np.stack([worse, worse]) + spread, without)[BINS[IN]]["gain"]
    assert (same["value"], same["low"], same["high"]) == (one["value"], one["low"], one["high"])
    apart = cache_effect(bins, articles, np.stack([worse, better]) + spread, without)[BINS[IN]]["gain"]
    assert apart["value"] == 1.5
    articles, seeds = (((one["high"] - one["value"]) / student_t(1)) ** 2, 1), (0.25, 1)
    half = student_t(joint_freedom([articles, seeds])) * math.sqrt(articles[0] + seeds[0])
    assert apart["high"] == pytest.approx(1.5 + half) and apart["seeds"] == 2


@settings(max_examples=30)
@given(
    st.text("ab ,.", min_size=1, max_size=20), st.lists(st.none() | st.text("ab ,", max_size=8), min_size=1, max_size=3)
)
def test_bins_divide_the_tokens(text, contexts):
    bins, occurs = bins_of(TokenText(BYTES), [ids(text)], [contexts])
    assert len(bins) == len(text) + 1 and bins[-1] == END
    assert [bin == SPACE for bin in bins[:-1]] == [character == " " for character in text]
    assert np.array_equal(bins == IN, occurs.any(axis=0))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache_effect")
    make_corpus(folder)
    model = cue_model(write_text_encoder(folder / "bert"))
    save_model(folder / "cue", model)
    save_model(folder / "lm", model.sentence_encoder)
    return folder


def test_the_effect_in_an_evaluation_is_that_between_two(folder, monkeypatch):
    monkeypatch.chdir(folder)
    corpus = Corpus.open("corpus")
    with_contexts, without = evaluate_sentences("cue", corpus), evaluate_sentences("lm", corpus)
    within = with_contexts.summary["cache_effect"]["bins"]
    between = effect_between([with_contexts], [without])
    assert within.keys() == between.keys() == {*BINS, ALL}
    for name, row in within.items():
        assert row["tokens"] == between[name]["tokens"]
        for key in ("gain", "log_likelihood_gain", "likelihood_gain"):
            assert row[key]["value"] == pytest.approx(between[name][key]["value"], abs=1e-5)
    shares = [within[BINS[number]]["share"]["value"] for number in (IN, NOT_IN, SPACE)]
    assert sum(shares) == pytest.approx(1)
    types = with_contexts.summary["cache_effect"]["types"]
    assert max(share["value"] for share in types.values()) <= shares[0] <= sum(s["value"] for s in types.values())
    gains = [within[BINS[number]] for number in (IN, NOT_IN, SPACE)]
    total = sum(row["gain"]["value"] * row["tokens"] for row in gains)
    assert total == pytest.approx(within[ALL]["gain"]["value"] * within[ALL]["tokens"])


def test_what_is_not_of_the_same_sentences_is_refused(folder, monkeypatch):
    monkeypatch.chdir(folder)
    corpus = Corpus.open("corpus")
    cue, lm = evaluate_sentences("cue", corpus), evaluate_sentences("lm", corpus)
    with pytest.raises(DataError, match="has no contexts"):
        effect_between([lm], [cue])
    with pytest.raises(DataError, match="are not of the same sentences"):
        effect_between([cue], [evaluate_model("lm", corpus)])
    fewer = evaluate_sentences("lm", corpus, limit=3, out=Path("fewer"))
    with pytest.raises(DataError, match="are not of the same sentences"):
        effect_between([cue], [fewer])
