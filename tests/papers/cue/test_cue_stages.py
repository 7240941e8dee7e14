"""The stages of a CUE model: what is trained, what stays bit for bit, and which files a run writes."""

import pickle

import pytest
import torch
import yaml
from transformers import AutoModel, AutoModelForCausalLM, set_seed

from contextwise.base.runs import RunFolder
from contextwise.data import Corpus
from contextwise.models import load_model
from contextwise.models.building import parameter_count
from contextwise.models.export import export_model_folder
from contextwise.models.loading import load_config
from contextwise.objectives import Cut, Vocabulary, build_objective
from contextwise.training import train
from contextwise.training.export import model_card
from contextwise.training.inputs import TrainingInputs
from contextwise.training.model import starting_model
from contextwise_papers.cue import CueConfig, CueForCausalLM
from contextwise_papers.cue.contexts import ContextTexts
from contextwise_papers.cue.encoding import TextEncoder
from cue_runs import CONTEXTS, part, recipe, same, weights


@pytest.mark.parametrize(
    ("stage", "kept", "trained"),
    [
        ("joint", {"sentence_encoder": "lm"}, {"decoder", "context_encoder"}),
        ("adapt", {"sentence_encoder": "joint", "decoder": "joint"}, {"context_encoder"}),
        ("proxy", {"sentence_encoder": "lm"}, {"decoder", "proxy"}),
        ("adapt_proxy", {"sentence_encoder": "proxy", "decoder": "proxy"}, {"context_encoder"}),
        ("swap", {"sentence_encoder": "lstm", "context_encoder": "joint"}, {"decoder"}),
    ],
)
def test_what_is_frozen_stays_bit_for_bit_and_what_is_trained_moves(life, stage, kept, trained):
    for name, source in kept.items():
        assert same(part(life.folder / stage, name), part(life.folder / source, name)), name
    settings = recipe(life.stage(stage))
    task = TrainingInputs.open(settings)
    set_seed(settings.seed)
    start = starting_model(settings, task.config)
    began = start.state_dict()
    ended = load_model(life.folder / stage).state_dict()
    moved = {name.partition(".")[0] for name in began if not torch.equal(began[name], ended[name])}
    assert moved == trained
    marked = {name.partition(".")[0] for name, value in start.named_parameters() if value.requires_grad}
    assert marked == trained
    # Weight decay alone, which biases have none of, does not do it.
    biases = {n.partition(".")[0] for n in began if n.endswith("bias") and not torch.equal(began[n], ended[n])}
    assert biases == trained
    summary = RunFolder(life.folder / stage).summary()
    assert summary["trained_parameters"] == sum(p.numel() for p in start.parameters() if p.requires_grad)
    assert summary["parameters"] == parameter_count(task.config)


def test_the_autoencoder_of_a_proxy_stays_bit_for_bit(life):
    result = part(life.folder / "proxy", "proxy")
    frozen = {key.removeprefix("autoencoder."): v for key, v in result.items() if key.startswith("autoencoder.")}
    assert same(frozen, weights(life.folder / "unigrams"))


def test_the_whole_model_and_each_part_open_by_themselves(life):
    whole = AutoModelForCausalLM.from_pretrained(life.folder / "joint" / "model")
    assert isinstance(whole, CueForCausalLM)
    parts = life.folder / "joint" / "parts"
    assert {path.name for path in parts.iterdir()} == {"sentence_encoder", "context_encoder", "decoder"}
    for name in ("context_encoder", "decoder"):
        alone = AutoModel.from_pretrained(parts / name)
        assert same(alone.state_dict(), getattr(whole, name).state_dict())
    sentence = AutoModelForCausalLM.from_pretrained(parts / "sentence_encoder")
    assert same(sentence.state_dict(), whole.sentence_encoder.state_dict())


