"""ContextLM against the paper's equations, against itself, and against its backbone."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_contextlm import reference_logits
from transformers import (
    AutoModelForCausalLM,
    DynamicCache,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
)

from contextwise import ContextLMConfig, ContextLMForCausalLM
from contextwise.base.errors import ConfigError
from contextwise.models.context.cache import context_state

VOCABULARY, LONGEST = 61, 48


def backbone(family, **changes):
    if family == "gpt2":
        values = {"vocab_size": VOCABULARY, "n_positions": LONGEST, "n_embd": 16, "n_layer": 3, "n_head": 2}
        values |= {
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
            "bos_token_id": None,
            "eos_token_id": None,
        }
        return GPT2Config(**values | changes)
    values = {
        "vocab_size": VOCABULARY,
        "max_position_embeddings": LONGEST,
        "hidden_size": 16,
        "num_hidden_layers": 3,
    }
    values |= {"num_attention_heads": 2, "intermediate_size": 32, "bos_token_id": None, "eos_token_id": None}
    values["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    return GPTNeoXConfig(**values | changes)


def contextlm(family, seed=0, **options):
    """A model in which everything matters: the gate is drawn, not zero."""
    torch.manual_seed(seed)
    model = ContextLMForCausalLM(ContextLMConfig(backbone(family), **options)).eval()
    if model.config.injection == "gate":
        torch.nn.init.normal_(model.context.gate.weight)
    return model


def draw(rows, length, seed=0):
    return torch.randint(0, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))


FAMILIES = pytest.mark.parametrize("family", ["gpt2", "gpt_neox"])
FORMS = pytest.mark.parametrize(
    "options",
    [
        {},
        {"inject_every_layer": True},
        {"injection_layer": 2},
        {"injection": "add"},
        {"injection_layer": 1, "inject_every_layer": True},
    ],
    ids=["embedding", "every layer", "2/1", "add", "1/2 every"],
)


@FAMILIES
@FORMS
@pytest.mark.parametrize(("w", "length"), [(4, 10), (1, 6), (3, 9), (7, 5), (2, 13)])
def test_equals_the_paper_written_out(family, options, w, length):
    model = contextlm(family, chunk_size=w, **options)
    tokens = draw(1, length)
    with torch.no_grad():
        torch.testing.assert_close(
            model(tokens, use_cache=False).logits[0],
            reference_logits(model, tokens[0].tolist()),
            atol=2e-5,
            rtol=1e-4,
        )


@FAMILIES
def test_worked_example_of_the_index_convention(family):
    """w = 4, ten tokens: which tokens the context of each position is built from (the table of the convention)."""
    model = contextlm(family, chunk_size=4)
    h = torch.randn(1, 10, 16, requires_grad=True)
    contexts = model.context.contexts(h, model.backbone).spread(lambda c: c)
    expected = {
        0: {0},
        1: {0},
        2: {0},
        3: set(range(4)),
        4: set(range(4)),
        5: set(range(4)),
        6: set(range(4)),
    }
    expected |= {7: set(range(8)), 8: set(range(8)), 9: set(range(8))}
    for t, sources in expected.items():
        (gradient,) = torch.autograd.grad(contexts[0, t].square().sum(), h, retain_graph=True)
        assert {i for i in range(10) if gradient[0, i].abs().sum() > 0} == sources, t
    torch.testing.assert_close(contexts[0, 2], h[0, 0])


@FAMILIES
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_the_past_never_sees_the_future(family, data):
    w = data.draw(st.integers(1, 8))
    length = data.draw(st.integers(2, 20))
    cut = data.draw(st.integers(1, length - 1))
    model = contextlm(family, chunk_size=w, inject_every_layer=data.draw(st.booleans()))
    tokens = draw(1, length)
    embeds = model.get_input_embeddings()(tokens).detach().requires_grad_()
    past = model(inputs_embeds=embeds, use_cache=False).logits[:, :cut]
    (gradient,) = torch.autograd.grad(past.square().sum(), embeds)
    assert torch.count_nonzero(gradient[:, cut:]) == 0
    assert torch.count_nonzero(gradient[:, :cut]) > 0


@FAMILIES
def test_each_chunk_reaches_the_later_ones(family):
    """The trap of non-consecutive positions: a mask made from them would let each chunk see itself alone."""
    model = contextlm(family, chunk_size=4)
    h = torch.randn(1, 16, 16, requires_grad=True)
    last = model.context.contexts(h, model.backbone).spread(lambda c: c)[0, 15]
    (gradient,) = torch.autograd.grad(last.square().sum(), h)
    assert all(gradient[0, t].abs().sum() > 0 for t in range(16))


@FAMILIES
@FORMS
def test_gate_starts_as_the_backbone(family, options):
    if options.get("injection") == "add":
        pytest.skip("plain addition has no such start")
    stock = (GPT2LMHeadModel if family == "gpt2" else GPTNeoXForCausalLM)(backbone(family)).eval()
    model = ContextLMForCausalLM.from_backbone(stock, **options).eval()
    tokens = draw(2, 21)
    with torch.no_grad():
        assert torch.equal(model(tokens, use_cache=False).logits, stock(tokens, use_cache=False).logits)


@FAMILIES
@FORMS
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_every_cached_step_equals_the_full_pass(family, options, data):
    w = data.draw(st.sampled_from([1, 2, 3, 4, 7, 16]))
    length = data.draw(st.integers(2, 24))
    prompt = data.draw(st.integers(1, length))
    piece = data.draw(st.integers(1, 5))
    model = contextlm(family, chunk_size=w, **options)
    tokens = draw(2, length)
    with torch.no_grad():
        full = model(tokens, use_cache=False).logits
        out = model(tokens[:, :prompt], use_cache=True)
        found, at = [out.logits], prompt
        while at < length:
            out = model(tokens[:, at : at + piece], past_key_values=out.past_key_values, use_cache=True)
            found.append(out.logits)
            at += piece
    torch.testing.assert_close(torch.cat(found, 1), full, atol=1e-5, rtol=1e-4)


@FAMILIES
@FORMS
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_padded_rows_equal_each_row_alone(family, options, data):
    w = data.draw(st.integers(1, 6))
    lengths = data.draw(st.lists(st.integers(1, 14), min_size=2, max_size=4))
    more = data.draw(st.integers(1, 6))
    model = contextlm(family, chunk_size=w, **options)
    rows = [draw(1, n + more, seed=i)[0] for i, n in enumerate(lengths)]
    longest = max(lengths)
    padded = torch.stack(
        [torch.nn.functional.pad(r[:n], (longest - n, 0)) for r, n in zip(rows, lengths, strict=True)]
    )
    mask = torch.stack(
        [torch.nn.functional.pad(torch.ones(n, dtype=torch.long), (longest - n, 0)) for n in lengths]
    )
    with torch.no_grad():
        out = model(padded, attention_mask=mask, use_cache=True)
        found = [out.logits]
        for step in range(more):  # rows complete their chunks at different steps
            mask = torch.cat([mask, mask.new_ones(len(rows), 1)], 1)
            token = torch.stack([r[n + step] for r, n in zip(rows, lengths, strict=True)])[:, None]
            out = model(token, attention_mask=mask, past_key_values=out.past_key_values, use_cache=True)
            found.append(out.logits)
        found = torch.cat(found, 1)
        for i, (row, n) in enumerate(zip(rows, lengths, strict=True)):
            alone = model(row[None], use_cache=False).logits[0]
            torch.testing.assert_close(found[i, longest - n :], alone, atol=1e-5, rtol=1e-4)


@FAMILIES
@FORMS
def test_packed_documents_equal_each_alone(family, options):
    model = contextlm(family, chunk_size=4, **options)
    lengths = [5, 1, 11, 4, 3]
    documents = [draw(1, n, seed=i) for i, n in enumerate(lengths)]
    positions = torch.cat([torch.arange(n) for n in lengths])[None]
    with torch.no_grad():
        packed = model(torch.cat(documents, 1), position_ids=positions, use_cache=False).logits[0]
        alone = torch.cat([model(d, use_cache=False).logits[0] for d in documents])
    torch.testing.assert_close(packed, alone, atol=1e-5, rtol=1e-4)


@FAMILIES
@pytest.mark.parametrize("beams", [1, 3])
def test_generation_with_cache_equals_without(family, beams):
    model = contextlm(family, chunk_size=4, inject_every_layer=True)
    for length in (2, 4, 9):
        tokens = draw(2, length).clamp(min=1)  # 0 is the padding: generate() would take it for that
        options = {"max_new_tokens": 14, "do_sample": False, "num_beams": beams, "pad_token_id": 0}
        cached = model.generate(tokens, **options)
        assert torch.equal(cached, model.generate(tokens, use_cache=False, **options))
        padded = torch.nn.functional.pad(tokens, (5, 0))
        mask = torch.nn.functional.pad(torch.ones_like(tokens), (5, 0))
        assert torch.equal(model.generate(padded, attention_mask=mask, **options)[:, 5:], cached)


@FAMILIES
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_a_cropped_cache_goes_on_as_if_the_tokens_had_never_been(family, data):
    w = data.draw(st.sampled_from([1, 2, 3, 4, 7]))
    length = data.draw(st.integers(2, 20))
    pieces = data.draw(st.integers(1, 3))
    removed = data.draw(st.integers(0, length - 1))
    pads = data.draw(st.lists(st.integers(0, 3), min_size=2, max_size=2))
    model = contextlm(family, chunk_size=w)
    tokens, others = draw(2, length), draw(2, 8, seed=1)
    mask = torch.ones(2, length, dtype=torch.long)
    for row, pad in enumerate(pads):
        mask[row, : min(pad, length - removed - 1)] = 0
    cache, at = None, 0
    with torch.no_grad():
        for piece in tokens.tensor_split(pieces, dim=1):
            if piece.shape[1]:
                at += piece.shape[1]
                out = model(piece, attention_mask=mask[:, :at], past_key_values=cache, use_cache=True)
                cache = out.past_key_values
        cache.crop(-removed)
        kept = length - removed
        whole_mask = torch.cat([mask[:, :kept], mask.new_ones(2, 8)], 1)
        found = model(others, attention_mask=whole_mask, past_key_values=cache, use_cache=True).logits
        whole = torch.cat([tokens[:, :kept], others], 1)
        expected = model(whole, attention_mask=whole_mask, use_cache=False).logits[:, kept:]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@FAMILIES
def test_drafts_looked_up_in_the_prompt_change_nothing(family):
    """transformers' assisted generation crops the cache after each draft that is not accepted."""
    model = contextlm(family, chunk_size=4)
    tokens = draw(1, 6).clamp(min=1).repeat(1, 2)
    options = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 0}
    plain = model.generate(tokens, **options)
    assert torch.equal(model.generate(tokens, prompt_lookup_num_tokens=5, **options), plain)


