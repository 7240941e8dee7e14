"""ContextLM's cache: every step, row, beam, crop and packed document equals the full pass."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import DynamicCache, StaticCache

from contextlm_models import EVERY_FAMILY, FAMILIES, FORMS, contextlm, draw
from contextwise.base.errors import ConfigError
from contextwise.models.contextlm.cache import context_state
from examples import FEW


@EVERY_FAMILY
@FORMS
@FEW
@given(data=st.data())
def test_every_cached_step_equals_the_full_pass(family, options, device, data):
    w = data.draw(st.sampled_from([1, 2, 3, 4, 7, 16]))
    length = data.draw(st.integers(2, 24))
    prompt = data.draw(st.integers(1, length))
    piece = data.draw(st.integers(1, 5))
    model = contextlm(family, chunk_size=w, **options).to(device)
    tokens = draw(2, length).to(device)
    with torch.no_grad():
        full = model(tokens, use_cache=False).logits
        out = model(tokens[:, :prompt], use_cache=True)
        result, at = [out.logits], prompt
        while at < length:
            out = model(tokens[:, at : at + piece], past_key_values=out.past_key_values, use_cache=True)
            result.append(out.logits)
            at += piece
    torch.testing.assert_close(torch.cat(result, 1), full, atol=1e-5, rtol=1e-4)


@FAMILIES
@FORMS
@FEW
@given(data=st.data())
def test_padded_rows_equal_each_row_alone(family, options, device, data):
    w = data.draw(st.integers(1, 6))
    lengths = data.draw(st.lists(st.integers(1, 14), min_size=2, max_size=4))
    more = data.draw(st.integers(1, 6))
    model = contextlm(family, chunk_size=w, **options).to(device)
    rows = [draw(1, n + more, seed=i)[0].to(device) for i, n in enumerate(lengths)]
    longest = max(lengths)
    padded = torch.stack([torch.nn.functional.pad(r[:n], (longest - n, 0)) for r, n in zip(rows, lengths, strict=True)])
    mask = torch.stack([torch.nn.functional.pad(torch.ones(n, dtype=torch.long), (longest - n, 0)) for n in lengths])
    mask = mask.to(device)
    with torch.no_grad():
        out = model(padded, attention_mask=mask, use_cache=True)
        result = [out.logits]
        for step in range(more):  # rows complete their chunks at different steps
            mask = torch.cat([mask, mask.new_ones(len(rows), 1)], 1)
            token = torch.stack([r[n + step] for r, n in zip(rows, lengths, strict=True)])[:, None]
            out = model(token, attention_mask=mask, past_key_values=out.past_key_values, use_cache=True)
            result.append(out.logits)
        result = torch.cat(result, 1)
        for i, (row, n) in enumerate(zip(rows, lengths, strict=True)):
            alone = model(row[None], use_cache=False).logits[0]
            torch.testing.assert_close(result[i, longest - n :], alone, atol=1e-5, rtol=1e-4)


@FAMILIES
@FEW
@given(data=st.data())
def test_a_cropped_cache_continues_as_if_the_tokens_were_never_added(family, data):
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
        result = model(others, attention_mask=whole_mask, past_key_values=cache, use_cache=True).logits
        whole = torch.cat([tokens[:, :kept], others], 1)
        expected = model(whole, attention_mask=whole_mask, use_cache=False).logits[:, kept:]
    torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("change", ["repeat", "select"])
def test_rows_are_repeated_and_selected_after_a_crop_to_before_the_first_chunk(change):
    model = contextlm("gpt2", chunk_size=4)
    tokens, others = draw(3, 6), draw(6, 7, seed=1)
    rows = torch.tensor([0, 0, 1, 1, 2, 2] if change == "repeat" else [2, 0])
    with torch.no_grad():
        cache = model(tokens, use_cache=True).past_key_values
        cache.crop(-3)
        cache.batch_repeat_interleave(2) if change == "repeat" else cache.batch_select_indices(rows)
        result = model(others[: len(rows)], past_key_values=cache, use_cache=True).logits
        whole = torch.cat([tokens[rows, :3], others[: len(rows)]], 1)
        expected = model(whole, use_cache=False).logits[:, 3:]
    torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-4)


@FAMILIES
def test_prompt_lookup_changes_nothing(family):
    """transformers' assisted generation crops the cache after each draft that is not accepted."""
    model = contextlm(family, chunk_size=4)
    tokens = draw(1, 6).clamp(min=1).repeat(1, 2)
    options = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 0}
    plain = model.generate(tokens, **options)
    assert torch.equal(model.generate(tokens, prompt_lookup_num_tokens=5, **options), plain)


