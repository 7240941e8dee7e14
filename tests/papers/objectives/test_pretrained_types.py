"""Encoders and encoder-decoders of other types than BERT and T5: the loss is the library's, or they are refused."""

import pytest
import torch
from transformers import (
    AlbertConfig,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    BartConfig,
    BertConfig,
    FNetConfig,
    LongT5Config,
    MT5Config,
    SqueezeBertConfig,
    SwitchTransformersConfig,
    T5Config,
    UMT5Config,
    XmodConfig,
)

from contextwise.base.config import validate
from contextwise.base.errors import ConfigError
from contextwise.models.probes import has_known_loss
from contextwise.models.spec import pretraining_losses, training_flops_per_example
from contextwise.training import Recipe
from contextwise.training.model import starting_model
from small import recipe_values, save_model

SIZES = {"vocab_size": 97, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2}
SIZES |= {"decoder_start_token_id": 0, "pad_token_id": 0}
BERT = {"vocab_size": 97, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}

FNET = {name: value for name, value in BERT.items() if name != "num_attention_heads"}


def model_of(config, tied=True):
    torch.manual_seed(0)
    config.tie_word_embeddings = tied
    auto = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForMaskedLM
    return auto.from_config(config).eval()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", [T5Config, LongT5Config, MT5Config, UMT5Config])
def test_the_loss_is_that_of_the_library(kind, tied):
    """mT5 does not scale what its head reads; UMT5 does where the head is the embedding."""
    model = model_of(kind(**SIZES), tied)
    ids, labels = torch.randint(3, 97, (2, 2, 12))
    mask = torch.arange(12).lt(torch.tensor([[12], [8]])).long()
    labels[1, 6:] = -100
    with torch.no_grad():
        losses = pretraining_losses(model, {"input_ids": ids, "labels": labels, "attention_mask": mask})
        expected = model(input_ids=ids, attention_mask=mask, labels=labels).loss
    torch.testing.assert_close(losses.minimised(), expected)
    assert has_known_loss(model)


def test_models_with_another_loss_are_found():
    assert has_known_loss(model_of(BertConfig(**BERT)))
    bart = BartConfig(
        vocab_size=97, d_model=16, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=16, decoder_ffn_dim=16
    )
    for config in (bart, SwitchTransformersConfig(**SIZES, num_experts=2), AlbertConfig(**BERT), XmodConfig(**BERT)):
        assert not has_known_loss(model_of(config)), config.model_type


@pytest.mark.parametrize(
    "config",
    [
        SwitchTransformersConfig(**SIZES, num_experts=2),
        FNetConfig(**FNET),
        SqueezeBertConfig(**BERT, embedding_size=16),
    ],
)
def test_models_whose_operations_the_formula_does_not_count_are_refused(config):
    """Experts, Fourier transforms and convolutions."""
    with pytest.raises(ConfigError, match=r"the FLOPs of an encoder.* are not counted; choose a model like"):
        training_flops_per_example(config, 16, 16)


def test_a_run_starts_from_an_mt5_and_not_from_a_switch_transformer(corpus_folder, tmp_path):
    sizes = SIZES | {"vocab_size": 400}
    for config in (MT5Config(**sizes), SwitchTransformersConfig(**sizes, num_experts=2)):
        folder = tmp_path / config.model_type
        save_model(folder, model_of(config))
        values = recipe_values(corpus_folder, tmp_path / "run") | {
            "objective": "spans",
            "model": {"pretrained": str(folder)},
        }
        recipe = validate(Recipe, values, "the recipe")
        started = recipe.model.config(recipe, None, None)
        if config.model_type == "mt5":
            starting_model(recipe, started)
        else:
            with pytest.raises(
                ConfigError, match="type 'switch_transformers', whose loss is not supported; choose a .*T5"
            ):
                starting_model(recipe, started)
