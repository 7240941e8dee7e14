"""Training on with a longer context: a rotary model starts as it is extended for inference, and is exported so."""

import copy

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, GPTNeoXConfig, GPTNeoXForCausalLM, LlamaConfig, LlamaForCausalLM

from contextwise.base.config import validate
from contextwise.base.errors import ConfigError
from contextwise.models import ContextLMConfig, ContextLMForCausalLM, load_model
from contextwise.models.rope import extend_config, extend_positions, rotary_modules
from contextwise.training import Recipe, train
from contextwise.training.inputs import TrainingInputs
from contextwise.training.model import starting_model
from contextwise_papers.objectives.multitoken import MultiTokenConfig
from small import recipe_values, save_model

SHORT, LONG = 16, 48
SHAPE = {
    "vocab_size": 257,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": SHORT,
    "initializer_range": 0.3,
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Models that were never trained, with 16 positions, by kind."""
    folder = tmp_path_factory.mktemp("sources")
    contextlm = ContextLMConfig(backbone_config=LlamaConfig(**SHAPE), chunk_size=4, injection="add")
    models = {
        "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)),
        "gpt_neox": lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**SHAPE)),
        "contextlm": lambda: ContextLMForCausalLM(contextlm),
        "gpt2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=257, n_positions=SHORT, n_embd=16, n_layer=1, n_head=2)),
    }
    for kind, make in models.items():
        torch.manual_seed(0)
        save_model(folder / kind, make())
    return folder


def recipe(corpus, source, output, context=LONG, **model):
    values = recipe_values(corpus, output, learning_rate=1e-3, steps=2, tokens_per_step=96, warmup_steps=0)
    values["data"]["context"] = context
    return validate(Recipe, values | {"model": {"pretrained": str(source), **model}}, "the recipe")


def started(recipe):
    return starting_model(recipe, TrainingInputs.open(recipe).config).eval()


def logits(model, length=LONG):
    tokens = torch.randint(0, 257, (2, length), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return model(input_ids=tokens, use_cache=False).logits


@pytest.mark.parametrize("kind", ["llama", "gpt_neox", "contextlm"])
@pytest.mark.parametrize("rope", ["none", "linear", "yarn"])
def test_a_model_starts_as_it_is_extended_for_inference(kind, rope, sources, corpus_folder, tmp_path):
    model = started(recipe(corpus_folder, sources / kind, tmp_path, rope=rope))
    extended = load_model(sources / kind, device="cpu").eval()
    extend_positions(extended, LONG, rope, trained=SHORT)
    assert (logits(model) - logits(extended)).abs().max() < 1e-4  # the base is computed in float32 there
    assert model.config.max_position_embeddings == LONG
    changed = not torch.allclose(logits(model), logits(load_model(sources / kind, device="cpu").eval()), atol=1e-3)
    assert changed == (rope != "none")
    ((_, module),) = rotary_modules(model)  # one, of the backbone, which ContextLM's chunks are rotated by too
    assert module.config.max_position_embeddings == LONG


def test_a_raised_base_is_that_of_a_stock_configuration(sources, corpus_folder, tmp_path):
    model = started(recipe(corpus_folder, sources / "llama", tmp_path, rope="base", rope_base=5e5))
    config = copy.deepcopy(load_model(sources / "llama", device="cpu").config)
    config.rope_parameters["rope_theta"], config.max_position_embeddings = 5e5, LONG
    stock = LlamaForCausalLM(config).eval()
    stock.load_state_dict(model.state_dict())
    assert torch.equal(logits(model), logits(stock))


@pytest.mark.parametrize("rope", ["linear", "yarn"])
def test_a_model_that_grows_twice_is_extended_from_its_first_length(rope, sources, corpus_folder, tmp_path):
    first = train(recipe(corpus_folder, sources / "contextlm", tmp_path / "first", 2 * SHORT, rope=rope))
    assert load_model(first.path).config.max_position_embeddings == 2 * SHORT
    second = recipe(corpus_folder, first.path, tmp_path / "second", rope=rope)
    config = TrainingInputs.open(second).config
    parameters = config.backbone_config.rope_parameters
    assert (parameters["rope_type"], parameters["factor"]) == (rope, LONG / SHORT)
    with pytest.raises(
        ConfigError,
        match=f"are extended already .rope_type '{rope}' .* set model.rope to {rope}, choose a data.context of",
    ):
        TrainingInputs.open(recipe(corpus_folder, first.path, tmp_path / "x", rope="none"))
    with pytest.raises(
        ConfigError, match="model.rope is .* but data.context is 32 and .* was trained with 32; remove it"
    ):
        TrainingInputs.open(recipe(corpus_folder, first.path, tmp_path / "x", 32, rope=rope))


@pytest.mark.parametrize("rope", ["linear", "yarn"])
def test_a_run_with_shorter_windows_in_between_changes_no_factor(rope, sources, corpus_folder, tmp_path):
    first = train(recipe(corpus_folder, sources / "llama", tmp_path / "first", 2 * SHORT, rope=rope))
    short = train(recipe(corpus_folder, first.path, tmp_path / "short", SHORT))
    configs = [
        TrainingInputs.open(recipe(corpus_folder, each.path, tmp_path, rope=rope)).config for each in (first, short)
    ]
    assert configs[0].rope_parameters == configs[1].rope_parameters
    assert [config.max_position_embeddings for config in configs] == [LONG, LONG]
    with pytest.raises(ConfigError, match="but data.context is 32 and .*short was trained with 32; remove it"):
        TrainingInputs.open(recipe(corpus_folder, short.path, tmp_path / "x", 2 * SHORT, rope=rope))


@pytest.mark.parametrize("kind", ["a new model", "a model that is not a run"])
def test_the_factor_counts_from_the_windows_of_a_new_model(kind, sources, corpus_folder, tmp_path):
    """Positions beyond them (``max_context``) were never trained."""
    first = sources / "llama"
    if kind == "a new model":
        values = recipe(corpus_folder, first, tmp_path / "first", SHORT).resolved()
        values |= {
            "model": {"family": "llama", "size": "pico", "max_context": 2 * SHORT},
            "output": str(tmp_path / "first"),
        }
        source = train(validate(Recipe, values, "the recipe")).path
    else:
        source = train(recipe(corpus_folder, first, tmp_path / "short", SHORT // 2)).path
    parameters = TrainingInputs.open(recipe(corpus_folder, source, tmp_path, rope="yarn")).config.rope_parameters
    assert (parameters["factor"], parameters["original_max_position_embeddings"]) == (LONG / SHORT, SHORT)


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 5e5}
ORIGINAL = {"original_max_position_embeddings": SHORT // 2}


def test_a_factor_grows_and_an_attention_factor_is_not_kept():
    yarn = {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.1, "rope_theta": 1e4, **ORIGINAL}
    config = LlamaConfig(**SHAPE, rope_parameters=yarn)
    extend_config(config, 3 * SHORT, "yarn", None, None, SHORT, "m")
    assert config.rope_parameters == {"rope_type": "yarn", "factor": 12.0, "rope_theta": 1e4, **ORIGINAL}


@pytest.mark.parametrize("rope", ["none", "base", "linear", "yarn"])
@pytest.mark.parametrize(
    "parameters",
    [{"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}, LLAMA3 | ORIGINAL],
    ids=["dynamic", "llama3"],
)
def test_frequencies_of_another_kind_are_refused_and_kept(rope, parameters):
    config = LlamaConfig(**SHAPE, rope_parameters=parameters)
    with pytest.raises(ConfigError, match="of m are extended already .* choose a data.context of at most 16"):
        extend_config(config, LONG, rope, None, 1e6, SHORT, "m")
    assert config.rope_parameters == parameters and config.max_position_embeddings == SHORT


def test_what_cannot_grow_is_refused(sources, corpus_folder, tmp_path):
    def refused(kind, **model):
        with pytest.raises(ConfigError) as error:
            TrainingInputs.open(recipe(corpus_folder, sources / kind, tmp_path, **model))
        return str(error.value)

    assert "(gpt2) are not rotary, so its context cannot grow; choose a data.context of at most 16" in refused(
        "gpt2", rope="yarn"
    )
    assert refused("gpt2").endswith(
        "has only 16 positions, which are not rotary; choose at most 16, or a model with rotary positions"
    )
    assert "has only 16 positions; set model.rope to linear, yarn, base or none" in refused("llama")
    assert "rope: base and rope_base go together" in refused("llama", rope="base")
    assert "rope: base and rope_base go together" in refused("llama", rope_base=1e6)
    assert "model.rope_factor is 2.0" in refused("llama", rope="none", rope_factor=2)


def test_further_heads_over_a_contextlm_grow_with_its_backbone():
    config = MultiTokenConfig(ContextLMConfig(backbone_config=LlamaConfig(**SHAPE), chunk_size=4), 2, "linear")
    extend_config(config, LONG, "linear", None, None, SHORT, "m")
    backbone = config.backbone_config.backbone_config
    assert backbone.rope_parameters["factor"] == LONG / SHORT and config.max_position_embeddings == LONG


def test_stages_shorter_than_a_pretrained_models_chunks_are_refused(sources, corpus_folder, tmp_path):
    values = recipe_values(corpus_folder, tmp_path, learning_rate=1e-3, steps=8, tokens_per_step=96, warmup_steps=0)
    values["data"] |= {"context": SHORT, "context_stages": {2: 0.5}}
    short = validate(Recipe, values | {"model": {"pretrained": str(sources / "contextlm")}}, "the recipe")
    with pytest.raises(
        ConfigError, match="data.context_stages is .* but .* has chunks of 4 tokens, more than the first"
    ):
        TrainingInputs.open(short)
