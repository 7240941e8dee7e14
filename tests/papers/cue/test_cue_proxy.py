"""Proxies: the bag of a sentence, the autoencoder's loss, and Eq. 7 and 8 by hand."""

from math import log

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import rel_entr, softmax
from transformers import AutoConfig, AutoModel

from contextwise.base.errors import ConfigError
from contextwise.models import build_model
from contextwise.models.building import parameter_count
from contextwise.models.spec import pretraining_losses
from contextwise_papers.cue.config import UnigramConfig
from contextwise_papers.cue.parts import ProxyEncoder, UnigramAutoencoder
from cue_models import END, VOCABULARY, autoencoder, proxy, proxy_model
from examples import FEW

LABELS = torch.tensor([[5, 7, 5, 9, END], [3, END, -100, -100, -100], [8, 8, 8, -100, -100]])


def test_a_bag_holds_the_share_of_each_token_without_end_of_text():
    bags = autoencoder().bag(LABELS)
    expected = torch.zeros(3, VOCABULARY)
    expected[0, [5, 7, 9]] = torch.tensor([0.5, 0.25, 0.25])
    expected[1, 3] = expected[2, 8] = 1.0
    assert torch.equal(bags, expected)


def test_without_an_end_of_text_every_label_counts():
    bags = UnigramAutoencoder(UnigramConfig(VOCABULARY)).bag(LABELS[1:2])
    assert bags[0, [3, END]].tolist() == [0.5, 0.5]


@FEW
@given(st.lists(st.integers(1, VOCABULARY - 1), min_size=1, max_size=12), st.integers(0, 4), st.randoms())
def test_a_bag_is_a_distribution_independent_of_order_and_padding(words, padding, random):
    shuffled = random.sample(words, len(words))
    bag = autoencoder().bag(torch.tensor([words]))
    assert torch.equal(autoencoder().bag(torch.tensor([shuffled + [END] + [-100] * padding])), bag)
    assert bag.sum().item() == pytest.approx(1)


def test_a_sentence_without_words_has_an_empty_bag_and_a_finite_loss():
    model, labels = autoencoder(), torch.tensor([[END, -100]])
    assert not model.bag(labels).any()
    assert model.divergences(labels).tolist() == [0.0]


def test_the_divergence_of_a_uniform_guess_by_hand():
    model = autoencoder()
    torch.nn.init.zeros_(model.up[-1].weight)
    # KL(P || uniform) = log V - H(P): H is 1.5 bits for shares of 1/2, 1/4, 1/4, and 0 for a single word.
    expected = [log(VOCABULARY) - 1.5 * log(2), log(VOCABULARY), log(VOCABULARY)]
    assert model.divergences(LABELS).tolist() == pytest.approx(expected, rel=1e-5)
    out = model(LABELS)
    assert out.loss.item() == pytest.approx(sum(expected) / 3, rel=1e-5)
    assert out.logits.exp().sum(1).tolist() == pytest.approx([1, 1, 1], rel=1e-5)


def test_the_divergence_is_the_papers_with_its_arguments_the_right_way_around():
    model = autoencoder()
    bags = model.bag(LABELS)
    hidden = model.down[1](model.down[0](bags).relu()).relu()
    guess = softmax(model.up[1](model.up[0](hidden).relu()).detach().double().numpy(), axis=1)
    expected = rel_entr(bags.double().numpy(), guess).sum(1)
    assert model.divergences(LABELS).tolist() == pytest.approx(expected.tolist(), rel=1e-4)
    assert np.isinf(rel_entr(guess, bags.double().numpy()).sum(1)).all()  # Eq. 6 as printed


def test_pretraining_losses_are_sums_over_sentences():
    model = autoencoder()
    losses = pretraining_losses(model, {"input_ids": LABELS, "labels": LABELS})
    assert losses.names == ("sentences",)
    assert losses.counts.tolist() == [3]
    assert losses.minimised().item() == pytest.approx(model.divergences(LABELS).mean().item())


