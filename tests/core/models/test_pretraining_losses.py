"""Each kind of model has the losses of transformers on the same batch; prefixes and documents see what they should."""

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    GPT2Config,
    LlamaConfig,
    T5Config,
    T5ForConditionalGeneration,
)

from contextwise.base.errors import ConfigError
from contextwise.models.loading import kind_of
from contextwise.models.masks import as_attention_mask
from contextwise.models.spec import Losses, build_model, pretraining_losses

VOCABULARY = 41


def draw(rows=3, length=12, seed=0):
    return torch.randint(1, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))


def sparse(tokens, rate=0.3, seed=1):
    """Labels in place, -100 at most positions."""
    chosen = torch.rand(tokens.shape, generator=torch.Generator().manual_seed(seed)) < rate
    return torch.where(chosen, tokens, -100)


def bert(**changes):
    torch.manual_seed(0)
    values = {"vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    values |= {"intermediate_size": 32, "max_position_embeddings": 32}
    values |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return BertConfig(**values | changes)


def decoder(family="gpt2"):
    torch.manual_seed(0)
    if family == "gpt2":
        dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        config = GPT2Config(vocab_size=VOCABULARY, n_positions=32, n_embd=16, n_layer=2, n_head=2, **dropout)
    else:
        config = LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=32, max_position_embeddings=32,
        )  # fmt: skip
    return AutoModelForCausalLM.from_config(config)


def t5(tied=True):
    torch.manual_seed(0)
    return T5ForConditionalGeneration(
        T5Config(
            vocab_size=VOCABULARY, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, dropout_rate=0.0,
            decoder_start_token_id=0, pad_token_id=0, eos_token_id=0, tie_word_embeddings=tied,
        )
    )  # fmt: skip


def same_gradients(model, ours, theirs):
    wanted = torch.autograd.grad(theirs, list(model.parameters()), allow_unused=True)
    result = torch.autograd.grad(ours, list(model.parameters()), allow_unused=True)
    for a, b in zip(result, wanted, strict=True):
        assert (a is None) == (b is None) or (a if a is not None else b).abs().max() == 0
        if a is not None and b is not None:
            torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_the_causal_loss_is_that_of_transformers(family):
    model, tokens = decoder(family), draw()
    theirs = model(tokens, labels=tokens).loss
    losses = pretraining_losses(model, {"input_ids": tokens[:, :-1], "labels": tokens[:, 1:]})
    torch.testing.assert_close(losses.minimised(), theirs)
    assert losses.counts.tolist() == [3 * 11]
    same_gradients(model, losses.minimised(), theirs)


def test_the_masked_loss_is_that_of_transformers():
    model, tokens = BertForMaskedLM(bert()), draw()
    batch = {"input_ids": tokens, "labels": sparse(tokens)}
    theirs = model(**batch).loss
    losses = pretraining_losses(model, batch)
    torch.testing.assert_close(losses.minimised(), theirs)
    assert losses.counts.item() == batch["labels"].ne(-100).sum()
    same_gradients(model, losses.minimised(), theirs)


def test_the_joint_loss_of_pairs_is_that_of_transformers():
    model, tokens = BertForPreTraining(bert()), draw()
    mask = torch.ones_like(tokens)
    mask[1, 8:] = 0
    labels = sparse(tokens).masked_fill(mask == 0, -100)
    segments = (torch.arange(12) > 5).long().expand(3, -1)
    pairs = torch.tensor([0, 1, 1])
    common = {"input_ids": tokens, "labels": labels, "attention_mask": mask, "token_type_ids": segments}
    theirs = model(**common, next_sentence_label=pairs).loss
    losses = pretraining_losses(model, common | {"pair_label": pairs})
    assert losses.names == ("tokens", "pair")
    torch.testing.assert_close(losses.minimised(), theirs)
    same_gradients(model, losses.minimised(), theirs)


@pytest.mark.parametrize("tied", [True, False])
def test_the_loss_of_encoder_decoders_is_that_of_transformers(tied):
    model, inputs, labels = t5(tied), draw(), draw(3, 7, seed=2)
    labels[0, 5:] = -100
    theirs = model(input_ids=inputs, labels=labels).loss
    losses = pretraining_losses(model, {"input_ids": inputs, "labels": labels})
    torch.testing.assert_close(losses.minimised(), theirs)
    same_gradients(model, losses.minimised(), theirs)


