"""Runs that continue a pretrained model: with a context pathway of their own, frozen or not."""

import shutil

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPTNeoConfig,
    LlamaConfig,
    MistralConfig,
    OPTConfig,
    PhiConfig,
)

from contextwise.base.config import validate
from contextwise.base.errors import CheckpointError, ConfigError, DataError
from contextwise.data import prepare_corpus
from contextwise.models import ContextLMConfig, ContextLMForCausalLM, build_model, load_model
from contextwise.models.prefix import set_prefix
from contextwise.models.rope import extend_positions, stock_config
from contextwise.training import Recipe, train
from contextwise.training.inputs import TrainingInputs
from contextwise.training.model import TrainedModel, starting_model
from contextwise_papers.objectives import MultiTokenConfig
from contextwise_papers.objectives.kinds import EncoderModel
from small import recipe_values, save_model, write_documents
from trained import trained, weights


@pytest.fixture(scope="module")
def backbone(corpus_folder, tmp_path_factory):
    """A finished run of a plain GPT-2."""
    values = recipe_values(corpus_folder, tmp_path_factory.mktemp("backbone") / "run", steps=8)
    values["model"]["context_predictor"] = None
    return trained(values).path


def values_from(backbone, corpus, output, **model):
    values = recipe_values(corpus, output, steps=6)
    return values | {"model": {"pretrained": str(backbone), **model}}


def test_a_frozen_backbone_stays_as_it_was_and_the_pathway_learns(backbone, corpus_folder, tmp_path):
    values = values_from(
        backbone, corpus_folder, tmp_path / "run", freeze_backbone=True, context_predictor={"chunk_size": 2}
    )
    run = trained(values)
    before, after = weights(backbone), weights(run.path)
    for name, tensor in before.items():
        if name.startswith("transformer."):
            assert torch.equal(after["backbone." + name.removeprefix("transformer.")], tensor), name
    assert after["context.gate.weight"].abs().sum() > 0
    model = load_model(run.path, device="cpu")
    assert isinstance(model, ContextLMForCausalLM)
    assert model.config.chunk_size == 2


def test_a_frozen_backbone_leaves_the_whole_pathway_to_the_optimizer(backbone, corpus_folder, tmp_path):
    values = values_from(
        backbone, corpus_folder, tmp_path / "run", freeze_backbone=True, context_predictor={"pooling": "mlp"}
    )
    recipe = Recipe.model_validate(values)
    model = starting_model(recipe, recipe.model.config(recipe, None, None))
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained == {name for name, _ in model.named_parameters() if name.startswith("context.")}


@pytest.mark.long
def test_training_starts_at_the_loss_of_the_pretrained_model(backbone, corpus_folder, tmp_path):
    """Same windows, rate nearly zero: plain and with a closed gate, the first loss is the backbone's own."""
    losses = []
    for name, predictor in (("plain", None), ("context", {})):
        values = values_from(backbone, corpus_folder, tmp_path / name, context_predictor=predictor)
        values["training"] |= {"learning_rate": 1e-9, "log_every": 1}
        losses.append([row["loss"] for row in trained(values).metrics("train")])
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    fresh = recipe_values(corpus_folder, tmp_path / "fresh", steps=6, log_every=1)
    assert trained(fresh).metrics("train")[0]["loss"] > losses[0][0] + 0.1


@pytest.mark.long
def test_a_run_knows_the_weights_that_it_started_from(backbone, corpus_folder, tmp_path):
    start = shutil.copytree(backbone, tmp_path / "start")
    values = values_from(start, corpus_folder, start / "run")
    trained(values)
    trained(values)  # it is finished, and its own weights are none of those
    values = values_from(start, corpus_folder, tmp_path / "run")
    trained(values)
    shutil.rmtree(start)
    trained(recipe_values(corpus_folder, start, steps=2))
    with pytest.raises(DataError, match=r"is finished, but model\.pretrained is not what it was trained on"):
        trained(values)