def test_a_part_serves_as_a_sentence_encoder_again(life, tmp_path):
    source = str(life.folder / "joint" / "parts" / "sentence_encoder")
    run = train(recipe(life.stage("joint", sentence_encoder=source) | {"output": str(tmp_path / "again")}))
    assert same(weights(run.path), weights(life.folder / "joint"))


def test_a_context_encoder_says_what_it_was_trained_with(life, text_encoder):
    config = load_config(life.folder / "adapt").context_encoder
    assert config.contexts == {"columns": ["tags"], "previous_sentence": True}
    assert config.text_encoder["name"] == text_encoder
    assert config.text_encoder["digest"] == TextEncoder.open(text_encoder, "mean").digest
    assert load_config(life.folder / "swap").context_encoder.contexts == CONTEXTS


def test_a_swapped_model_says_which_contexts_its_decoder_was_trained_with(life):
    others = {"columns": ["tags"], "previous_sentence": False}
    values = life.stage("swap")
    values["data"]["contexts"] = others
    assert TrainingInputs.open(recipe(values)).config.context_encoder.contexts == others


def test_contexts_are_withheld_from_a_new_decoder_only_where_its_stage_says_so(life, tmp_path):
    joint = train(recipe(life.stage("joint", context_dropout=0.5) | {"output": str(tmp_path / "joint")}))
    for dropout in (0.0, 0.25):
        given = {"context_dropout": dropout} if dropout else {}
        config = TrainingInputs.open(recipe(life.stage("swap", start=str(joint.path), **given))).config
        assert config.context_encoder.context_dropout == dropout


def examples_of(life):
    """All validation sentences, whole, with contexts computed anew."""
    held_out = Corpus.open(life.corpus, "validation")
    vocabulary = Vocabulary(held_out.tokenizer(), held_out.end_of_text)
    examples = build_objective("sentence").examples(held_out, Cut(32), 0, vocabulary)
    return examples, ContextTexts(examples.sentences, recipe(life.stage("joint")).data.contexts.types)


def test_the_validation_loss_is_what_the_exported_model_gives(life):
    """Sentence by sentence, uncached, untrimmed, by transformers' own forward pass."""
    trained = RunFolder(life.folder / "joint")
    examples, texts = examples_of(life)
    stream = TrainingInputs.open(recipe(life.stage("joint"))).validation["loss"]
    encoder = TextEncoder.open(life.encoder, "mean")
    model = load_model(trained.path)
    total = count = 0.0
    for i in range(len(stream)):
        number = int(stream[i]["window"])
        example = examples.example(0, number)
        known = [text for text in texts.of(number) if text is not None]
        contexts = torch.from_numpy(encoder.encode(known))[None]
        with torch.no_grad():
            logits = model(input_ids=example["input_ids"][None], contexts=contexts).logits[0]
        kept = example["labels"] >= 0
        total -= logits.log_softmax(-1)[kept].gather(1, example["labels"][kept][:, None]).sum().item()
        count += kept.sum().item()
    assert trained.summary()["validation_loss"] == pytest.approx(total / count, abs=1e-5)


def test_contexts_and_sentences_that_were_cut_are_counted(life):
    facts = RunFolder(life.folder / "joint").summary()["sentences"]["train"]
    assert facts["contexts_truncated"] > 0  # previous sentences of more than 40 bytes
    assert 0.2 < facts["contexts_missing"]["tags"] < 0.5
    assert facts["contexts_missing"]["title"] == 0
    assert (
        0
        < facts["sentences_cut"]
        == sum(len(tokens) >= 32 for tokens in all_sentences(Corpus.open(life.corpus, "train")))
    )


def all_sentences(corpus):
    vocabulary = Vocabulary(corpus.tokenizer(), corpus.end_of_text)
    index = build_objective("sentence").examples(corpus, Cut(32), 0, vocabulary).sentences
    for number in range(len(index)):
        document, sentence = index.place(number)
        yield index.read(document, sentence, sentence + 1)


