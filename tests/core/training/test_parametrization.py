"""µP: identities at the base width, factors by hand, sizes of activations over widths, and runs."""

from typing import Any

import pytest
import torch
from pydantic import ValidationError
from transformers import GptOssConfig, MixtralConfig, set_seed
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssTopKRouter
from transformers.models.mixtral.modeling_mixtral import MixtralExperts, MixtralTopKRouter

from contextwise.base.errors import ConfigError
from contextwise.models import ModelSize, backbone_config, build_model
from contextwise.models.contextlm import ContextLMConfig
from contextwise.models.sizes import SIZES
from contextwise.models.spec import meta_model
from contextwise.training import Recipe
from contextwise.training.hyperparameters import TrainingSettings
from contextwise.training.kinds import SizedModel
from contextwise.training.model import starting_model
from contextwise.training.optimizer import create_optimizer
from contextwise.training.parametrization import Scale, mup_scales, parameter_scales, scale_initial_values
from contextwise_papers.objectives.multitoken import MultiTokenConfig
from small import recipe_values
from trained import trained

MUP = {"parametrization": "mup", "mup_base_width": 16}
CONTEXT = {"context_predictor": {"chunk_size": 4}}


def config_of(family: str, width: int, layers: int = 2, **further: Any) -> Any:
    backbone = backbone_config(family, ModelSize(layers, width, width // 8, 1e-3), 50, 16)
    if further.get("chunk_size"):
        return ContextLMConfig(backbone, **further)
    return MultiTokenConfig(backbone, **further) if further else backbone


def scales(family: str, width: int, layers: int = 2, muon: str = "original", **further: Any) -> dict[str, Scale]:
    wide, base = (meta_model(config_of(family, each, layers, **further)) for each in (width, 16))
    return mup_scales(wide, base, muon)


def test_the_factors_of_gpt2_by_hand():
    found = scales("gpt2", 64)
    for layer in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"):
        assert found[f"transformer.h.1.{layer}.weight"] == Scale(initial=0.5, adamw=0.25, epsilon=0.25)
        assert found[f"transformer.h.1.{layer}.bias"] == Scale(epsilon=0.25)
    assert found["transformer.ln_f.weight"] == found["transformer.ln_f.bias"] == Scale(0.25, 0.25)
    for name in ("wte.weight", "wpe.weight", "h.0.ln_1.weight"):
        assert found[f"transformer.{name}"] == Scale(epsilon=0.25)


def test_the_factors_of_gpt_neox_by_hand():
    """Its initial values fall with the root of the width already: those of its matrices stay, embedding and head do not."""
    wide, base = (config_of("gpt_neox", width) for width in (32, 16))
    found = mup_scales(meta_model(wide), meta_model(base))
    root = pytest.approx(2**0.5)
    for name in ("lm_head.weight", "gpt_neox.embed_in.weight"):
        assert (found[name].initial, found[name].adamw, found[name].epsilon) == (root, 1, 0.5)
    assert found["gpt_neox.final_layer_norm.weight"] == Scale(0.5, 0.5)
    for name in ("mlp.dense_4h_to_h", "mlp.dense_h_to_4h", "attention.query_key_value"):
        matrix = found[f"gpt_neox.layers.0.{name}.weight"]
        assert (matrix.initial, matrix.adamw, matrix.epsilon) == (pytest.approx(1), 0.5, 0.5)
        assert found[f"gpt_neox.layers.0.{name}.bias"] == Scale(epsilon=0.5)


@pytest.mark.parametrize("family", ["gpt2", "gpt2_rotary", "gpt_neox", "llama", "qwen3"])
def test_initial_values_follow_the_rule_for_every_family(family):
    """Matrices of blocks: the base's deviation / √m. Embeddings and heads: the base's."""

    def deviations(width: int, layers: int, factors: dict[str, Scale]) -> dict[str, float]:
        set_seed(width + layers)
        model = build_model(config_of(family, width, layers))
        scale_initial_values(model, factors)
        return {name: each.std().item() for name, each in model.named_parameters() if each.dim() == 2}

    base, wide = deviations(16, 4, {}), deviations(64, 4, scales(family, 64, 4))
    for name, deviation in base.items():
        inside = ".layers." in name or ".h." in name
        assert wide[name] == pytest.approx(deviation / (2 if inside else 1), rel=0.2), name


# The feed-forward layer of width 64 is as wide as a vocabulary of 256; the last layer of the mlp pooling is square.
@pytest.mark.parametrize(
    ("family", "vocabulary", "name"),
    [("gpt_neox", 256, "gpt_neox.layers.0.mlp.dense_h_to_4h.weight"), ("gpt2", 64, "context.pooling.out.weight")],
)
def test_a_matrix_in_the_shape_of_the_head_is_no_head(family, vocabulary, name):
    shapes = [backbone_config(family, ModelSize(2, width, width // 8, 1e-3), vocabulary, 16) for width in (64, 16)]
    if name.startswith("context"):
        shapes = [ContextLMConfig(shape, chunk_size=4, pooling="mlp") for shape in shapes]
    wide, base = map(meta_model, shapes)
    assert wide.get_parameter(name).shape == wide.lm_head.weight.shape
    found = mup_scales(wide, base)
    assert found[name].adamw == 0.25 and next(iter(found.values())).adamw == 1  # the embedding's
    muon = create_optimizer(wide, TrainingSettings(steps=1, optimizer="muon"), 1e-3).parts[1]
    trained = {id(parameter) for group in muon.param_groups for parameter in group["params"]}
    assert id(wide.get_parameter(name)) in trained and id(wide.lm_head.weight) not in trained


def test_the_factors_of_the_pathway_and_of_further_heads():
    found = scales("gpt2", 32, chunk_size=4, pooling="mlp")
    matrix, vector = Scale(2**-0.5, 0.5, epsilon=0.5), Scale(epsilon=0.5)
    assert found["context.layers.0.attn.c_attn.weight"] == found["context.pooling.inner.weight"] == matrix
    assert scales("llama", 32, chunk_size=4)["context.gate.weight"] == vector  # one factor a channel
    norms = scales("llama", 32, chunk_size=4, injection="own_norms", predictor_norm=True)
    for norm in ("norm", "gate.state_norms.0", "gate.context_norms.0"):
        assert norms[f"context.{norm}.weight"] == vector
    further = scales("gpt2", 32, future_tokens=3, head="linear")
    assert {scale for name, scale in further.items() if name.startswith("heads.")} == {vector}


def test_a_norm_with_a_second_use_leaves_its_factor_to_the_head():
    """Merging contexts with a norm of 1/m would shrink what the blocks read; a tied head is an embedding too."""
    options: dict[str, Any] = {"chunk_size": 4, "injection": "shared_norm"}
    with pytest.raises(ConfigError, match="set model.tie_embeddings to false, or the injection to own_norms"):
        scales("gpt2", 32, **options)
    found, plain = scales("gpt_neox", 32, **options), scales("gpt_neox", 32)
    assert found["backbone.final_layer_norm.weight"] == Scale(epsilon=0.5)
    assert found["backbone.embed_in.weight"] == plain["gpt_neox.embed_in.weight"]
    head = plain["lm_head.weight"]
    assert found["lm_head.weight"] == Scale(initial=head.initial / 2, adamw=head.adamw / 2)


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "optimizer"), [({}, "adamw"), (CONTEXT, "muon"), ({"multi_token": {"future_tokens": 2}}, "muon")]
)
def test_the_base_width_is_the_standard_parametrization(tmp_path, corpus_folder, model, optimizer):
    losses = []
    for own in ({}, MUP):
        values = recipe_values(corpus_folder, tmp_path / str(len(own)), optimizer=optimizer, steps=4, **own)
        values["model"] = {**values["model"], "width": 16, "heads": 2, **model}
        run = trained(values)
        losses.append([row["loss"] for row in run.metrics("train")])
    assert losses[0] == losses[1]


def test_initial_values_and_rates_reach_the_parameters():
    config = config_of("gpt2", 64)
    found = scales("gpt2", 64)
    torch.manual_seed(0)
    plain = build_model(config)
    torch.manual_seed(0)
    model = build_model(config)
    scale_initial_values(model, found)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for name, parameter in plain.named_parameters():
        assert torch.equal(before[name], parameter * found.get(name, Scale()).initial)
    settings = TrainingSettings(steps=1, weight_decay=0.1)
    optimizer = create_optimizer(model, settings, 1e-2, found)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():  # the first step of Adam is the rate; all matrices decay alike
        decay = 1e-2 * 0.1 if parameter.dim() > 1 else 0
        step = 1e-2 * found.get(name, Scale()).adamw
        torch.testing.assert_close(parameter, before[name] * (1 - decay) - step, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("adjustment", ["original", "match_rms_adamw"])
def test_muon_changes_outputs_alike_at_every_width(adjustment):
    """For gradients of rank 1, the spectral norm of a square matrix's update is that of the base width."""
    norms = []
    for width in (16, 64):
        model = build_model(config_of("llama", width))
        settings = TrainingSettings(steps=1, optimizer="muon", muon_adjustment=adjustment, muon_weight_decay=0)
        optimizer = create_optimizer(model, settings, 1e-3, scales("llama", width, muon=adjustment))
        matrix = model.get_parameter("model.layers.0.self_attn.q_proj.weight")
        before = matrix.detach().clone()
        matrix.grad = torch.outer(torch.randn(width), torch.randn(width))
        optimizer.step()
        norms.append(torch.linalg.matrix_norm(matrix - before, 2).item())
    assert norms[0] == pytest.approx(norms[1], rel=1e-3)


def test_steps_of_small_gradients_are_alike_at_every_width():
    """Gradients are proportional to 1/m: as small as AdamW's ε at the base width, they are as small as ε / m here."""
    steps = []
    for width in (16, 64):
        model = build_model(config_of("gpt2", width, chunk_size=4))
        optimizer = create_optimizer(model, TrainingSettings(steps=1), 1e-2, scales("gpt2", width, chunk_size=4))
        gate = model.context.gate.weight
        gate.grad = torch.full_like(gate, 1e-8 * 16 / width)
        optimizer.step()
        steps.append(gate[0, 0].item())
    assert steps == pytest.approx([-0.5e-2, -0.5e-2])


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"model": {"family": "bert", "size": "pico"}, "objective": "masked"}, "only new models of the families"),
        ({"model": {"family": "gpt2", "size": "nano"}, "base": 100}, "heads keep their width in every size, here 32"),
    ],
)
def test_what_has_no_such_parametrization_is_refused(corpus_folder, tmp_path, values, sentence):
    recipe = recipe_values(corpus_folder, tmp_path)
    recipe["training"] |= {"parametrization": "mup", "mup_base_width": values.pop("base", 128)}
    with pytest.raises(ValidationError, match=sentence):
        Recipe.model_validate(recipe | values)