@pytest.mark.parametrize("make", [decoder, lambda: BertForMaskedLM(bert())], ids=["decoder", "encoder"])
def test_a_step_cut_into_batches_has_the_mean_over_all_targets(make):
    model, tokens = make(), draw(4)
    labels = sparse(tokens, seed=3)
    whole = pretraining_losses(model, {"input_ids": tokens, "labels": labels})
    parts = [pretraining_losses(model, {"input_ids": tokens[i : i + 1], "labels": labels[i : i + 1]}) for i in range(4)]
    total = sum(part.minimised(whole.counts[0]) for part in parts)
    torch.testing.assert_close(total, whole.minimised())


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_prefix_attends_only_to_itself(family, attention):
    """By gradients: what the loss at one position depends on."""
    model = decoder(family).eval()
    model.set_attn_implementation(attention)
    tokens = draw(1, 8)
    prefix = (torch.arange(8) < 4)[None]
    for position in range(8):
        vectors = model.get_input_embeddings()(tokens).detach().requires_grad_()
        handle = model.get_input_embeddings().register_forward_hook(lambda *_, v=vectors: v)
        labels = torch.full((1, 8), -100)
        labels[0, position] = 5
        batch = {"input_ids": tokens, "labels": labels, "prefix": prefix}
        pretraining_losses(model, batch).minimised().backward()
        handle.remove()
        reached = vectors.grad[0].abs().sum(1) > 0
        assert reached.tolist() == [i <= position or (position < 4 and i < 4) for i in range(8)]


@pytest.mark.slow
def test_flex_attention_gives_the_same():
    """Forward only: torch differentiates flex attention on accelerators alone. transformers' GPT-2 has none."""
    model, tokens = decoder("llama").eval(), draw(2, 16)
    prefix = torch.arange(16)[None] < torch.tensor([[5], [16]])
    positions = torch.cat([torch.arange(9), torch.arange(7)]).expand(2, -1)
    batch = {"input_ids": tokens, "labels": tokens, "prefix": prefix, "position_ids": positions}
    with torch.no_grad():
        expected = pretraining_losses(model, batch).sums
        model.set_attn_implementation("flex_attention")
        torch.testing.assert_close(pretraining_losses(model, batch).sums, expected, atol=1e-4, rtol=1e-5)


def test_attention_without_such_masks_is_rejected():
    model = decoder()
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ConfigError, match="takes no masks of prefixes"):
        as_attention_mask(torch.ones(1, 1, 2, 2, dtype=torch.bool), model)


def test_no_prefix_is_causal():
    model, tokens = decoder(), draw()
    batch = {"input_ids": tokens[:, :-1], "labels": tokens[:, 1:]}
    plain = pretraining_losses(model, batch).minimised()
    none = pretraining_losses(model, batch | {"prefix": torch.zeros(3, 11, dtype=torch.bool)}).minimised()
    torch.testing.assert_close(none, plain)


@pytest.mark.parametrize("make", [decoder, lambda: BertForMaskedLM(bert())], ids=["decoder", "encoder"])
def test_packed_documents_have_the_losses_they_have_alone(make):
    model = make().eval()
    first, second = draw(1, 5), draw(1, 6, seed=4)
    labels = [sparse(first, 0.8), sparse(second, 0.8)]
    packed = {
        "input_ids": torch.cat([first, second], 1),
        "labels": torch.cat(labels, 1),
        "position_ids": torch.cat([torch.arange(5), torch.arange(6)])[None],
    }
    prefixes = [(torch.arange(n) < p)[None] for n, p in ((5, 2), (6, 4))]
    alone = [{"input_ids": x, "labels": y} for x, y in zip((first, second), labels, strict=True)]
    if kind_of(model.config) == "decoder":
        packed["prefix"] = torch.cat(prefixes, 1)
        alone = [one | {"prefix": prefix} for one, prefix in zip(alone, prefixes, strict=True)]
    expected = sum(pretraining_losses(model, one).sums[0] for one in alone)
    torch.testing.assert_close(pretraining_losses(model, packed).sums[0], expected)


def test_the_first_of_several_losses_is_that_of_the_tokens():
    """Which a run's metrics have as its loss, so that runs can be compared."""
    with pytest.raises(ValueError, match="the first of several losses is the token loss, named 'tokens', not 'mine'"):
        Losses(("mine", "tokens"), torch.zeros(2), torch.ones(2))


def test_a_batch_without_targets_costs_nothing():
    assert Losses(("tokens",), torch.zeros(1), torch.zeros(1)).minimised() == 0


@pytest.mark.parametrize(
    ("config", "kind", "name"),
    [
        (bert(), "encoder", "BertForMaskedLM"),
        (bert(architectures=["BertForPreTraining"]), "encoder", "BertForPreTraining"),
        (bert(is_decoder=True), "decoder", "BertLMHeadModel"),
        (T5Config(num_layers=1, d_model=8, d_ff=8, vocab_size=9), "encoder-decoder", "T5ForConditionalGeneration"),
        (GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=9), "decoder", "GPT2LMHeadModel"),
    ],
)
def test_kinds(config, kind, name):
    assert kind_of(config) == kind
    assert type(build_model(config)).__name__ == name
