"""Initial values: a composed part starts as the backbone's own parts do, whichever way the model is built."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, GPT2Config, MistralConfig, PreTrainedModel, Qwen2Config, set_seed

from contextwise.models import ContextLMConfig, ContextLMForCausalLM, ModelSize, backbone_config, build_model
from contextwise.models.building import initialize_by_name
from contextwise.models.contextlm.layers import OwnNorms
from contextwise.models.families import FAMILIES
from contextwise.training.model import starting_model
from contextwise.training.recipe import Recipe
from contextwise_papers.cue.config import CueDecoderConfig
from contextwise_papers.cue.parts import CueDecoder
from contextwise_papers.objectives import MultiTokenConfig, MultiTokenForCausalLM
from small import recipe_values

WIDTH = 64


def stock(family: str, layers: int) -> Any:
    if family in ("mistral", "qwen2"):
        sizes = {"hidden_size": WIDTH, "num_hidden_layers": layers, "num_attention_heads": 2, "num_key_value_heads": 2}
        kinds = {"mistral": MistralConfig, "qwen2": Qwen2Config}
        return kinds[family](vocab_size=90, intermediate_size=96, sliding_window=None, **sizes)
    return backbone_config(family, ModelSize(layers, WIDTH, 2, 1e-3), 90, 16)


KINDS: dict[str, Callable[[Any], Any]] = {
    "ContextLM": lambda config: ContextLMConfig(config, 4),
    "ContextLM with norms": lambda config: ContextLMConfig(config, 4, injection="own_norms", predictor_norm=True),
    "multi-token": lambda config: MultiTokenConfig(config, 3),
    "multi-token over ContextLM": lambda config: MultiTokenConfig(ContextLMConfig(config, 4), 2),
}


def paired(config: Any) -> Any:
    model = build_model(config)
    initialize_by_name(model, 3)
    return model


def retrofitted(config: Any) -> Any:
    options = {name: getattr(config, name) for name in ("chunk_size", "injection", "predictor_norm")}
    return ContextLMForCausalLM.from_backbone(build_model(config.backbone_config), **options)


WAYS: dict[str, Callable[[Any], Any]] = {
    "constructor": lambda config: {"contextlm": ContextLMForCausalLM, "multitoken": MultiTokenForCausalLM}[
        config.model_type
    ](config),
    "auto class": AutoModelForCausalLM.from_config,
    "training": build_model,
    "trial": paired,
    "retrofit": retrofitted,
}


def stock_part(model: Any) -> Any:
    while hasattr(model, "backbone"):
        model = model.backbone
    return model


def composed_blocks(model: Any) -> list[nn.Module]:
    blocks = list(getattr(model, "heads", ()))
    while model is not stock_part(model):
        blocks += list(model.context.layers) if hasattr(model, "context") else []
        model = model.backbone
    return blocks


def spreads(blocks: Any) -> dict[str, tuple[float, float]]:
    """Mean and standard deviation of each tensor over all blocks, by its name inside a block."""
    values: dict[str, list[torch.Tensor]] = {}
    for block in blocks:
        for name, parameter in block.named_parameters():
            values.setdefault(name, []).append(parameter.detach().flatten())
    joined = {name: torch.cat(parts) for name, parts in values.items()}
    return {name: (each.mean().item(), each.std().item()) for name, each in joined.items()}


def families() -> Iterator[str]:
    yield from FAMILIES
    yield "gpt2_rotary"


@pytest.mark.parametrize("layers", [2, pytest.param(12, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("kind", "way"),  # the heads of a retrofit are copies of the backbone's last block
    [(kind, way) for kind in KINDS for way in WAYS if way != "retrofit" or kind.startswith("ContextLM")],
)
@pytest.mark.parametrize("family", families())
def test_composed_blocks_start_as_the_backbones_own(family: str, kind: str, way: str, layers: int):
    set_seed(1)
    model = WAYS[way](KINDS[kind](stock(family, layers)))
    own, blocks = stock_part(model), composed_blocks(model)
    assert len(blocks) >= 2
    theirs, ours = spreads(FAMILIES[own.config.model_type].blocks(own)), spreads(blocks)
    assert ours.keys() == theirs.keys()
    for name, (mean, deviation) in theirs.items():
        assert ours[name][1] == pytest.approx(deviation, rel=0.08), name
        assert ours[name][0] == pytest.approx(mean, abs=0.12 * deviation), name
    for module in (each for each in model.modules() if isinstance(each, OwnNorms)):
        norms = [*module.state_norms, *module.context_norms, model.context.norm]
        final = spreads([getattr(own, model.family.norm_name)])  # ones and zeros
        assert len(norms) == 3 and spreads(norms) == final


@pytest.mark.parametrize("layers", [1, 24])
@pytest.mark.parametrize(
    ("family", "others", "residual", "ends"),
    [
        ("gpt2", lambda _: 0.02, lambda n: 0.02 / math.sqrt(2 * n), ("attn.c_proj", "mlp.c_proj")),
        ("gpt2_rotary", lambda _: 0.02, lambda n: 0.02 / math.sqrt(2 * n), ("attention.dense", "mlp.dense_4h_to_h")),
        (
            "gpt_neox",
            lambda _: math.sqrt(2 / (5 * WIDTH)),
            lambda n: 2 / (n * math.sqrt(WIDTH)),
            ("attention.dense", "mlp.dense_4h_to_h"),
        ),
        ("llama", lambda _: 0.02, lambda _: 0.02, ()),
    ],
)
def test_the_initial_values_of_a_family(family: str, others: Callable, residual: Callable, ends: tuple, layers: int):
    """GPT-2's, and those of GPT-NeoX-20B and Pythia: ``small_init`` and ``wang_init``."""
    set_seed(2)
    model = build_model(stock(family, layers))
    found = spreads(FAMILIES[model.config.model_type].blocks(model.base_model))
    matrices = {name: deviation for name, (_, deviation) in found.items() if name.endswith("weight") and deviation}
    assert len(matrices) >= 4
    for name, deviation in matrices.items():
        wanted = (residual if name.removesuffix(".weight") in ends else others)(layers)
        assert deviation == pytest.approx(wanted, rel=0.05), name
    assert model.get_input_embeddings().weight.std().item() == pytest.approx(others(layers), rel=0.05)


