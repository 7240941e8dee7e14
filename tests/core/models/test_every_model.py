"""The contract of every model of the project: rows, caches, attention, files and gradients change no result."""

import copy
from functools import partial

import pytest
import torch
from torch.nn.functional import cross_entropy, pad
from transformers import AutoModelForCausalLM, DynamicCache, StaticCache

import contextlm_models
from contextlm_models import contextlm, normed
from contextwise.models import token_losses
from contextwise.models.spec import pretraining_losses
from cue_models import cue_model, sentence_encoder
from every_model import over_context
from multitoken_models import all_logits, multitoken

FAMILIES, HEADS = ("gpt2", "gpt_neox", "llama", "qwen3"), ("layer", "linear")
FORMS = dict(zip(contextlm_models.FORMS.kwargs["ids"], contextlm_models.FORMS.args[1], strict=True))
EVERY_LAYER = {"chunk_size": 3, "predictor_layers": 1, "inject_every_layer": True}
GENERATING = {
    **{f"ContextLM {family} every layer": partial(contextlm, family, inject_every_layer=True) for family in FAMILIES},
    **{f"{head} heads of {family}": partial(multitoken, family, head) for family in FAMILIES for head in HEADS},
    **{f"embedding norm of {family}": partial(normed, family) for family in FAMILIES},
}
COMPOSED = {
    **GENERATING,
    **{f"ContextLM {f} {form}": partial(contextlm, f, **options) for f in FAMILIES for form, options in FORMS.items()},
    **{
        f"tied {head} heads of {f}": partial(multitoken, f, head, tie_word_embeddings=True)
        for f in FAMILIES
        for head in HEADS
    },
    **{f"{head} heads over {f}": partial(over_context, f, head, **EVERY_LAYER) for f in FAMILIES for head in HEADS},
}


def lstm(tied):
    torch.manual_seed(0)
    model = sentence_encoder("lstm", tie_word_embeddings=tied)
    torch.nn.init.normal_(model.embed.weight)  # larger, so that tokens make a difference
    return model


LSTMS = {f"LSTM, tied: {tied}": partial(lstm, tied) for tied in (True, False)}
CUE = {"CUE": cue_model, "CUE concatenated": partial(cue_model, form="concatenate")}
CUE |= {"CUE of an LSTM": partial(cue_model, "lstm")}
MODELS = COMPOSED | LSTMS | CUE
EVERY, STOCK_BLOCKS = (pytest.mark.parametrize("name", names) for names in (MODELS, COMPOSED))
WITH_CACHE = pytest.mark.parametrize("name", COMPOSED | LSTMS)


def logits(model, tokens, **options):
    """Of all heads, (B, T, n, V) if there are several."""
    if hasattr(model.config, "future_tokens"):
        return all_logits(model(tokens, heads=model.config.future_tokens, **options))
    return model(tokens, **options).logits


def draw(rows, length, seed=0):
    """Tokens of every vocabulary, without 0, the padding."""
    return torch.randint(1, 23, (rows, length), generator=torch.Generator().manual_seed(seed))


@WITH_CACHE
@pytest.mark.parametrize("lengths", [[5, 1, 1, 4, 1, 1, 1], [1, 2, 3, 8]], ids=str)
@torch.no_grad()
def test_cached_pieces_equal_the_full_pass(name, lengths):
    model, tokens = MODELS[name]().eval(), draw(2, 14)
    full = logits(model, tokens, use_cache=False)
    caches = [DynamicCache()] if name in LSTMS else [DynamicCache(config=model.config), StaticCache(model.config, 16)]
    for cache in caches:
        pieces = [logits(model, part, past_key_values=cache, use_cache=True) for part in tokens.split(lengths, 1)]
        torch.testing.assert_close(torch.cat(pieces, 1), full, atol=1e-5, rtol=1e-4)


