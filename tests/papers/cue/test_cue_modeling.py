"""A CUE model whole: what it computes, causality, generation, losses, and parts that do not fit."""

import pytest
import torch
from torch import nn
from transformers import DynamicCache, GPT2Config

from contextwise import ContextLMConfig, ContextLMForCausalLM
from contextwise.base.errors import CheckpointError, ConfigError
from contextwise.models import build_model, token_losses
from contextwise.models.loading import check_generates
from contextwise.models.losses import has_plain_head
from contextwise.models.spec import pretraining_losses
from contextwise.testing import measure_causality
from contextwise_papers.cue import CueForCausalLM, LSTMConfig
from contextwise_papers.cue.config import CueContextConfig, CueDecoderConfig, ProxyConfig, UnigramConfig
from cue_models import (
    CUE,
    ENCODERS,
    FORMS,
    LONGEST,
    STATES,
    TEXT,
    VOCABULARY,
    WIDTH,
    autoencoder,
    batch_of,
    context_encoder,
    cue_model,
    decoder,
    draw,
    of_parts,
    proxy,
    proxy_of,
    sentence_encoder,
)

# What it computes


@ENCODERS
def test_the_decoders_input_is_that_of_the_sentence_encoders_head(kind):
    model, (tokens, contexts) = cue_model(kind), draw()
    sentences = model.sentence_encoder
    states = sentences.base_model(tokens).last_hidden_state if kind == "gpt2" else sentences.hidden_states(tokens)
    hidden = model.decoder(states, model.cue_vectors(**contexts))
    assert hidden.shape == (3, 7, WIDTH)
    torch.testing.assert_close(model.hidden_states(tokens, **contexts), hidden)
    torch.testing.assert_close(model(tokens, **contexts).logits, hidden @ model.decoder.lm_head.weight.T)


def test_cross_attention_adds_one_linear_image_of_e_cue_at_every_position():
    model, (tokens, contexts) = cue_model(layers=1), draw()
    block = model.decoder.transformer.h[0]
    added = []
    block.crossattention.register_forward_hook(lambda _, inputs, output: added.append(output[0]))
    model(tokens, **contexts)
    cue = model.decoder.project_cue(model.cue_vectors(**contexts))
    attention = block.crossattention
    values = attention.c_attn(cue).chunk(2, dim=-1)[1]
    expected = attention.c_proj(values[:, None]).expand(-1, 7, -1)
    torch.testing.assert_close(added[0], expected, atol=1e-6, rtol=1e-5)


def test_a_concatenating_decoder_is_one_matrix_on_state_and_e_cue():
    model, (tokens, contexts) = cue_model(form="concatenate"), draw()
    states = model.sentence_encoder.base_model(tokens).last_hidden_state
    left, right = model.decoder.lm_head.weight.split([STATES, CUE], dim=1)
    expected = states @ left.T + (model.cue_vectors(**contexts) @ right.T)[:, None]
    torch.testing.assert_close(model(tokens, **contexts).logits, expected, atol=1e-6, rtol=1e-5)
    assert model.config.hidden_size == STATES + CUE
    assert model.config.num_hidden_layers == 0


@FORMS
def test_what_the_prediction_depends_on(options):
    model, (tokens, contexts) = cue_model(**options), draw()
    logits = model(tokens, **contexts).logits
    other_words = model(tokens.roll(1, 0), **contexts).logits
    other_contexts = model(tokens, **contexts | {"contexts": contexts["contexts"].roll(1, 0)}).logits
    assert torch.equal(other_words, logits) != options.get("sentence_inputs", True)
    assert not torch.allclose(other_contexts[1], logits[1], atol=1e-4)
    assert torch.equal(other_contexts[0], logits[0])  # the first row has no contexts
    # Without the sentence no position is told from another (Section 6.2: "a constant vector at each step").
    assert torch.equal(logits, logits[:, :1].expand_as(logits)) != options.get("sentence_inputs", True)


