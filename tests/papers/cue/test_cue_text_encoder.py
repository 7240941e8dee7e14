"""A text encoder that is trained as a part of the context encoder (CUE, Table 4, "No DistilBERT")."""

import numpy as np
import pytest
import torch
from transformers import AutoModel

from contextwise.base.errors import CheckpointError, ConfigError
from contextwise.base.runs import RunFolder
from contextwise.data import Corpus
from contextwise.evaluation.kernel import Subject, measure
from contextwise.models import load_model
from contextwise.models.loading import load_config, load_tokenizer
from contextwise.models.spec import matrix_weights, pretraining_losses, training_flops_per_example
from contextwise.training import train
from contextwise.training.batches import collate
from contextwise.training.inputs import TrainingInputs
from contextwise.training.model import starting_model
from contextwise.training.parameters import modules_of
from contextwise_papers.cue.contexts import open_text_encoder
from contextwise_papers.cue.encoding import TextEncoder
from contextwise_papers.cue.parts import CueContextEncoder
from contextwise_papers.cue.sentences import SentenceLoss
from contextwise_papers.cue.settings import TRAINED
from cue_runs import Runs, part, recipe, same

pytestmark = pytest.mark.long

TEXT = "text_model."


@pytest.fixture(scope="module")
def mine(life, tmp_path_factory):
    """Runs of the stages joint, adapt and swap, in a folder of their own, with a trained text encoder."""
    runs = Runs(tmp_path_factory.mktemp("trained"), life.corpus, f"trained:{life.encoder}:2x8")
    for name in ("lm", "lstm"):
        (runs.folder / name).symlink_to(life.folder / name)
    for stage in ("joint", "adapt", "swap"):
        train(recipe(runs.stage(stage)))
    return runs


def text_weights(run):
    return {name: value for name, value in part(run, "context_encoder").items() if name.startswith(TEXT)}


def test_its_gradient_reaches_it_and_it_moves_in_the_joint_stage_alone(mine):
    settings = recipe(mine.stage("joint"))
    inputs = TrainingInputs.open(settings)
    torch.manual_seed(0)
    model = starting_model(settings, inputs.config)
    items = [inputs.stream[i] for i in range(4)]
    assert items[0]["contexts"].dtype == torch.int32 and items[0]["contexts"].shape[1] <= 32
    empty = collate(items) | {"context_mask": torch.zeros(4, 4, dtype=torch.bool)}
    for batch in (collate(items), empty):  # DDP waits for every gradient, also without a single context
        model.zero_grad()
        pretraining_losses(model, batch).minimised().backward()
        assert not [name for name, value in model.text_encoder.named_parameters() if value.grad is None]
    model.zero_grad()
    pretraining_losses(model, collate(items)).minimised().backward()
    words = model.text_encoder.get_input_embeddings().weight.grad.abs().sum(1)
    read = torch.stack([item["contexts"] for item in items])[torch.stack([item["context_mask"] for item in items])]
    assert set(words.nonzero()[:, 0].tolist()) == set(read[read >= 0].tolist())
    start = {name.partition(TEXT)[2]: value for name, value in model.context_encoder.state_dict().items()}
    ended = text_weights(mine.folder / "joint")
    assert not any(torch.equal(value, start[name.removeprefix(TEXT)]) for name, value in ended.items() if "bias" in name
                   and "key" not in name)  # fmt: skip
    for stage in ("adapt", "swap"):
        assert same(text_weights(mine.folder / stage), ended)
    assert not same(part(mine.folder / "adapt", "context_encoder"), part(mine.folder / "joint", "context_encoder"))
    trained = RunFolder(mine.folder / "adapt").summary()["trained_parameters"]
    whole = load_model(mine.folder / "adapt").context_encoder
    assert trained == sum(p.numel() for p in whole.parameters()) - sum(p.numel() for p in whole.text_model.parameters())