def test_without_a_rate_that_of_the_base_width_is_scaled(corpus_folder, tmp_path):
    """A size's own rate is for its width under the standard parametrization; scaled once more it would be wrong twice."""
    recipe = recipe_values(corpus_folder, tmp_path) | {"model": {"family": "gpt2", "size": "tiny"}}
    recipe["training"] |= {"parametrization": "mup", "mup_base_width": 128, "learning_rate": None}
    assert Recipe.model_validate(recipe).learning_rate == SIZES["gpt2"]["nano"].learning_rate
    recipe["training"] |= {"parametrization": "standard"}
    assert Recipe.model_validate(recipe).learning_rate == SIZES["gpt2"]["tiny"].learning_rate
    recipe["training"] |= {"parametrization": "mup", "mup_base_width": 96}
    with pytest.raises(
        ValidationError, match="96, a width without a measured learning rate; give training.learning_rate, or"
    ):
        Recipe.model_validate(recipe)
    recipe["training"] |= {"learning_rate": 1e-3}
    assert Recipe.model_validate(recipe).learning_rate == 1e-3


def test_the_recipe_gives_the_factors_of_its_model(corpus_folder, tmp_path):
    values = recipe_values(corpus_folder, tmp_path, **MUP)
    values["model"] = {"family": "gpt2", "size": "pico", "feed_forward": 96, "heads": 8}
    recipe = Recipe.model_validate(values)
    assert isinstance(recipe.model, SizedModel)
    config = backbone_config("gpt2", recipe.model.shape, 60, recipe.data.context)
    config.n_inner = 96
    found = parameter_scales(recipe, config)
    assert found["transformer.h.0.mlp.c_proj.weight"] == Scale(
        0.5, 0.25, epsilon=0.25
    )  # 96 channels, 24 at a quarter of the width
    torch.manual_seed(0)
    norm = starting_model(recipe, config).transformer.ln_f.weight
    assert torch.equal(norm, torch.full_like(norm, 0.25))