def test_contexts_may_come_as_e_cue_in_any_order_and_not_at_all():
    model, (tokens, contexts) = cue_model(), draw()
    logits = model(tokens, **contexts).logits
    cue = model.cue_vectors(**contexts)
    assert cue.shape == (3, CUE)
    torch.testing.assert_close(model(tokens, cue=cue).logits, logits)
    turned = {name: value.flip(1) for name, value in contexts.items()}
    torch.testing.assert_close(model(tokens, **turned).logits, logits, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(model(tokens).logits[0], logits[0])
    nothing = model(tokens, contexts=torch.zeros(3, 0, TEXT)).logits
    torch.testing.assert_close(nothing, model(tokens).logits)


def test_without_context_encoder_and_proxies_e_cue_is_zero():
    model = of_parts(sentence_encoder(), decoder=decoder())
    tokens, contexts = draw()
    assert torch.equal(model(tokens).logits, model(tokens, cue=torch.zeros(3, CUE)).logits)
    with pytest.raises(ConfigError, match="contexts are given, but this model has no context encoder"):
        model(tokens, **contexts)


def test_any_causal_language_model_encodes_sentences():
    backbone = GPT2Config(vocab_size=VOCABULARY, n_positions=LONGEST, n_embd=STATES, n_layer=2, n_head=2)
    predictive = ContextLMForCausalLM(ContextLMConfig(backbone, chunk_size=2)).eval()
    model = of_parts(predictive, context_encoder(), decoder())
    tokens, contexts = draw()
    expected = model.decoder(predictive.hidden_states(tokens), model.cue_vectors(**contexts))
    torch.testing.assert_close(model.hidden_states(tokens, **contexts), expected)


# Causality and generation


class WithContexts(CueForCausalLM):
    """Always given the same contexts."""

    def forward(self, input_ids=None, attention_mask=None, position_ids=None, inputs_embeds=None, **_):
        rows = len(inputs_embeds) if input_ids is None else len(input_ids)
        contexts = torch.randn(1, 3, TEXT, generator=torch.Generator().manual_seed(3)).expand(rows, -1, -1)
        inputs = {"inputs_embeds": inputs_embeds, "contexts": contexts}
        return super().forward(input_ids, attention_mask, position_ids, **inputs)


@pytest.mark.long
@ENCODERS
@pytest.mark.parametrize("options", [{}, {"form": "concatenate"}], ids=["transformer", "concatenate"])
def test_it_is_causal_with_and_without_contexts(kind, options):
    model = cue_model(kind, **options)
    if kind == "lstm":
        nn.init.normal_(model.sentence_encoder.embed.weight)
    for made in (model, of_parts(model.sentence_encoder, model.context_encoder, model.decoder, cls=WithContexts)):
        result = measure_causality(made)
        assert result.causal, str(result)
        outcomes = {effect.name: effect.outcome for effect in result.effects}
        assert outcomes.pop("cached steps") == "not measured"
        assert outcomes.pop("packed neighbours") == ("not measured" if kind == "lstm" else "none")
        assert set(outcomes.values()) == {"none"}, str(result)


@ENCODERS
def test_generation_is_the_argmax_of_full_passes(kind):
    model, (tokens, contexts) = cue_model(kind), draw()
    given = []
    model.context_encoder.register_forward_pre_hook(lambda _, inputs: given.append(inputs[1]))
    mask = torch.ones_like(tokens)
    mask[2, :3] = 0
    result = model.generate(
        tokens, attention_mask=mask, max_new_tokens=5, do_sample=False, eos_token_id=None, pad_token_id=0, **contexts
    )
    assert len(given) == 5
    assert all(torch.equal(each, contexts["context_mask"]) for each in given)
    for row in range(3):
        own = {name: value[row : row + 1] for name, value in contexts.items()}
        text = tokens[row : row + 1, int((mask[row] == 0).sum()) :]
        for _ in range(5):
            text = torch.cat([text, model(text, **own).logits[:, -1:].argmax(-1)], dim=1)
        assert result[row, -5:].tolist() == text[0, -5:].tolist()


def test_contexts_go_along_with_beams_and_samples():
    model, (tokens, contexts) = cue_model(), draw()
    arguments = {
        "max_new_tokens": 4,
        "eos_token_id": None,
        "pad_token_id": 0,
        "attention_mask": torch.ones_like(tokens),
    }
    beams = model.generate(tokens, num_beams=3, do_sample=False, **arguments, **contexts)
    given = model.generate(tokens, num_beams=3, do_sample=False, cue=model.cue_vectors(**contexts), **arguments)
    assert torch.equal(beams, given)
    assert model.generate(tokens, num_return_sequences=2, do_sample=True, **arguments, **contexts).shape == (6, 11)


# Losses


@FORMS
@ENCODERS
def test_losses_agree(kind, options):
    model, (tokens, contexts) = cue_model(kind, **options), draw()
    batch = batch_of(tokens, contexts)
    logits = model(tokens, **contexts).logits
    expected = nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="none")
    result = token_losses(model, tokens, batch["labels"], **contexts)
    assert has_plain_head(model)
    torch.testing.assert_close(result.flatten(), expected)
    counted = batch["labels"].ne(-100).sum()
    for mode in (model.eval(), model.train()):
        losses = pretraining_losses(mode, batch)
        assert losses.names == ("tokens",)
        assert losses.counts.tolist() == [15] == [counted]
        torch.testing.assert_close(losses.minimised(), expected.sum() / counted)
        torch.testing.assert_close(
            mode(tokens, shift_labels=batch["labels"], **contexts).loss, expected.sum() / counted
        )
    labels = tokens.clone()
    labels[-1, 4:] = -100
    torch.testing.assert_close(model(tokens, labels=labels, **contexts).loss, losses.minimised())