def test_tokens_in_the_model_give_the_vectors_of_the_encoder_alone(mine):
    model = load_model(mine.folder / "joint")
    encoder = open_text_encoder(model, "a run")
    texts = ["Rain fell.", "x", "0123456789" * 5]
    stored = AutoModel.from_pretrained(mine.folder / "joint" / "parts" / "context_encoder")
    assert isinstance(stored, CueContextEncoder)
    again = open_text_encoder(stored, "its part")
    np.testing.assert_array_equal(again.encode(texts), encoder.encode(texts))
    assert again.digest == encoder.digest != open_text_encoder(load_model(mine.folder / "joint"), "").about()["digest"]
    ids = torch.full((1, 4, 40), -100)
    for row, tokens in enumerate(encoder.tokens(texts)):
        ids[0, row, : len(tokens)] = torch.tensor(tokens)
    mask = torch.tensor([[True, True, True, False]])
    vectors = torch.zeros(1, 4, 8)
    vectors[0, :3] = torch.from_numpy(encoder.encode(texts))
    with torch.no_grad():
        torch.testing.assert_close(model.cue_vectors(ids, mask), model.cue_vectors(vectors, mask), atol=1e-5, rtol=1e-4)
        assert not torch.allclose(model.cue_vectors(ids, mask), model.cue_vectors(ids.flip(1), mask.flip(1))[:, :1])


def test_a_loaded_model_is_trained_on_with_it_after_a_measurement(mine, tmp_path):
    model = load_model(mine.folder / "joint", device="cpu").train()

    def state():
        modes = {name: module.training for name, module in model.named_modules()}
        return modes, {name: weight.requires_grad for name, weight in model.named_parameters()}

    before = state()
    subject = Subject(model, tokenizer=load_tokenizer(mine.folder / "joint"))
    measure(subject, SentenceLoss(limit=4), Corpus.open(mine.corpus, split="validation"), out=tmp_path / "result")
    assert state() == before and any(weight.requires_grad for weight in model.text_encoder.parameters())
    open_text_encoder(model, "a run")
    assert any(weight.requires_grad for weight in model.text_encoder.parameters())


@pytest.mark.parametrize("stage", ["joint", "adapt", "swap"])
def test_it_is_exported_and_a_measurement_has_the_validation_loss(mine, stage):
    run = RunFolder(mine.folder / stage)
    held_out = Corpus.open(mine.corpus, split="validation")
    result = measure(run.path, SentenceLoss(), held_out)
    stream = TrainingInputs.open(recipe(mine.stage(stage))).validation["loss"]
    model, batch = load_model(run.path), collate([stream[i] for i in range(len(stream))])
    with torch.no_grad():
        losses = pretraining_losses(model, batch)
    assert float(losses.minimised()) == pytest.approx(run.summary()["validation_loss"], abs=1e-4)
    without = measure(run.path, SentenceLoss(contexts=[]), held_out)
    assert not np.allclose(result.documents["nats"], without.documents["nats"], atol=1e-5)
    assert batch["contexts"].dtype == (torch.int32 if stage == "joint" else torch.float32)


def test_it_is_counted(mine):
    modules = {module.name: module for module in modules_of(str(mine.folder / "joint"))[1]}
    text = load_model(mine.folder / "joint").text_encoder
    assert modules["text encoder"].parameters == modules["text encoder"].trained
    assert modules["text encoder"].parameters == sum(p.numel() for p in text.parameters())
    assert modules["text encoder"].stages == ["joint"]
    config = load_config(mine.folder / "joint")
    without = {name: TRAINED[name] for name in TRAINED} | {"frozen": ("decoder", "context_encoder")}
    costs = {name: training_flops_per_example(config, 10, 0, parts) for name, parts in without.items()}
    per_token = 2 * matrix_weights(text) + 4 * 2 * 8 * 32
    assert costs["joint"] - costs["frozen"] == pytest.approx(3 * 4 * 32 * per_token)


def test_what_cannot_be_is_refused(life, mine):
    with pytest.raises(
        ConfigError, match=r"model.cue.text_encoder is .*trained:.*the stage adapt trains no text encoder"
    ):
        recipe(mine.stage("adapt", text_encoder="trained:x"))
    with pytest.raises(ConfigError, match="size 1x5, but needs a layer or more, and a width that its heads of 8"):
        TextEncoder.open(f"trained:{life.encoder}:1x5", "mean")
    with pytest.raises(ConfigError, match="of type 'gpt2'; train an encoder"):
        TextEncoder.open(f"trained:{life.folder / 'lm'}", "mean")
    with pytest.raises(CheckpointError, match="is not the one that the context encoder was trained with: width 16"):
        TrainingInputs.open(recipe(mine.stage("adapt", text_encoder=life.encoder)))
