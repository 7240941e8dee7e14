"""FLOPs of stock decoders of other families: of experts, of recurrences, and of models whose code reads values."""

import pytest
import torch
from transformers import (
    HrmTextConfig,
    Lfm2MoeConfig,
    MambaConfig,
    MistralConfig,
    MixtralConfig,
    MptConfig,
    OPTConfig,
    PreTrainedConfig,
)

from contextwise.models.spec import ModelSpec, meta_model, training_flops_per_example

WIDTH, LAYERS, INNER, LENGTH = 32, 2, 48, 16
SIZES = {"vocab_size": 97, "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": 2}
LLAMA = {"num_key_value_heads": 2, "sliding_window": None, "max_position_embeddings": 64}


def flops(config: PreTrainedConfig, length: int = LENGTH) -> float:
    return training_flops_per_example(config, length) / length


@pytest.mark.parametrize("experts", [4, 8])
def test_the_experts_of_a_token_count_and_no_others(experts):
    """As a dense model whose layer is as wide as two experts, and the router's matrix."""
    mixtral = {"num_local_experts": experts, "num_experts_per_tok": 2}
    moe = MixtralConfig(**SIZES, **LLAMA, intermediate_size=INNER, **mixtral)
    dense = MistralConfig(**SIZES, **LLAMA, intermediate_size=2 * INNER)
    assert flops(moe) == flops(dense) + 6 * LAYERS * WIDTH * experts


@pytest.mark.parametrize(
    "config",
    [
        OPTConfig(**SIZES, ffn_dim=INNER, word_embed_proj_dim=WIDTH),
        MptConfig(vocab_size=97, d_model=WIDTH, n_layers=LAYERS, n_heads=2),
        MistralConfig(**SIZES, **(LLAMA | {"sliding_window": 4}), intermediate_size=INNER),
    ],
    ids=lambda config: config.model_type,
)
def test_a_dense_decoder_has_the_operations_of_its_weights_and_of_full_attention(config):
    assert training_flops_per_example(config, LENGTH) == ModelSpec().flops_per_example(meta_model(config), LENGTH)


def test_weights_that_are_used_several_times_count_as_often():
    config = HrmTextConfig(**SIZES, intermediate_size=INNER, num_key_value_heads=2, head_dim=16)
    assert flops(config) > 1.5 * ModelSpec().flops_per_example(meta_model(config), LENGTH) / LENGTH


def test_a_recurrence_has_no_attention_over_the_row():
    config = MambaConfig(vocab_size=97, hidden_size=WIDTH, num_hidden_layers=LAYERS, state_size=8)
    matrices = sum(
        part.weight.numel() for part in meta_model(config).backbone.modules() if hasattr(part, "in_features")
    )
    assert flops(config) > 6 * matrices
    assert flops(config, 2 * LENGTH) <= flops(config)


def test_code_that_reads_values_is_counted_without_a_change_of_the_random_state():
    def config(experts):
        sizes = {**SIZES, "layer_types": ["conv", "full_attention"], "num_dense_layers": 1, "num_key_value_heads": 2}
        inner = {"intermediate_size": INNER, "moe_intermediate_size": INNER, "num_experts_per_tok": 2}
        return Lfm2MoeConfig(**sizes, **inner, num_experts=experts)

    torch.manual_seed(0)
    before = torch.get_rng_state()
    four, eight = flops(config(4)), flops(config(8))
    assert torch.equal(torch.get_rng_state(), before)
    assert eight - four == 6 * WIDTH * 4
    assert four > ModelSpec().flops_per_example(meta_model(config(4)), LENGTH) / LENGTH + 6 * 2 * 3 * WIDTH * INNER