def test_all_weights_move_where_nothing_is_frozen(backbone, corpus_folder, tmp_path):
    values = values_from(backbone, corpus_folder, tmp_path / "run", context_predictor={"predictor_layers": 1})
    before, after = weights(backbone), weights(trained(values).path)
    assert all(
        not torch.equal(after["backbone." + name.removeprefix("transformer.")], tensor)
        for name, tensor in before.items()
        if name.startswith("transformer.h")
    )


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ({"size": "tiny"}, "model.size does not apply to a pretrained model; remove it"),
        ({"extra_layers": 2}, "extra_layers does not apply"),
        ({"freeze_backbone": True}, "nothing else would be trained"),
        ({"pretrained": None}, "model.pretrained is None"),
    ],
)
def test_settings_that_contradict_are_refused(backbone, corpus_folder, tmp_path, model, words):
    values = values_from(backbone, corpus_folder, tmp_path / "run", **model)
    with pytest.raises(ConfigError, match=words):
        validate(Recipe, values, "the recipe")
    assert not (tmp_path / "run").exists()


def test_a_context_predictor_takes_no_model_that_reads_its_prompts_as_a_prefix(backbone, corpus_folder, tmp_path):
    model = load_model(backbone, device="cpu")
    set_prefix(model.config)
    save_model(tmp_path / "prefix", model)
    values = values_from(tmp_path / "prefix", corpus_folder, tmp_path / "run", context_predictor={})
    with pytest.raises(
        ConfigError, match=r"model.context_predictor needs a model that reads its prompts causally, but .*"
    ):
        trained(values)
    assert not (tmp_path / "run").exists()


def test_what_does_not_fit_is_refused_before_the_folder_is_made(backbone, corpus_folder, tmp_path):
    output = tmp_path / "run"
    values = values_from(tmp_path / "nowhere", corpus_folder, output)
    with pytest.raises(CheckpointError, match="there is no run and no model at"):
        trained(values)
    values = values_from(backbone, corpus_folder, output)
    values["data"]["context"] = 64
    with pytest.raises(ConfigError, match="has only 32 positions, which are not rotary; choose at most 32, or take a"):
        train(validate(Recipe, values, "the recipe"))
    values = values_from(backbone, corpus_folder, output)
    values["training"].pop("learning_rate")
    with pytest.raises(ConfigError, match="learning_rate is missing"):
        validate(Recipe, values, "the recipe")
    prepare_corpus(write_documents(tmp_path / "text.jsonl"), "train:300", tmp_path / "other")
    with pytest.raises(DataError, match=f"another tokenizer than that of .*with --tokenizer {backbone}$"):
        trained(values_from(backbone, tmp_path / "other", output))
    assert not output.exists()


