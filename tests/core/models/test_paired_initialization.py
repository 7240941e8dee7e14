"""Initial values that depend on the seed and the tensor's name only."""

from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel, set_seed

from contextwise.models import ModelSize, backbone_config, build_model
from contextwise.models.building import initialize_by_name
from contextwise.models.contextlm import ContextLMConfig
from contextwise_papers.objectives.multitoken import MultiTokenConfig

SIZE = ModelSize(2, 32, 2, 1e-3)


def started(config: object, seed: int = 0) -> PreTrainedModel:
    set_seed(seed + 100)  # what the global generator holds has no effect
    model = build_model(config)
    initialize_by_name(model, seed)
    return model


def stock(family: str, extra: int = 0) -> object:
    return backbone_config(family, SIZE, 60, 16, extra)


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "llama"])
@pytest.mark.parametrize("over", [ContextLMConfig, lambda config: MultiTokenConfig(config, 3, "linear")])
def test_a_composition_starts_from_the_values_of_its_stock_model(family: str, over: Callable):
    plain, composed = started(stock(family)), started(over(stock(family)))
    theirs = composed.backbone.state_dict()
    ours = plain.base_model.state_dict()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert torch.equal(plain.get_output_embeddings().weight, composed.get_output_embeddings().weight)


def test_a_deeper_model_shares_all_but_its_further_blocks():
    plain, deep = started(stock("gpt2")).state_dict(), started(stock("gpt2", 1)).state_dict()
    for name, value in plain.items():
        other = deep[name]
        if name.endswith("c_proj.weight"):  # GPT-2 scales these with the number of blocks
            other = other * (3 / 2) ** 0.5
        torch.testing.assert_close(value, other)


def test_seeds_and_names_have_values_of_their_own_with_the_usual_spread():
    first, second = started(stock("gpt2")), started(stock("gpt2"), seed=1)
    blocks = first.transformer.h
    assert not torch.equal(first.transformer.wte.weight, second.transformer.wte.weight)
    assert not torch.equal(blocks[0].attn.c_attn.weight, blocks[1].attn.c_attn.weight)
    assert blocks[0].attn.c_attn.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert first.lm_head.weight is first.transformer.wte.weight


def test_the_global_generator_is_as_before():
    model = build_model(stock("gpt2"))
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    initialize_by_name(model, 0)
    assert torch.equal(torch.rand(3), expected)
