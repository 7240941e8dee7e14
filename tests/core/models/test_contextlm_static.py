"""A cache of fixed size gives what the growing one gives, step by step, in two compiled graphs."""

import pytest
import torch
from torch._dynamo.utils import counters
from transformers import CompileConfig, StaticCache

from contextlm_models import FAMILIES, LONGEST, VOCABULARY, contextlm, draw
from contextwise.base.errors import ConfigError

OPTIONS = {"max_new_tokens": 19, "do_sample": False, "pad_token_id": 0}
PADDED = torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6, [0, 0, 0, 0, 0, 1]])
NORMS = {"injection": "shared_norm", "initial_context": "zero", "predictor_norm": True, "embedding_norm": True}


def prompts(rows=3, length=6):
    return 1 + draw(rows, length) % (VOCABULARY - 1)


@FAMILIES
@pytest.mark.parametrize("w", [1, 2, 3, 4, 7, 16])
def test_each_step_equals_the_full_pass(family, w, device):
    """A prompt in two parts, then token by token, in rows that are padded differently."""
    model = contextlm(family, chunk_size=w, **({3: {"inject_every_layer": True}, 4: NORMS}.get(w, {}))).to(device)
    mask = torch.cat([PADDED, torch.ones(3, 18, dtype=torch.long)], dim=1).to(device)
    tokens = prompts(3, 24).to(device)
    cache, result = StaticCache(config=model.config, max_cache_len=30), []
    start = 0
    with torch.no_grad():
        whole = model(tokens, attention_mask=mask, use_cache=False).logits
        for size in [6, 5, *[1] * 13]:
            end = start + size
            part = model(tokens[:, start:end], attention_mask=mask[:, :end], past_key_values=cache, use_cache=True)
            result.append(part.logits)
            start = end
    torch.testing.assert_close(torch.cat(result, dim=1)[mask.bool()], whole[mask.bool()], atol=1e-5, rtol=1e-5)


@FAMILIES
@pytest.mark.parametrize("beams", [1, 3])
def test_generation_is_that_of_the_growing_cache(family, beams):
    model = contextlm(family, chunk_size=3)
    options = OPTIONS | {"attention_mask": PADDED, "num_beams": beams}
    growing = model.generate(prompts(), **options)
    assert torch.equal(model.generate(prompts(), cache_implementation="static", **options), growing)


def test_eager_attention_gives_the_same():
    model = contextlm("llama", chunk_size=3)
    sdpa = model.generate(prompts(), attention_mask=PADDED, cache_implementation="static", **OPTIONS)
    model.set_attn_implementation("eager")
    eager = model.generate(prompts(), attention_mask=PADDED, cache_implementation="static", **OPTIONS)
    assert torch.equal(eager, sdpa)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_decoding_compiles_into_two_graphs(family):
    """One with the predictor and one without; a second call compiles nothing."""
    model = contextlm(family, chunk_size=3)
    compiled = CompileConfig(fullgraph=True, backend="eager", dynamic=False, mode=None)
    compiled._compile_all_devices = True  # transformers compiles by itself on accelerators only
    options = OPTIONS | {"attention_mask": PADDED}
    growing = model.generate(prompts(), **options)
    torch._dynamo.reset()
    counters.clear()
    for _ in range(2):
        result = model.generate(prompts(), cache_implementation="static", compile_config=compiled, **options)
        assert torch.equal(result, growing)
        assert counters["stats"]["unique_graphs"] == 2
    assert not counters["graph_break"]


def test_a_cache_can_be_used_again():
    model = contextlm("llama", chunk_size=3)
    cache = StaticCache(config=model.config, max_cache_len=LONGEST)
    first = model.generate(prompts(), past_key_values=cache, **OPTIONS)
    cache.reset()
    assert torch.equal(model.generate(prompts(), past_key_values=cache, **OPTIONS), first)


def test_unsupported_caches_are_rejected():
    model = contextlm("llama")
    other = StaticCache(config=contextlm("llama", predictor_layers=1).config, max_cache_len=20)
    contextlm("llama", predictor_layers=1)(prompts(), past_key_values=other, use_cache=True)
    with pytest.raises(ConfigError, match="comes from another model"):
        model(prompts(), past_key_values=other, use_cache=True)
    shallow = StaticCache(config=model.config, max_cache_len=20)
    shallow.layers.pop()
    with pytest.raises(ConfigError, match="comes from another model"):
        model(prompts(), past_key_values=shallow, use_cache=True)