def routers(width: int) -> torch.nn.ModuleDict:
    """A linear router of 4 experts, and those of transformers, which are not linear layers."""
    sizes = {"hidden_size": width, "intermediate_size": 24, "num_local_experts": 4}
    raw = {"mixtral": MixtralTopKRouter(MixtralConfig(**sizes)), "gpt_oss": GptOssTopKRouter(GptOssConfig(**sizes))}
    modules = torch.nn.ModuleDict({"linear": torch.nn.Linear(width, 4), **raw})
    set_seed(width)
    for module in modules.values():
        torch.nn.init.normal_(module.weight, std=0.02)
    return modules


class Layers(torch.nn.Module):
    """A stock model with further layers of several classes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.model = meta_model(config_of("gpt2", width))
        with torch.device("meta"):
            self.convolution = torch.nn.Conv1d(width, width, 3)
            self.reading = torch.nn.modules.linear.NonDynamicallyQuantizableLinear(width, 7)
            self.positions = LearnedPositions(width)
        self.routers = routers(width)


class LearnedPositions(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(16, width))


def test_the_factors_of_convolutions_and_of_subclasses_of_layers():
    found = mup_scales(Layers(64), Layers(16))
    assert found["convolution.weight"] == found["reading.weight"] == Scale(0.5, 0.25, epsilon=0.25)
    assert found["convolution.bias"] == found["positions.weight"] == Scale(epsilon=0.25)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_every_router_is_scaled_and_decays_as_a_linear_layer(optimizer):
    settings = TrainingSettings(steps=1, optimizer=optimizer, weight_decay=0.1)
    wide, base = Layers(64), Layers(16)
    factors = mup_scales(wide, base)
    scale_initial_values(wide, factors)
    groups = create_optimizer(wide, settings, 1e-2, factors).param_groups
    of = {id(each): (group["lr"], group["weight_decay"]) for group in groups for each in group["params"]}
    for name, router in wide.routers.items():
        start = base.routers[name].weight.std().item()
        assert router.weight.std().item() == pytest.approx(start / 2, rel=0.3)
        assert of[id(router.weight)] == ((0.0025, 0.4) if optimizer == "adamw" else (0.02, 0.01))


def test_experts_and_models_without_a_stock_backbone_are_refused():
    with pytest.raises(ConfigError, match="parametrization is 'mup', but this model has no stock backbone"):
        mup_scales(torch.nn.Linear(64, 64), torch.nn.Linear(16, 16))
    experts = MixtralExperts(MixtralConfig(hidden_size=64, intermediate_size=24, num_local_experts=4))
    for stacked in (experts, torch.nn.ParameterList([torch.zeros(3, 50, 64)])):  # or several tables of embeddings
        wide = Layers(64)
        wide.stacked = stacked
        with pytest.raises(ConfigError, match="parametrization is 'mup', but a parameter of this model stacks several"):
            mup_scales(wide, Layers(16))