@FAMILIES
def test_packed_documents_stay_apart_in_the_predictor_when_the_cache_goes_on(family):
    """The chunks of a neighbour that were cached are not seen by the document that goes on."""
    model = contextlm(family, chunk_size=2)
    first, second, more = draw(1, 6, seed=1), draw(1, 4, seed=2), draw(1, 2, seed=3)
    h = {name: model.get_input_embeddings()(ids) for name, ids in (("a", first), ("b", second), ("c", more))}
    positions = torch.cat([torch.arange(6), torch.arange(4)])[None]

    def contexts(parts, at):
        cache = DynamicCache()
        state = context_state(cache, 3, 2)
        for part, position in zip(parts, at, strict=True):
            mask = torch.ones_like(position, dtype=torch.bool)
            out = model.context.contexts_of_rows(part, model.backbone, position, mask, cache, state)
        return out.context_BTD

    with torch.no_grad():
        packed = contexts([torch.cat([h["a"], h["b"]], 1), h["c"]], [positions, torch.tensor([[4, 5]])])
        alone = contexts([h["b"], h["c"]], [torch.arange(4)[None], torch.tensor([[4, 5]])])
    torch.testing.assert_close(packed, alone, atol=1e-6, rtol=1e-5)


def test_the_predictor_runs_at_chunk_ends_only():
    model = contextlm("gpt2", chunk_size=4)
    calls = []
    model.context.layers[0].register_forward_hook(lambda *_: calls.append(1))
    model.generate(draw(1, 6), max_new_tokens=16, do_sample=False, pad_token_id=0)
    # The prompt's chunk (0-3) in one call, then the ends at positions 7, 11, 15, 19 of the 15 steps that follow.
    assert len(calls) == 1 + 4


