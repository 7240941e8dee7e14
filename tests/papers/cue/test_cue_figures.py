"""CUE's attention, clusters, cache effect and counts: hand-worked numbers, claims, and the items that ship."""

import random
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from contextwise.base.errors import ConfigError, DataError
from contextwise.training.parameters import Module
from contextwise_papers.cue.figure_3_attention import most_weight, relative_weights, same_order
from contextwise_papers.cue.figure_6_clusters import clustered, likeness, likeness_claim, salient_words, word_vectors
from contextwise_papers.cue.runs import HeldOut, some
from contextwise_papers.cue.section_7_cache import bins_table, cache_claims, types_table
from contextwise_papers.cue.tables_1_2_counts import ModuleCounts, module_claims, no_article_twice
from contextwise_papers.item import measure_at
from sentence_models import WORDS
from shipped import ALL_ITEMS, an_item

ITEMS = {name: item for name, item in ALL_ITEMS.items() if name.startswith("cue/")}


# Attention


def held_out(types, articles):
    return HeldOut(types, np.array(articles), [], None)


def test_relative_weights_are_means_over_the_sentences_that_have_a_context():
    weights = np.array([[0.5, 0.3, 0.2, 0], [0.8, 0, 0.2, 0], [0, 0, 1, 0]])
    present = np.array([[True, True, True, False], [True, False, True, False], [False, False, True, False]])
    result = relative_weights(weights, present)
    # First context: (0.5 * 3 + 0.8 * 2) / 2; second: 0.3 * 3; third: (0.2 * 3 + 0.2 * 2 + 1 * 1) / 3.
    assert result[:3] == pytest.approx([1.55, 0.9, 2 / 3])
    assert np.isnan(result[3])