def test_training_rebuilds_the_bags_it_sees():
    model = autoencoder()
    before = model.divergences(LABELS).mean().item()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    for _ in range(60):
        optimizer.zero_grad()
        pretraining_losses(model, {"labels": LABELS}).minimised().backward()
        optimizer.step()
    assert model.divergences(LABELS).mean().item() < before / 3


def test_the_autoencoder_has_the_printed_layers():
    config = UnigramConfig()
    model = build_model(UnigramConfig(VOCABULARY))
    sizes = [VOCABULARY, 128, 16, 128, VOCABULARY]
    assert [layer.in_features for layer in (*model.down, *model.up)] == sizes[:-1]
    assert [layer.out_features for layer in (*model.down, *model.up)] == sizes[1:]
    v = 28_996
    assert parameter_count(config) == (v * 128 + 128) + (128 * 16 + 16) + (16 * 128 + 128) + (128 * v + v)


@pytest.mark.parametrize("sigma", [0.0, 0.25, 4.0])
def test_a_proxy_is_the_noisy_code_scaled_to_length_one(sigma):
    encoder = proxy(sigma)
    noise = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    code = encoder.autoencoder.encode(encoder.autoencoder.bag(LABELS)).detach()
    expected = (code + sigma * noise).numpy()
    expected = expected / np.sqrt((expected**2).sum(1, keepdims=True))
    result = encoder.proxies(LABELS, noise)
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-5)
    assert sigma or torch.equal(encoder.proxies(LABELS), result)
    projected = result @ encoder.project.weight.T + encoder.project.bias
    torch.testing.assert_close(encoder(LABELS, noise), projected)


def test_a_missing_noise_is_rejected():
    with pytest.raises(ConfigError, match=r"a noise of 0.5, but none is given; pass proxy_noise, .* \(3, 4\)"):
        proxy(0.5)(LABELS)


def test_only_the_projection_is_trained():
    encoder = proxy()
    encoder(LABELS, torch.zeros(3, 4)).sum().backward()
    trained = [name for name, parameter in encoder.named_parameters() if parameter.requires_grad]
    assert trained == ["project.weight", "project.bias"]
    assert encoder.project.weight.grad is not None
    assert encoder.autoencoder.down[0].weight.grad is None


def test_autoencoder_and_proxy_survive_saving(tmp_path):
    encoder, noise = proxy(1.5), torch.ones(3, 4)
    for part, kind in ((encoder, ProxyEncoder), (encoder.autoencoder, UnigramAutoencoder)):
        part.save_pretrained(tmp_path / kind.__name__)
        assert (tmp_path / kind.__name__ / "model.safetensors").exists()
    opened = AutoModel.from_pretrained(tmp_path / "ProxyEncoder")
    assert type(opened) is ProxyEncoder
    assert opened.config.noise == 1.5
    assert torch.equal(opened(LABELS, noise), encoder(LABELS, noise))
    assert not any(parameter.requires_grad for parameter in opened.autoencoder.parameters())
    opened = AutoModel.from_pretrained(tmp_path / "UnigramAutoencoder")
    assert torch.equal(opened.divergences(LABELS), encoder.autoencoder.divergences(LABELS))
    assert AutoConfig.from_pretrained(tmp_path / "UnigramAutoencoder").widths == [6, 4]


def test_a_model_with_proxies_takes_the_words_of_its_labels():
    model, noise = proxy_model(), torch.randn(3, 4)
    inputs = torch.where(LABELS < 0, END, LABELS).roll(1, 1)
    batch = {"input_ids": inputs, "labels": LABELS, "proxy_noise": noise}
    losses = pretraining_losses(model, batch)
    cue = model.proxy(LABELS, noise)
    again = pretraining_losses(model, {"input_ids": inputs, "labels": LABELS, "cue": cue})
    assert losses.sums.item() == pytest.approx(again.sums.item())
    assert losses.counts.tolist() == [10]
    # Where no words are known either, e_cue is what pure noise has on average: the image of the zero vector.
    assert torch.equal(model(inputs).logits, model(inputs, cue=model.proxy.project.bias.expand(3, -1)).logits)