@FAMILIES
def test_eager_attention_gives_the_same(family):
    model = contextlm(family, chunk_size=3)
    tokens = draw(2, 17)
    positions = torch.cat([torch.arange(8), torch.arange(9)])[None]
    with torch.no_grad():
        whole, packed = (
            model(tokens, use_cache=False).logits,
            model(tokens, position_ids=positions, use_cache=False).logits,
        )
        model.set_attn_implementation("eager")
        assert model.backbone.config._attn_implementation == "eager"
        torch.testing.assert_close(model(tokens, use_cache=False).logits, whole, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(
            model(tokens, position_ids=positions, use_cache=False).logits, packed, atol=1e-5, rtol=1e-4
        )


@FAMILIES
@FORMS
def test_saved_and_loaded_through_the_auto_class(family, options, tmp_path):
    model = contextlm(family, chunk_size=5, **options)
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(again) is ContextLMForCausalLM
    assert again.config.chunk_size == 5
    tokens = draw(2, 20)
    with torch.no_grad():
        assert torch.equal(model(tokens, use_cache=False).logits, again(tokens, use_cache=False).logits)
    tied = family == "gpt2"
    assert (again.lm_head.weight is again.get_input_embeddings().weight) == tied


@FAMILIES
def test_a_loaded_model_is_initialised_like_a_new_one(family):
    """No weight is left unset: a model made twice from one seed is the same, and its gate is zero."""
    torch.manual_seed(3)
    one = ContextLMForCausalLM(ContextLMConfig(backbone(family)))
    torch.manual_seed(3)
    two = ContextLMForCausalLM(ContextLMConfig(backbone(family)))
    for (name, a), b in zip(one.named_parameters(), two.parameters(), strict=True):
        assert torch.equal(a, b), name
        assert torch.isfinite(a).all(), name
    assert torch.count_nonzero(one.context.gate.weight) == 0
    weights = [p for p in one.context.layers.parameters() if p.dim() == 2]
    assert all(0.005 < w.std() < 0.05 for w in weights)


@FAMILIES
def test_loss_is_that_of_the_logits(family):
    model = contextlm(family)
    tokens = draw(3, 19)
    labels = tokens.clone()
    labels[0, :7] = -100
    logits = model(tokens, use_cache=False).logits
    expected = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    torch.testing.assert_close(model(tokens, labels=labels).loss, expected)
    model.train()
    out = model(tokens, labels=labels)
    assert out.logits is None
    torch.testing.assert_close(out.loss, expected)


def test_gradient_checkpointing_changes_nothing():
    tokens = draw(2, 16)
    gradients = []
    for checkpointing in (False, True):
        model = contextlm("gpt2").train()
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        model(tokens, labels=tokens).loss.backward()
        gradients.append({n: p.grad for n, p in model.named_parameters()})
    assert all(torch.equal(gradients[0][n], gradients[1][n]) for n in gradients[0])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"chunk_size": 0}, "chunk_size is 0"),
        ({"chunk_size": 2.5}, "whole number"),
        ({"predictor_layers": 0}, "predictor_layers is 0"),
        ({"injection_layer": 3}, "from 0 to 2"),
        ({"pooling": "max"}, "one of mean"),
        ({"injection": "multiply"}, "one of gate, add"),
    ],
)
def test_values_out_of_range_are_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        ContextLMConfig(backbone("gpt2"), **options)


def test_unknown_families_are_refused():
    with pytest.raises(ConfigError, match="no adapter for backbones of type 'bert'"):
        ContextLMConfig({"model_type": "bert"})


def test_misuse_gets_one_sentence():
    model = contextlm("gpt2")
    with pytest.raises(ConfigError, match="49 tokens are more than the backbone's 48"):
        model(draw(1, LONGEST + 1))
    with pytest.raises(ConfigError, match="label 61 is outside the vocabulary"):
        model(draw(1, 5), labels=torch.full((1, 5), VOCABULARY))
    stock = GPT2LMHeadModel(backbone("gpt2"))
    filled = stock(draw(1, 5), use_cache=True).past_key_values
    with pytest.raises(ConfigError, match="filled by a model without a context predictor"):
        model(draw(1, 1), past_key_values=filled, use_cache=True)
    cache = model(draw(1, 5), use_cache=True).past_key_values
    with pytest.raises(ConfigError, match="cropped by a negative number"):
        cache.layers[-1].crop(1)