def test_a_joint_stage_without_contexts_is_the_control(life, tmp_path):
    values = life.stage("joint") | {"output": str(tmp_path / "control")}
    del values["data"]["contexts"]
    for name in ("text_encoder", "pooling"):
        del values["model"]["cue"][name]
    run = train(recipe(values))
    config = load_config(run.path)
    assert isinstance(config, CueConfig) and config.context_encoder is None
    assert same(part(run.path, "sentence_encoder"), part(life.folder / "lm", "sentence_encoder"))


def test_a_decoder_that_concatenates_starts_as_the_sentence_model(life):
    values = life.stage("joint", decoder="concatenate", decoder_layers=None, decoder_heads=None)
    values["model"]["cue"] = {k: v for k, v in values["model"]["cue"].items() if v is not None}
    one = recipe(values)
    model = starting_model(one, TrainingInputs.open(one).config)
    ids, contexts = torch.randint(0, 300, (3, 7)), torch.randn(3, 4, 16)
    with torch.no_grad():
        expected = model.sentence_encoder(ids).logits
        assert torch.allclose(model(ids, contexts=contexts).logits, expected, atol=1e-5)


def test_the_decoders_head_starts_as_the_sentence_encoders_unless_drawn_anew(life):
    result = {}
    for head in ("sentence_encoder", "random"):
        one = recipe(life.stage("joint", head=head))
        model = starting_model(one, TrainingInputs.open(one).config)
        result[head] = torch.equal(model.decoder.lm_head.weight, model.sentence_encoder.get_output_embeddings().weight)
        assert model.decoder.lm_head.weight.requires_grad
    assert result == {"sentence_encoder": True, "random": False}


def test_a_unigram_autoencoders_loss_is_a_mean_over_sentences(life):
    """Of the exported model, sentence by sentence."""
    run = RunFolder(life.folder / "unigrams")
    stream = TrainingInputs.open(recipe(life.sentence_models()[2])).validation["loss"]
    model = AutoModel.from_pretrained(run.model).eval()
    with torch.no_grad():
        losses = [model(labels=stream[i]["labels"][None]).loss.item() for i in range(len(stream))]
    assert run.summary()["validation_loss"] == pytest.approx(sum(losses) / len(losses), abs=1e-5)
    assert run.summary()["target_tokens"] == 4 * 8  # sentences
    rows = run.metrics("train")
    assert 0.5 < rows[0]["loss"] / losses[0] < 2  # nats a sentence, not a token


def test_examples_with_additions_can_be_loaded_by_processes_that_are_not_forked(life):
    for values in (life.sentence_models()[2], life.stage("proxy"), life.stage("joint")):
        stream = TrainingInputs.open(recipe(values)).stream
        sent = pickle.loads(pickle.dumps(stream))
        for index in (0, 5):
            ours, theirs = stream[index], sent[index]
            assert ours.keys() == theirs.keys()
            assert all(torch.equal(torch.as_tensor(ours[name]), torch.as_tensor(theirs[name])) for name in ours)


def shown(card):
    """The Python of a card, run; gives its names."""
    names: dict = {}
    exec(card.partition("```python\n")[2].partition("```")[0], names)
    return names


def test_the_card_of_a_run_shows_how_contexts_are_given(life, tmp_path, monkeypatch):
    card = model_card(RunFolder(life.folder / "joint"), standalone=False)
    assert yaml.safe_load(card.partition("```yaml\n")[2].partition("```")[0])["model"]["cue"]["text_encoder"] == "bert"
    export_model_folder(life.folder / "joint", tmp_path / "joint")
    (tmp_path / "joint" / "bert").symlink_to(life.encoder)
    monkeypatch.chdir(tmp_path / "joint")
    names = shown(card)
    assert names["logits"].shape == (*names["tokens"].shape, names["model"].config.vocab_size)
    bare = names["model"](names["tokens"]).logits
    assert names["contexts"].shape == (1, 2, 16) and not torch.equal(names["logits"], bare)
    assert "TextEncoder" not in model_card(RunFolder(life.folder / "proxy"), standalone=False)