@pytest.mark.parametrize(("weight", "holds"), [(0.6, True), (0.2, False), (None, None)])
def test_whether_the_previous_sentence_has_the_most_weight(weight, holds):
    """In 40 articles; None: by 0.4 one way in half of them, and by 0.4 the other way in the others."""
    own = np.full(80, weight) if weight is not None else np.where(np.arange(80) // 2 % 2, 0.6, 1 / 15)
    weights = np.stack([(1 - own) / 2, (1 - own) / 2, own], 1)
    present = np.ones((80, 3), bool)
    claim = most_weight(weights[None], present, held_out(["title", "date", "previous_sentence"], np.arange(80) // 2))
    assert claim.holds is holds


def test_what_decides_on_the_previous_sentence_in_thirty_articles():
    def claim(weights_SNK, *types, present=None):
        present = np.ones(weights_SNK.shape[1:], bool) if present is None else present
        return most_weight(weights_SNK, present, held_out([*types, "previous_sentence"], np.arange(30)))

    ahead = np.tile([0.3, 0.7], (30, 1))
    # A rival ahead with one seed and behind with another, by the same amount, though no sentence differs.
    assert claim(np.stack([ahead, ahead[:, ::-1]]), "title").holds is None
    assert claim(np.stack([ahead, ahead]), "title").holds is True
    rivals = np.tile([0.5, 0.1, 0.4], (30, 1)) + np.random.default_rng(0).normal(0, 1e-3, (30, 3))
    strongest = claim(rivals[None], "a", "b")
    assert strongest.holds is False and "that of a, its strongest rival, −0.1" in strongest.evidence
    only = np.tile([True, False], (30, 1))  # a first sentence says nothing of the previous one
    assert claim(1.0 * only[None], "title", present=only).holds is None


def test_the_order_of_weights_and_gains():
    weights = {name: i for i, name in enumerate("abcdef")}
    assert same_order([weights], {name: i**2 for i, name in enumerate("abcdef")}, "x").holds is True
    assert same_order([weights], {name: -i for i, name in enumerate("abcdef")}, "x").holds is False
    assert same_order([weights], dict(zip("abcdef", [2, 0, 1, 5, 3, 0.5], strict=True)), "x").holds is None
    assert same_order([weights], dict.fromkeys("abcdef", 1), "x").holds is None
    gains, reversed_ = {name: i**2 for name, i in weights.items()}, {name: -i for name, i in weights.items()}
    assert same_order([weights, weights], gains, "x").holds is True
    assert same_order([weights, reversed_], gains, "x").holds is None  # the seeds do not agree
    three = same_order([{"a": 2.0, "b": 0.5, "c": 1.0}] * 3, {"a": 0.3, "b": 0.1, "c": 0.2}, "x")
    assert three.holds is None and "+1.00 (one-sided p 0.167)" in three.evidence  # one of six orders
    four = same_order([dict(zip("abcd", range(4), strict=True))], dict(zip("abcd", range(4), strict=True)), "x")
    assert four.holds is True and "(one-sided p 0.042)" in four.evidence
    against = same_order([{"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}], {"a": 4.0, "b": 3.0, "c": 1.0, "d": 2.0}, "x")
    assert against.holds is None  # -0.80, which 4 of 24 orders have or less
    missing = same_order([weights], {}, "figure5")
    assert missing.holds is None
    assert "figure5 has not been run" in missing.evidence
    assert same_order([weights], {"a": 1, "b": 2}, "x").holds is None


# Clusters


def test_likeness_is_the_mean_cosine_of_pairs():
    draw = np.random.default_rng(0)
    vectors = sparse.csr_matrix(draw.random((12, 7)) * (draw.random((12, 7)) < 0.5))
    labels = draw.integers(0, 3, 12)
    result = likeness(vectors, labels, 99)
    products = (vectors @ vectors.T).toarray()
    same = labels[:, None] == labels
    own = ~np.eye(12, dtype=bool)
    assert result.within == pytest.approx(products[same & own].mean())
    assert result.between == pytest.approx(products[~same].mean())


def test_likeness_of_topics_and_of_nothing():
    draw = random.Random(0)
    topics = [WORDS[:6], WORDS[7:13]]
    labels = np.repeat([0, 1], 20)
    texts = [" ".join(draw.choices(topics[label], k=8)) for label in labels]
    alike = likeness(word_vectors(texts), labels, 199)
    assert alike.p == 1 / 200
    assert likeness_claim([alike]).holds is True
    mixed = likeness(word_vectors(texts), np.tile([0, 1], 20), 199)
    assert likeness_claim([mixed]).holds is not True
    opposite = likeness(word_vectors(["oil", "grain"] * 2), np.array([0, 0, 1, 1]), 99)
    assert (opposite.within, opposite.between) == pytest.approx((0, 0.5))
    assert likeness_claim([opposite]).holds is False
    assert likeness_claim([alike, alike]).holds is True and likeness_claim([alike, opposite]).holds is None


@pytest.mark.parametrize(
    ("texts", "labels", "words"),
    [
        (["oil price", "grain", "bank"], [0, 0, 0], "all articles are in one"),
        (["oil price", "grain", "bank"], [0, 1, 2], "no cluster has two"),
        (["12 34", "the of"], [0, 0], "no words to compare"),
    ],
)
def test_texts_that_cannot_be_compared_are_refused(texts, labels, words):
    with pytest.raises(DataError, match=words):
        likeness(word_vectors(texts), np.array(labels), 99)


def test_salient_words_are_those_of_few_clusters():
    texts = ["oil oil price", "oil price barrels", "grain price", "bank price", "price"]
    result = salient_words(texts, np.array([0, 0, 1, 2, 3]), 2)
    assert result == [["oil", "barrels"], ["grain"], ["bank"], []]
    assert salient_words(["price", "price"], np.array([0, 1]), 2) == [[], []]


def test_clusters_are_found_and_the_largest_comes_first():
    true = np.repeat([0, 1, 2], [5, 20, 10])
    vectors = np.random.default_rng(0).normal(size=(35, 5)) + 50.0 * true[:, None]
    assert clustered(vectors, 3).tolist() == [2] * 5 + [0] * 20 + [1] * 10


def test_some_numbers_are_drawn_once_and_in_order():
    assert some(np.arange(5), 9).tolist() == [0, 1, 2, 3, 4]
    drawn = some(np.arange(100, 200), 10)
    assert len(set(drawn.tolist())) == 10
    assert (np.diff(drawn) > 0).all()
    assert some(np.arange(100, 200), 10).tolist() == drawn.tolist()


# Cache


def gain(value, half=0.01):
    ends = {"low": None, "high": None} if half is None else {"low": value - half, "high": value + half}
    return {"value": value, **ends}


def effect(inside, outside, half=0.01):
    return {
        name: {
            "share": gain(0.5),
            "gain": gain(value, half),
            "likelihood_gain": gain(value),
            "log_likelihood_gain": gain(value),
        }
        for name, value in (("in contexts", inside), ("not in contexts", outside))
    }


@pytest.mark.parametrize(
    ("inside", "outside", "half", "verdicts"),
    [
        (0.5, 0.2, 0.01, [True, True]),
        (0.2, 0.5, 0.01, [False, True]),
        (0.2, -0.5, 0.01, [True, False]),
        (0.2, 0.21, 0.01, [None, True]),
        (0.5, 0.0, 0.01, [True, None]),
        (0.5, 0.2, None, [None, None]),
    ],
)
def test_the_claims_of_the_cache(inside, outside, half, verdicts):
    assert [claim.holds for claim in cache_claims(effect(inside, outside, half), "a model")] == verdicts


def test_a_bin_without_tokens_tells_nothing():
    only = {"in contexts": effect(0.5, 0.2)["in contexts"]}
    claims = cache_claims(only, "a model")
    assert [claim.holds for claim in claims] == [None, None]
    assert "no token is not in contexts" in claims[0].evidence


def test_the_tables_of_the_cache_have_the_printed_figures_beside_ours():
    printed = {"shares": {"in contexts": 0.3}, "gains": {"not in contexts": 0.26}}
    rows = bins_table("", effect(0.5, 0.2), printed).rows
    assert rows[0] == [
        "in contexts", "50.0%", "30%", "+0.500 [+0.490, +0.510]", "+50.0% [+49.0%, +51.0%]",
        "+50.0%", "",
    ]  # fmt: skip
    assert rows[1][-1] == "26%"
    types = types_table({"date": gain(0.1, None), "title": gain(0.2, None)}, {"title": 0.09})
    assert types.rows == [["title", "20.0%", "9%"], ["date", "10.0%", ""]]


# Counts

PRINTED = {
    "sentence encoder": [24.5, "N", "N"],
    "text encoder": [65, "N", "N"],
    "decoder": [40, "Y", "N"],
    "context encoder": [6.6, "Y", "Y"],
    "total": [136, "-", "-"],
}


def modules(trained, **changes):
    counts = {name: int(values[0] * 1e6) for name, values in PRINTED.items() if name != "total"} | changes
    return [Module(name, count, count if name in trained else 0) for name, count in counts.items()]


def test_the_claims_of_the_modules():
    joint, adapted = modules(("decoder", "context encoder")), modules(("context encoder",))
    assert [claim.holds for claim in module_claims(joint, adapted, PRINTED, 0.03)] == [True] * 3
    assert [claim.holds for claim in module_claims(joint, adapted, PRINTED, None)] == [True]
    large = modules(("decoder", "context encoder"), **{"context encoder": 10_000_000})
    result = module_claims(large, adapted, PRINTED, 0.03)
    assert [claim.holds for claim in result] == [False, False, True]
    assert "context encoder, +51.5%" in result[0].evidence
    wrong = module_claims(joint, joint, PRINTED, 0.03)[-1]
    assert wrong.holds is False
    assert wrong.evidence == "differs: decoder in adaptation"
    # A module that is not there does not pass.
    joint = [module for module in modules(("decoder", "context encoder")) if module.name != "text encoder"]
    assert module_claims(joint, joint, PRINTED, 0.03)[0].holds is False


def test_an_article_in_two_splits_is_seen():
    assert no_article_twice({"train": ["a", "b"], "test": ["c"]}).holds is True
    result = no_article_twice({"train": ["a", "b"], "adapt": ["d"], "test": ["c", "b"]})
    assert result.holds is False
    assert result.evidence == "1 in train and test"


# The shipped items


def test_the_items_that_share_runs_say_the_same_of_them():
    """One name, one folder: their templates and runs must be those of Table 3."""
    table = ITEMS["cue/table3"]
    for name in ("figure3", "figure6", "cache"):
        for scale in ("tiny", "gpu"):
            own, theirs = ITEMS[f"cue/{name}"].scales[scale].settings, table.scales[scale].settings
            assert own["name"] == theirs["name"]
            assert own["corpus"] == theirs["corpus"]
            assert own["templates"].items() <= theirs["templates"].items()
            shared = own["runs"].keys() & theirs["runs"].keys()
            assert shared >= {"sentence LM"} | ({"both"} if name != "figure3" else set())
            assert all(own["runs"][run] == theirs["runs"][run] for run in shared)
    limits = [ITEMS[f"cue/{name}"].scales["tiny"].settings["limit_documents"] for name in ("cache", "table3")]
    assert limits[0] == limits[1]


def test_table_1_at_the_size_of_the_paper(tmp_path, monkeypatch):
    measure = measure_at(ITEMS["cue/table1"], "paper")
    assert measure.recipes(tmp_path) == []
    outcome = measure.measure(ITEMS["cue/table1"], tmp_path)
    assert [claim.holds for claim in outcome.claims] == [True] * 3
    assert outcome.figures["total"] == pytest.approx(136e6, rel=0.01)


def test_a_recipe_that_is_not_there_is_named():
    with pytest.raises(ConfigError, match=r"there is no file .*cue/none\.yaml"):
        ModuleCounts(joint="cue/none.yaml").measure(an_item(), Path())