def test_the_decoder_of_cue_starts_as_gpt2():
    sizes = {"input_width": WIDTH, "cue_width": 16, "width": WIDTH, "layers": 8, "heads": 2}
    set_seed(3)
    decoder = CueDecoder(CueDecoderConfig(vocab_size=90, **sizes))
    found = spreads(decoder.transformer.h)
    for name in ("attn.c_proj", "crossattention.c_proj", "mlp.c_proj"):
        assert found[f"{name}.weight"][1] == pytest.approx(0.02 / 4, rel=0.05)
    assert found["crossattention.q_attn.weight"][1] == pytest.approx(0.02, rel=0.05)


@pytest.mark.parametrize("paired_initialization", [False, True])
@pytest.mark.parametrize("family", ["gpt2", "gpt_neox"])
def test_the_model_of_a_recipe_starts_as_its_backbone(
    tmp_path, corpus_folder, family: str, paired_initialization: bool
):
    values = recipe_values(corpus_folder, tmp_path, paired_initialization=paired_initialization)
    values["model"] = {
        "family": family,
        "layers": 12,
        "width": WIDTH,
        "heads": 2,
        "context_predictor": {"chunk_size": 4},
    }
    recipe = Recipe.model_validate(values)
    model = starting_model(recipe, ContextLMConfig(stock(family, 12), 4))
    end = {"gpt2": "mlp.c_proj.weight", "gpt_neox": "mlp.dense_4h_to_h.weight"}[family]
    theirs, ours = (spreads(blocks)[end][1] for blocks in (model.blocks, model.context.layers))
    assert ours == pytest.approx(theirs, rel=0.05)


