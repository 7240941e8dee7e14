"""The models of the parity task: shapes, what they can see, files."""

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

from contextwise.base.errors import ConfigError
from contextwise.models import build_model
from contextwise.models.building import parameter_count
from contextwise.models.spec import pretraining_losses, training_flops_per_example
from contextwise_papers.intrinsic_entropy.parity import (
    ParityMLP,
    ParityMLPConfig,
    ParityTransformer,
    ParityTransformerConfig,
)
from contextwise_papers.intrinsic_entropy.synthetic import MASK, ParityData
from contextwise_papers.intrinsic_entropy.synthetic.samples import Samples

DATA = ParityData(bits=12, tasks=18, first=4, shortest=3)
CONFIGS = [
    ParityTransformerConfig(12, 18, hidden_size=32, num_hidden_layers=2, num_attention_heads=2),
    ParityMLPConfig(12, 18, feature_size=20, width=32),
]
both = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.model_type)


@pytest.fixture
def batch():
    return Samples(DATA, 0).batch(np.arange(16))


def test_the_transformer_has_the_printed_shape():
    config = ParityTransformerConfig()
    model = ParityTransformer(config)
    layers = model.backbone.layers
    assert len(layers) == 3
    assert layers[0].mlp.dense_h_to_4h.weight.shape == (832, 208)
    assert model.backbone.embed_in.weight.shape == (103, 208)
    rotation = model.backbone.rotary_emb.inv_freq
    width = 208 // config.num_attention_heads
    assert torch.allclose(rotation, 4000.0 ** -(torch.arange(0, width, 2) / width))
    assert parameter_count(config) == 3 * (12 * 208**2 + 13 * 208) + 2 * 208 + 103 * 208 + 2 * 208


def test_the_mlp_joins_an_80_wide_feature_with_the_task():
    model = ParityMLP(ParityMLPConfig(width=64))
    assert model.feature.weight.shape == (80, 64)
    assert model.output[0].weight.shape == (64, 80 + 50)


@both
def test_the_loss_is_the_cross_entropy_of_the_answer_in_nats(config, batch):
    torch.manual_seed(0)
    model = build_model(config).eval()
    out = model(batch["input_ids"], labels=batch["labels"])
    assert out.logits.shape == (16, 2)
    log_p = out.logits.double() - out.logits.double().exp().sum(1, keepdim=True).log()
    expected = -log_p.gather(1, batch["labels"]).mean()
    assert out.loss.item() == pytest.approx(expected.item(), rel=1e-5)
    losses = pretraining_losses(model, {"input_ids": batch["input_ids"], "labels": batch["labels"]})
    assert losses.counts.tolist() == [16]
    assert losses.minimised().item() == pytest.approx(expected.item(), rel=1e-5)


@both
def test_masked_bits_do_not_matter(config):
    model = build_model(config).eval()
    samples = Samples(DATA, 0)
    drawn = samples.draw(np.arange(8))
    shown = samples.batch(np.arange(8), visible=5)["input_ids"]
    assert (shown[:, 5:12] == MASK).all()
    flipped = drawn.bits.copy()
    flipped[:, 5:] ^= 1
    samples.draw = lambda numbers: drawn._replace(bits=flipped)
    assert torch.equal(model(shown).logits, model(samples.batch(np.arange(8), visible=5)["input_ids"]).logits)
    # The mask is no bit: showing any one of the hidden bits changes what the model says.
    for token in (0, 1):
        other = shown.clone()
        other[:, 8] = token
        assert not torch.equal(model(shown).logits, model(other).logits)


def test_the_transformer_is_causal():
    model = build_model(CONFIGS[0]).eval()
    ids = Samples(DATA, 0).batch(np.arange(4))["input_ids"]
    changed = ids.clone()
    changed[:, 7] = 1 - changed[:, 7].clamp(max=1)
    one, other = (model.backbone(input_ids=x).last_hidden_state for x in (ids, changed))
    assert torch.allclose(one[:, :7], other[:, :7], atol=1e-6)
    assert not torch.allclose(one[:, 7:], other[:, 7:], atol=1e-3)


def test_the_context_feature_of_the_mlp_does_not_depend_on_the_task(batch):
    model = build_model(CONFIGS[1]).eval()
    other = batch["input_ids"].clone()
    other[:, -1] = 3
    assert model.context_feature(other).shape == (16, 20)
    assert torch.equal(model.context_feature(batch["input_ids"]), model.context_feature(other))
    assert not torch.equal(model(batch["input_ids"]).logits, model(other).logits)


@both
def test_saved_and_loaded_it_is_the_same(config, batch, tmp_path):
    torch.manual_seed(1)
    model = build_model(config).eval()
    model.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").exists()
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    assert type(again) is type(model)
    assert AutoConfig.from_pretrained(tmp_path).to_dict()["bits"] == 12
    assert torch.equal(model(batch["input_ids"]).logits, again(batch["input_ids"]).logits)


def test_operations_of_the_mlp_are_six_for_each_of_its_weights():
    config = CONFIGS[1]
    weights = 12 * 32 + 32 * 20 + (20 + 18) * 32 + 32 * 2
    assert training_flops_per_example(config, 1) == 6 * weights


def test_heads_that_do_not_divide_the_width_are_refused():
    with pytest.raises(ConfigError, match="a width of 30 is not divisible by 4 heads"):
        ParityTransformerConfig(hidden_size=30, num_attention_heads=4)