@pytest.mark.parametrize("rope", ["linear", "yarn"])
@pytest.mark.parametrize("context", [False, True], ids=["llama", "contextlm"])
def test_a_model_trains_on_with_the_positions_of_its_configuration(context, rope, corpus_folder, tmp_path):
    """It starts as it is extended for a measurement, and its run is loaded so."""
    shape = {"vocab_size": 257, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    stock = LlamaConfig(**shape, num_attention_heads=2, max_position_embeddings=16, initializer_range=0.3)
    torch.manual_seed(0)
    model = build_model(ContextLMConfig(backbone_config=stock, chunk_size=4, injection="add") if context else stock)
    model.save_pretrained(tmp_path / "short")
    values = values_from(tmp_path / "long", corpus_folder, tmp_path / "run")
    save_model(tmp_path / "long", model)
    with pytest.raises(
        ConfigError, match="has only 16 positions; choose at most 16, or save a copy with more rotary positions"
    ):
        trained(values)
    changed = stock_config(model.config)
    changed.rope_parameters |= {"rope_type": rope, "factor": 2.0, "original_max_position_embeddings": 16}
    changed.max_position_embeddings = 32
    save_model(tmp_path / "long", model)
    recipe = validate(Recipe, values, "the recipe")
    started = starting_model(recipe, TrainingInputs.open(recipe).config).eval()
    extend_positions(extended := load_model(tmp_path / "short", device="cpu"), 32, rope)
    tokens = torch.randint(0, 257, (2, 32), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        ours, theirs = (each(input_ids=tokens, use_cache=False).logits for each in (started, extended))
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    parameters = stock_config(load_model(trained(values).path).config).rope_parameters
    assert (parameters["rope_type"], parameters["factor"]) == (rope, 2.0)


SMALL = {"vocab_size": 257, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
GPT2 = GPT2Config(vocab_size=257, n_embd=32, n_layer=1, n_head=2, n_positions=32)
OPT = OPTConfig(**SMALL, ffn_dim=32, word_embed_proj_dim=32)
NEO = GPTNeoConfig(vocab_size=257, hidden_size=32, num_layers=1, num_heads=2, attention_types=[[["global"], 1]])
MISTRAL = MistralConfig(**SMALL, num_key_value_heads=2, intermediate_size=32, sliding_window=8)
MIXTURE = {"name": "mixture", "parts": [{"objective": "causal", "weight": 0.5}, {"objective": "prefix", "weight": 0.5}]}
PREFIX = "the objective 'prefix' has bidirectional attention in a prefix, but .* takes no mask"
APART = r"\(data.separate_documents\), but tokens of .*model see the documents before theirs; set it to false"


@pytest.mark.parametrize(
    ("config", "objective", "words"),
    [
        (
            ContextLMConfig(backbone_config=GPT2, chunk_size=4),
            "prefix",
            "but the contextlm model .* takes no mask for it",
        ),
        (
            MultiTokenConfig(backbone_config=GPT2, future_tokens=2),
            "prefix",
            "but the multitoken model .* takes no mask",
        ),
        (MISTRAL, "prefix", "has a sliding window of 8 tokens"),  # which the mask of a prefix would replace
        (PhiConfig(**SMALL), "causal", "scales, caps or shifts its logits"),
        (OPT, "causal", APART),
        (NEO, "prefix", PREFIX),
        (OPT, MIXTURE, PREFIX),
    ],
)
def test_models_that_do_not_fit_the_recipe_are_refused(config, objective, words, corpus_folder, tmp_path):
    """They would be trained causally on whole rows, without a word, or fail in the first step."""
    save_model(tmp_path / "model", AutoModelForCausalLM.from_config(config))
    values = values_from(tmp_path / "model", corpus_folder, tmp_path / "run")
    if config in (OPT, NEO):  # which a plain recipe fits
        recipe = validate(Recipe, values, "the recipe")
        starting_model(recipe, recipe.model.config(recipe, None, None))
    values["data"]["separate_documents"] = words == APART
    with pytest.raises(ConfigError, match=words):
        train(validate(Recipe, values | {"objective": objective}, "the recipe"))
    assert not list((tmp_path / "run").glob("checkpoints/*"))


def test_pairs_of_a_part_of_a_step_count_as_in_the_whole_step():
    """Rows without a pair's label, as in a mixture, and parts of a step that have few of them."""
    torch.manual_seed(0)
    config = EncoderModel(family="bert", layers=2, width=32, heads=2).stock(50, 16, None)
    config.architectures = ["BertForPreTraining"]
    model = build_model(config).eval()
    batch = {"input_ids": torch.randint(0, 50, (6, 16)), "labels": torch.randint(0, 50, (6, 16))}
    batch["pair_label"] = torch.tensor([1, -100, -100, -100, 0, 1])
    wrapped = TrainedModel(model)
    whole = wrapped(**batch)
    assert wrapped.last.counts.tolist() == [96, 3]
    with torch.no_grad():
        scores = model(batch["input_ids"]).seq_relationship_logits[[0, 4, 5]]
    expected = torch.nn.functional.cross_entropy(scores, torch.tensor([1, 0, 1]))
    assert float(wrapped.last.sums[1] / 3) == pytest.approx(float(expected), rel=1e-5)
    targets, pairs = torch.tensor(96.0), torch.tensor(3.0)
    parts = [wrapped(**{k: v[i : i + 2] for k, v in batch.items()}, targets=targets, pairs=pairs) for i in (0, 2, 4)]
    assert float(sum(parts)) == pytest.approx(float(whole), rel=1e-5)
