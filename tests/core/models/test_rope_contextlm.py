"""Dynamic NTK for plain models and ContextLM: what stays, which frequencies the chunks get, and cached generation."""

import pytest
import torch

from contextlm_models import FAMILIES, backbone, contextlm, draw, stock_model
from contextwise.models.contextlm.layers import POOLINGS
from contextwise.models.rope import extend_positions, frequencies_for, frozen_frequencies, rotary_modules

TRAINED, LONGEST, CHUNK = 16, 48, 4
ROTARY = pytest.mark.parametrize("family", ["gpt_neox", "llama", pytest.param("qwen3", marks=pytest.mark.slow)])
POOLED = [name if name == "mean" else pytest.param(name, marks=pytest.mark.slow) for name in sorted(POOLINGS)]
FORMS = pytest.mark.parametrize("form", ["plain", *POOLED])


def make(family, form, extended="dynamic"):
    torch.manual_seed(0)
    model = stock_model(family) if form == "plain" else contextlm(family, chunk_size=CHUNK, pooling=form)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 2:
                weight.mul_(4)  # attention that looks at positions
    if extended:
        extend_positions(model, LONGEST, extended, trained=TRAINED)
    return model


def logits(model, tokens, **options):
    with torch.no_grad():
        return model(input_ids=tokens, use_cache=False, **options).logits


@ROTARY
@FORMS
def test_the_trained_length_is_left_as_it_is(family, form):
    model, before = make(family, form), make(family, form, extended=None)
    tokens = draw(2, LONGEST)
    for length in (TRAINED, LONGEST, TRAINED - 3, TRAINED + 1, 5, TRAINED):
        same = torch.equal(logits(model, tokens[:, :length]), logits(before, tokens[:, :length]))
        assert same == (length <= TRAINED)


@ROTARY
@FORMS
def test_logits_do_not_depend_on_earlier_inputs(family, form):
    model, tokens = make(family, form), draw(2, LONGEST)
    first = logits(model, tokens[:, :24])
    logits(model, tokens)
    assert torch.equal(logits(model, tokens[:, :24]), first)


@ROTARY
@pytest.mark.parametrize("form", POOLED)
@pytest.mark.parametrize("rope", ["dynamic", "linear", "yarn"])
def test_chunks_get_the_frequencies_of_their_tokens(family, form, rope):
    """Just beyond the trained length the last chunk still begins within it."""
    model = make(family, form, rope)
    ((_, module),) = rotary_modules(model)
    used = []
    module.register_forward_hook(lambda rotary, *_: used.append(rotary.inv_freq.clone()))
    for length in (TRAINED + 1, TRAINED + CHUNK, LONGEST):
        used.clear()
        logits(model, draw(1, length))
        tokens, chunks = used
        assert torch.equal(tokens, chunks)
        assert (tokens[-1] < make(family, form, None).backbone.rotary_emb.inv_freq[-1]).all()


@ROTARY
def test_a_full_pass_is_that_of_a_model_with_these_frequencies_throughout(family):
    """Against weights that have the greater base from the start: neither tokens nor chunks are asked any other way."""
    factor, dim = LONGEST / TRAINED, 4 if family == "gpt_neox" else 8
    model, tokens = make(family, "mean"), draw(2, TRAINED + 2)
    grown = factor * (TRAINED + 2) / TRAINED - (factor - 1)
    config = backbone(family)
    config.rope_parameters["rope_theta"] *= grown ** (dim / (dim - 2))
    other = make(family, "mean", None)
    ((name, module),) = rotary_modules(other)
    parent, _, last = name.rpartition(".")
    setattr(other.get_submodule(parent), last, type(module)(config))
    torch.testing.assert_close(logits(model, tokens), logits(other, tokens))


def generated(model, prompt, new, attention_mask=None):
    out = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt) if attention_mask is None else attention_mask,
        max_new_tokens=new,
        do_sample=False,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_logits=True,
    )
    return out.sequences, torch.stack(out.logits, 1)


@ROTARY
@FORMS
def test_generation_across_the_trained_length_is_the_full_pass(family, form):
    model, prompt = make(family, form), draw(2, TRAINED - 6)
    with frequencies_for(model, LONGEST):
        tokens, cached = generated(model, prompt, LONGEST - prompt.shape[1])
        full = logits(model, tokens)
    torch.testing.assert_close(cached, full[:, prompt.shape[1] - 1 : -1], atol=2e-5, rtol=1e-4)
    # The same frequencies as an input of this length gets by itself
    assert torch.equal(logits(model, tokens), full)
    assert not torch.allclose(logits(model, tokens[:, :TRAINED]), full[:, :TRAINED], atol=1e-4)


@ROTARY
def test_without_fixed_frequencies_cached_keys_are_turned_otherwise(family):
    """What transformers does: the reason for fixing them. If this fails, it does better now."""
    model, prompt = make(family, "plain"), draw(2, TRAINED - 6)
    tokens, cached = generated(model, prompt, LONGEST - prompt.shape[1])
    full = logits(model, tokens)[:, prompt.shape[1] - 1 : -1]
    assert (cached - full)[:, -1].abs().max() > 1e-3


@FORMS
def test_fixed_within_the_trained_length_generation_is_that_of_the_model_as_it_was(form):
    model, before, prompt = make("llama", form), make("llama", form, None), draw(2, 5)
    logits(model, draw(2, LONGEST))
    with frequencies_for(model, TRAINED):
        tokens, cached = generated(model, prompt, TRAINED - 5)
    expected, as_before = generated(before, prompt, TRAINED - 5)
    assert torch.equal(tokens, expected) and torch.equal(cached, as_before)


@FORMS
def test_a_padded_row_is_read_as_it_is_alone(form):
    model = make("llama", form)
    rows = [draw(1, 20, seed=1), draw(1, 13, seed=2)]
    ids = torch.zeros(2, 20, dtype=torch.long)
    ids[0], ids[1, 7:] = rows[0][0], rows[1][0]
    mask = torch.ones_like(ids)
    mask[1, :7] = 0
    with frequencies_for(model, 32):
        together, _ = generated(model, ids, 12, attention_mask=mask)
        for i, row in enumerate(rows):
            alone, _ = generated(model, row, 12)
            assert torch.equal(together[i, 20:], alone[0, row.shape[1] :])


@FAMILIES
def test_other_models_are_left_alone(family):
    model, tokens = stock_model(family), draw(1, 20)
    before = logits(model, tokens)
    with frequencies_for(model, 500):
        assert torch.equal(logits(model, tokens), before)


def test_frozen_frequencies_thaw_after_an_error():
    model, tokens = make("llama", "mean"), draw(1, 30)
    before = logits(model, tokens)
    with pytest.raises(ZeroDivisionError), frozen_frequencies([rotary_modules(model)[0][1]]):
        raise ZeroDivisionError
    logits(model, tokens[:, :TRAINED])
    assert torch.equal(logits(model, tokens), before)