@FAMILIES
def test_packed_documents_stay_apart_in_the_predictor_when_the_cache_continues(family):
    """The chunks of a neighbour that were cached are not seen by the document that goes on."""
    model = contextlm(family, chunk_size=2)
    first, second, more = draw(1, 6, seed=1), draw(1, 4, seed=2), draw(1, 2, seed=3)
    h = {name: model.get_input_embeddings()(ids) for name, ids in (("a", first), ("b", second), ("c", more))}
    positions = torch.cat([torch.arange(6), torch.arange(4)])[None]

    def contexts(parts, at):
        cache = DynamicCache()
        state = context_state(cache, model.config)
        for part, position in zip(parts, at, strict=True):
            mask = torch.ones_like(position, dtype=torch.bool)
            out = model.context.contexts_of_rows(part, model.backbone, position, mask, cache, state)
        return out

    with torch.no_grad():
        packed = contexts([torch.cat([h["a"], h["b"]], 1), h["c"]], [positions, torch.tensor([[4, 5]])])
        alone = contexts([h["b"], h["c"]], [torch.arange(4)[None], torch.tensor([[4, 5]])])
    torch.testing.assert_close(packed, alone, atol=1e-6, rtol=1e-5)


@FAMILIES
def test_a_document_that_begins_in_a_cached_step_takes_its_own_first_token(family):
    """One token at position 0 behind a filled cache: its context is h_0 of the new document, not the one carried along."""
    model = contextlm(family, chunk_size=4)
    h = model.get_input_embeddings()(draw(1, 8))
    cache = DynamicCache()
    state = context_state(cache, model.config)
    result = []
    with torch.no_grad():
        for i, position in enumerate([0, 1, 2, 3, 4, 0, 1, 2]):
            out = model.context.contexts_of_rows(
                h[:, i : i + 1],
                model.backbone,
                torch.tensor([[position]]),
                torch.ones(1, 1, dtype=torch.bool),
                cache,
                state,
            )
            result.append(out[0, 0])
    for i in (0, 1, 2):
        assert torch.equal(result[i], h[0, 0])
    assert torch.equal(result[3], result[4])  # the context after the first chunk
    for i in (5, 6, 7):
        assert torch.equal(result[i], h[0, 5])


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_the_predictor_runs_at_chunk_ends_only(family, cache):
    model = contextlm(family, chunk_size=4)
    calls = []
    model.context.layers[0].register_forward_hook(lambda *_: calls.append(1))
    options = {"max_new_tokens": 19, "do_sample": False, "pad_token_id": 0, "attention_mask": torch.ones(2, 6)}
    model.generate(draw(2, 6), cache_implementation=cache, **options)
    # The prompt's chunk (0-3) in one call, then the ends at positions 7, 11, 15, 19 and 23 of the 18 steps that follow.
    assert len(calls) == 1 + 5


@pytest.mark.parametrize("cache", [DynamicCache, StaticCache])
def test_prompts_padded_on_the_right_are_refused(cache):
    model, mask = contextlm("gpt2"), torch.tensor([[1, 1, 1, 0]])
    model(draw(1, 4), attention_mask=mask)  # read, not continued: test_clients.py
    options = {"cache_implementation": "static"} if cache is StaticCache else {}
    with pytest.raises(ConfigError, match="pad on the left to generate"):
        model.generate(draw(1, 4), attention_mask=mask, max_new_tokens=2, pad_token_id=0, **options)