@EVERY
@torch.no_grad()
def test_padded_and_packed_rows_equal_each_alone(name, device):
    model, lengths = MODELS[name]().eval().to(device), [5, 1, 9, 4]
    documents = [draw(1, n, seed=i).to(device) for i, n in enumerate(lengths)]
    padded = torch.cat([pad(each, (9 - n, 0)) for each, n in zip(documents, lengths, strict=True)])
    positions = torch.cat([torch.arange(n) for n in lengths])[None].to(device)
    alone = [logits(model, each, use_cache=False)[0] for each in documents]
    for row, n, each in zip(logits(model, padded, attention_mask=padded.ne(0).long()), lengths, alone, strict=True):
        torch.testing.assert_close(row[9 - n :], each, atol=1e-5, rtol=1e-4)
    for use_cache in (False, None) if "LSTM" not in name else ():  # which takes one document in a row
        packed = logits(model, torch.cat(documents, 1), position_ids=positions, use_cache=use_cache)[0]
        torch.testing.assert_close(packed, torch.cat(alone), atol=1e-5, rtol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("name", GENERATING | LSTMS)
@pytest.mark.parametrize("beams", [1, 3])
def test_generation_with_a_cache_equals_that_without(name, beams):
    model = MODELS[name]().eval()
    options = {"max_new_tokens": 10, "do_sample": False, "num_beams": beams, "pad_token_id": 0}
    for length in (2, 4, 9):
        tokens = draw(2, length)
        expected = model.generate(tokens, use_cache=False, **options)
        padded = pad(tokens, (5, 0))
        for cache in ({}, {"cache_implementation": "static"}) if name not in LSTMS else ({},):
            assert torch.equal(model.generate(tokens, **cache, **options), expected)
            rows = model.generate(padded, attention_mask=padded.ne(0).long(), **cache, **options)
            assert torch.equal(rows[:, 5:], expected)


@STOCK_BLOCKS
@torch.no_grad()
def test_eager_attention_gives_the_same(name):
    model, tokens, positions = MODELS[name]().eval(), draw(2, 17), torch.cat([torch.arange(8), torch.arange(9)])[None]
    inputs = ({}, {"position_ids": positions})
    fused = [logits(model, tokens, use_cache=False, **each) for each in inputs]
    model.set_attn_implementation("eager")
    assert model.backbone.config._attn_implementation == "eager"
    for each, expected in zip(inputs, fused, strict=True):
        torch.testing.assert_close(logits(model, tokens, use_cache=False, **each), expected, atol=1e-5, rtol=1e-4)


@WITH_CACHE
def test_a_saved_model_is_loaded_by_the_auto_class(name, tmp_path):
    model, tokens = MODELS[name]().eval(), draw(2, 20)
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert type(again) is type(model)
    for each in (model, again):
        tied = each.get_output_embeddings().weight is each.get_input_embeddings().weight
        assert tied == model.config.tie_word_embeddings
    with torch.no_grad():
        assert torch.equal(logits(model, tokens, use_cache=False), logits(again, tokens, use_cache=False))


@EVERY
def test_a_model_made_twice_is_the_same(name):
    """No weight is left unset."""
    config = MODELS[name]().eval().config
    models = []
    for _ in range(2):
        torch.manual_seed(3)
        models.append(AutoModelForCausalLM.from_config(copy.deepcopy(config)))
    for (key, one), other in zip(models[0].named_parameters(), models[1].parameters(), strict=True):
        assert torch.equal(one, other) and torch.isfinite(one).all(), key


@pytest.mark.parametrize("name", [name for name in MODELS if name not in LSTMS])
def test_gradient_checkpointing_changes_nothing(name):
    tokens, gradients = draw(2, 16), []
    for checkpointing in (False, True):
        model = MODELS[name]().train()
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        model(tokens, labels=tokens).loss.backward()
        gradients.append({key: each.grad for key, each in model.named_parameters() if each.grad is not None})
    assert gradients[0] and gradients[0].keys() == gradients[1].keys()
    assert all(torch.equal(each, gradients[1][key]) for key, each in gradients[0].items())


@pytest.mark.parametrize("name", [name for name in MODELS if "heads" not in name])
def test_the_loss_is_that_of_the_logits(name):
    """In training without logits; and of each token, for an evaluation."""
    model, tokens = MODELS[name]().eval(), draw(3, 19)
    labels = tokens.clone()
    labels[0, :7] = -100
    targets = pad(labels[:, 1:], (0, 1), value=-100)
    expected = cross_entropy(logits(model, tokens, use_cache=False).flatten(0, 1), targets.flatten(), reduction="none")
    torch.testing.assert_close(token_losses(model, tokens, targets).flatten(), expected)
    mean = expected.sum() / targets.ne(-100).sum()
    torch.testing.assert_close(model(tokens, labels=labels).loss, mean)
    model.train()
    torch.testing.assert_close(pretraining_losses(model, {"input_ids": tokens, "labels": targets}).minimised(), mean)
    out = model(tokens, labels=labels)
    assert out.logits is None
    torch.testing.assert_close(out.loss, mean)
