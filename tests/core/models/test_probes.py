"""Probes of attention: which families keep packed documents apart and read prefixes, and what a probe leaves as it is."""

import contextlib

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    FalconConfig,
    GPT2Config,
    GPTNeoConfig,
    LlamaConfig,
    MambaConfig,
    MixtralConfig,
    OPTConfig,
)

from contextwise.models.probes import keeps_documents_apart, reads_prefixes

SIZES = {"vocab_size": 97, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
WIDE = SIZES | {"intermediate_size": 24, "num_key_value_heads": 2}
NEO = {"num_layers": 2, "num_heads": 2, "attention_types": [[["global"], 2]]}
# Each with whether it keeps documents apart (None: from transformers 5.24 on), does so where they begin with a prefix, and
# reads prefixes.
FAMILIES = [
    (GPT2Config(vocab_size=97, n_embd=16, n_layer=2, n_head=2), True, True, True),
    (LlamaConfig(**WIDE), True, True, True),
    (MixtralConfig(**WIDE, num_local_experts=4), True, True, True),
    (FalconConfig(**SIZES), None, True, True),
    (GPTNeoConfig(vocab_size=97, hidden_size=16, **NEO), True, True, False),
    (OPTConfig(**SIZES, ffn_dim=24, word_embed_proj_dim=16), False, True, False),
    (BloomConfig(vocab_size=97, hidden_size=16, n_layer=2, n_head=2), False, False, False),
    (MambaConfig(vocab_size=97, hidden_size=16, num_hidden_layers=2, state_size=4), False, False, False),
]


@pytest.mark.parametrize(
    ("config", "apart", "apart_with_prefix", "prefix"), FAMILIES, ids=[each[0].model_type for each in FAMILIES]
)
def test_what_a_family_reads(config, apart, apart_with_prefix, prefix):
    """As the effects of other tokens on a loss say; a model that fails on such rows does not read them."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    assert keeps_documents_apart(model, prefix=True) == apart_with_prefix
    assert reads_prefixes(model) == prefix
    ids, other = torch.randint(3, 97, (2, 1, 12))
    ids[0, 6:] = other[0, 6:]
    positions = torch.arange(6).repeat(2)[None]
    same = False
    with torch.no_grad(), contextlib.suppress(TypeError):  # of a model that takes no positions
        logits = [model(each, position_ids=positions, use_cache=False).logits[:, 6:] for each in (ids, other)]
        same = torch.allclose(*logits, atol=1e-6)
    assert keeps_documents_apart(model) == same and apart in (same, None)


def test_a_probe_leaves_the_model_and_the_random_state_as_they_are():
    model = AutoModelForCausalLM.from_config(LlamaConfig(**WIDE, attention_dropout=0.5)).train()
    model.model.norm.eval()
    model.lm_head.requires_grad_(False)
    modes = [module.training for module in model.modules()]
    torch.manual_seed(0)
    before = torch.get_rng_state()
    assert keeps_documents_apart(model) and reads_prefixes(model)
    assert torch.equal(torch.get_rng_state(), before)
    assert [module.training for module in model.modules()] == modes
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not model.get_input_embeddings()._forward_hooks