# Bad input


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: {"decoder": decoder(input_width=20)}, "reads states of 20 channels, but the sentence encoder's have 16"),
        (lambda: {"decoder": decoder(vocab_size=50)}, "the decoder predicts 50 tokens, but the sentence encoder has 47; both"),
        (lambda: {"decoder": decoder(cue_width=6), "context_encoder": context_encoder()},
         "the decoder expects an e_cue of 6 channels, but the context encoder returns 8; give both the same width"),
        (lambda: {"decoder": decoder(cue_width=6), "proxy": proxy()}, "e_cue of 6 channels, but the proxy encoder returns 8"),
        (lambda: {"decoder": decoder(), "proxy": proxy_of(build_model(UnigramConfig(50)), CUE, 0.0)},
         "the unigram autoencoder has 50 tokens, but the decoder predicts 47; train both on the same corpus"),
        (lambda: CueDecoderConfig(form="rnn"), "the decoder's form is 'rnn', but must be one of transformer, concatenate"),
        (lambda: CueDecoderConfig(width=15, heads=4), "the width of the decoder, 15, is not divisible by 4 heads"),
        (lambda: CueDecoderConfig(layers=0), "layers of the decoder is 0, but must be a whole number of at least 1"),
        (lambda: CueContextConfig(heads=3), "the width of the context encoder, 512, is not divisible by 3 heads"),
        (lambda: CueContextConfig(layers=-1), "layers of the context encoder is -1, but must be a whole number of at least 0"),
        (lambda: CueContextConfig(text_width=0), "text_width of the context encoder is 0, but must be a whole number of at"),
        (lambda: CueContextConfig(context_dropout=1.0), "context_dropout is 1.0, but must be at least 0 and below 1"),
        (lambda: ProxyConfig(noise=-1.0), "the proxy's noise is -1.0, but must not be negative"),
        (lambda: ProxyConfig(width=0), "width of the proxy encoder is 0"),
        (lambda: UnigramConfig(widths=[128, 0]), r"widths are \[128, 0\] .* must be at least 1"),
        (lambda: LSTMConfig(hidden_size=0), "must all be at least 1"),
    ],
)  # fmt: skip
def test_parts_that_do_not_exist_or_do_not_fit_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        of_parts(sentence_encoder(), **make())


def test_a_packed_row_may_be_longer_than_a_sentence():
    model, tokens = cue_model(), torch.randint(1, VOCABULARY, (2, LONGEST), generator=torch.Generator().manual_seed(0))
    position_ids = torch.arange(LONGEST).repeat(2)[None]
    lengths = {"cu_seq_lens_q": torch.tensor([0, LONGEST, 2 * LONGEST]), "seq_idx": torch.zeros(1, 2 * LONGEST)}
    packed = model(tokens.view(1, -1), position_ids=position_ids, **lengths).logits
    torch.testing.assert_close(packed.view(2, LONGEST, -1), model(tokens).logits)


def test_bad_inputs():
    model, (tokens, contexts) = cue_model(), draw()
    cases = [
        ({"cue": torch.zeros(3, 9)}, r"e_cue has the shape \(3, 9\), but the decoder expects \(3, 8\)"),
        ({"cue": torch.zeros(3, CUE), **contexts}, "several of contexts, cue and proxy_targets given"),
        ({"proxy_targets": tokens}, "proxy_targets are given, but this model has no proxy encoder"),
        ({"past_key_values": DynamicCache()}, "a cue model keeps no cache; pass the whole text"),
        ({"labels": tokens + VOCABULARY}, "is outside the vocabulary of 47 tokens"),
    ]
    for inputs, message in cases:
        with pytest.raises(ConfigError, match=message):
            model(tokens, **inputs)
    with pytest.raises(ConfigError, match="a sentence of 25 tokens is longer than the 24 positions of the model"):
        model(torch.ones(1, 25, dtype=torch.long))
    with pytest.raises(ConfigError, match="a sentence of 25 tokens is longer than the 24 positions of the model"):
        model(torch.ones(1, 30, dtype=torch.long), attention_mask=(torch.arange(30) > 4).long()[None])
    with pytest.raises(ConfigError, match="cu_seq_lens_q names packed sentences; give their position_ids too"):
        model(tokens, cu_seq_lens_q=torch.tensor([0, 5, 10]))
    with pytest.raises(TypeError, match="unexpected keyword argument 'context'"):
        model(tokens, context=contexts)
    with pytest.raises(ConfigError, match="neither input_ids nor inputs_embeds given"):
        model()
    for assisted in ({"prompt_lookup_num_tokens": 2}, {"assistant_model": model}):
        with pytest.raises(ConfigError, match="a cue model keeps no cache, which assisted decoding needs; leave out"):
            model.generate(tokens[:1], max_new_tokens=4, **assisted)
    with pytest.raises(CheckpointError, match="'unigram_autoencoder' is not a causal language model"):
        check_generates(autoencoder().config)