def test_loaded_weights_are_kept_and_missing_ones_start_as_the_backbones(tmp_path):
    """Loading initializes what a checkpoint lacks, and nothing else."""
    set_seed(4)
    saved = ContextLMForCausalLM(
        ContextLMConfig(GPT2Config(vocab_size=90, n_positions=16, n_embd=WIDTH, n_layer=8, n_head=2))
    )
    lost = "context.layers.0.mlp.c_proj.weight"
    kept = {name: value for name, value in saved.state_dict().items() if name not in (lost, "lm_head.weight")}
    loaded = ContextLMForCausalLM.from_pretrained(None, config=saved.config, state_dict=dict(kept))
    for name, value in kept.items():
        assert torch.equal(loaded.state_dict()[name], value), name
    assert loaded.get_parameter(lost).std().item() == pytest.approx(0.005, rel=0.05)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "gpt2_rotary", "llama", "qwen3"])
@pytest.mark.parametrize(
    "further", [{}, {"context_predictor": {"chunk_size": 4}}, {"multi_token": {"future_tokens": 2}}]
)
def test_heads_are_tied_as_a_recipe_says(tmp_path, family: str, tied: bool, further: dict):
    model_settings = {"family": family, "size": "pico", "vocab_size": 90, "tie_embeddings": tied, **further}
    recipe = Recipe.model_validate(recipe_values(tmp_path, tmp_path) | {"model": model_settings})
    model = starting_model(recipe, recipe.model.config(recipe, 90, 0))
    assert (model.get_output_embeddings().weight is model.get_input_embeddings().weight) is tied
    assert model.config.tie_word_embeddings is tied


# Paired initialization: values that depend on the seed and the tensor's name only


def started(config: object, seed: int = 0) -> PreTrainedModel:
    set_seed(seed + 100)  # what the global generator holds has no effect
    model = build_model(config)
    initialize_by_name(model, seed)
    return model


def shallow(family: str, extra: int = 0) -> object:
    return backbone_config(family, ModelSize(2, 32, 2, 1e-3), 60, 16, extra)


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "llama"])
@pytest.mark.parametrize("over", [ContextLMConfig, lambda config: MultiTokenConfig(config, 3, "linear")])
def test_a_composition_starts_from_the_values_of_its_stock_model(family: str, over: Callable):
    plain, composed = started(shallow(family)), started(over(shallow(family)))
    theirs = composed.backbone.state_dict()
    ours = plain.base_model.state_dict()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert torch.equal(plain.get_output_embeddings().weight, composed.get_output_embeddings().weight)


def test_a_deeper_model_shares_all_but_its_further_blocks():
    plain, deep = started(shallow("gpt2")).state_dict(), started(shallow("gpt2", 1)).state_dict()
    for name, value in plain.items():
        other = deep[name]
        if name.endswith("c_proj.weight"):  # GPT-2 scales these with the number of blocks
            other = other * (3 / 2) ** 0.5
        torch.testing.assert_close(value, other)


def test_seeds_and_names_have_values_of_their_own_with_the_usual_spread():
    first, second = started(shallow("gpt2")), started(shallow("gpt2"), seed=1)
    blocks = first.transformer.h
    assert not torch.equal(first.transformer.wte.weight, second.transformer.wte.weight)
    assert not torch.equal(blocks[0].attn.c_attn.weight, blocks[1].attn.c_attn.weight)
    assert blocks[0].attn.c_attn.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert first.lm_head.weight is first.transformer.wte.weight


def test_the_global_generator_is_as_before():
    model = build_model(shallow("gpt2"))
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    initialize_by_name(model, 0)
    assert torch.equal(torch.rand(3), expected)
