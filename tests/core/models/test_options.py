"""Further fields of stock configurations, set in a recipe as ``model.options``."""

import pytest
import torch
from torch import nn

from contextwise.base.errors import ConfigError
from contextwise.models.loading import load_model
from contextwise.models.spec import build_model
from contextwise.training import Recipe, train
from contextwise.training.inputs import TrainingInputs
from small import recipe_values
from trained import same, stopped_after, trained

DYNAMIC = {"rope_theta": "5e5", "rope_type": "dynamic", "factor": 2.0}  # a text, as YAML reads this number


def recipe(corpus, folder, options, predictor=True, **model):
    values = recipe_values(corpus, folder, evaluate_every=0)
    values["model"] = {"layers": 2, "width": 32, "heads": 2, "options": options, **model}
    if predictor:
        values["model"]["context_predictor"] = {"predictor_layers": 1}
    return Recipe.model_validate(values)


@pytest.mark.parametrize(
    ("family", "options", "of_models"),
    [
        ("gpt2", {"resid_pdrop": 0.25}, [("mlp.dropout.p", 0.25)]),
        ("gpt2_rotary", {"rope_parameters": {"rope_theta": 5e5}}, [("config.rope_parameters", 5e5)]),
        ("gpt_neox", {"hidden_dropout": 0.25}, [("post_mlp_dropout.p", 0.25)]),
        ("llama", {"num_key_value_heads": 1}, [("self_attn.k_proj.out_features", 16)]),
        ("llama", {"rope_parameters": DYNAMIC}, [("config.rope_parameters", 5e5)]),
        ("qwen3", {"attention_bias": True, "head_dim": 8}, [("self_attn.q_proj.out_features", 16)]),
    ],
)
@pytest.mark.parametrize("predictor", [False, True])
def test_a_field_reaches_every_block(family, options, of_models, predictor, corpus_folder, tmp_path):
    model = build_model(TrainingInputs.open(recipe(corpus_folder, tmp_path, options, predictor, family=family)).config)
    backbone = model.backbone if predictor else model.base_model
    blocks = [*getattr(backbone, "h", getattr(backbone, "layers", []))] + ([*model.context.layers] if predictor else [])
    assert len(blocks) == 2 + predictor
    for path, value in of_models:
        for block in [backbone] if path.startswith("config.") else blocks:
            *parts, last = path.split(".")
            owner = block
            for part in parts:
                owner = getattr(owner, part)
            found = getattr(owner, last)
            assert (found["rope_theta"] if isinstance(found, dict) else found) == value


def test_fields_that_follow_from_others_follow(corpus_folder, tmp_path):
    windows = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0}
    config = TrainingInputs.open(recipe(corpus_folder, tmp_path, windows, False, family="qwen3")).config
    assert config.layer_types == ["sliding_attention"] * 2
    values = recipe_values(corpus_folder, tmp_path)
    values["model"] = {"family": "t5", "layers": 1, "width": 32, "options": {"feed_forward_proj": "gated-gelu"}}
    gated = TrainingInputs.open(Recipe.model_validate(values | {"objective": "spans"})).config
    assert gated.is_gated_act and hasattr(build_model(gated).encoder.block[0].layer[-1].DenseReluDense, "wi_1")


def test_the_other_values_of_a_dictionary_stay(corpus_folder, tmp_path):
    options = {"rope_parameters": {"rope_theta": 5e5}}
    config = TrainingInputs.open(recipe(corpus_folder, tmp_path, options, False, family="gpt_neox")).config
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.25}
    assert config.residual_init == "wang"


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [
        (
            "gpt2",
            {"atn_pdrop": 0.1},
            "atn_pdrop is 0.1, but GPT2Config has activation_function.*did you mean 'attn_pdrop'",
        ),
        ("gpt2", {"n_embd": 64}, "n_embd is 64, but has a setting of its own; set model.width"),
        ("llama", {"hidden_size": 64}, "hidden_size is 64, but has a setting of its own; set model.width"),
        ("llama", {"vocab_size": 9}, "vocab_size is 9, but has a setting of its own; set model.vocab_size"),
        ("qwen3", {"sliding_window": 8}, "sliding_window is 8, but transformers makes it None beside the other fields"),
        ("gpt2", {"attn_pdrop": 2}, "dropout probability has to be between 0 and 1"),
        ("gpt2", {"attn_pdrop": "much"}, "Field 'attn_pdrop' with value 'much'"),
        ("llama", {"num_key_value_heads": 3}, "with these options transformers gives RuntimeError"),
        ("lstm", {"dropout": 0.1}, "dropout is 0.1, but LSTMConfig has no further field"),
        ("t5", {"dropout_rate": 0.1, "d_ff": 64}, "d_ff is 64, but has a setting of its own; set model.feed_forward"),
        (
            "bert",
            {"tie_word_embeddings": False, "is_decoder": True},
            "is_decoder is True, but BertConfig has hidden_act",
        ),
    ],
)
def test_what_a_family_cannot_take_is_refused(family, options, message, corpus_folder, tmp_path):
    values = recipe_values(corpus_folder, tmp_path)
    values["model"] = {"family": family, "layers": 1, "width": 32, "options": options}
    values["objective"] = {"bert": "masked", "t5": "spans"}.get(family, "causal")
    with pytest.raises(ConfigError, match=message):
        TrainingInputs.open(Recipe.model_validate(values))


def test_a_run_with_dropout_resumes_exactly_and_scores_without_it(corpus_folder, tmp_path):
    def dropped(name):
        return recipe(corpus_folder, tmp_path / name, {"resid_pdrop": 0.3, "attn_pdrop": 0.2})

    whole = train(dropped("whole"))
    stopped_after(10, dropped("run"))
    train(dropped("run"))
    assert same(tmp_path / "whole", tmp_path / "run")
    plain = recipe_values(corpus_folder, tmp_path / "plain", evaluate_every=0)
    assert not same(whole, trained(plain))
    model = load_model(str(whole.model))
    assert any(isinstance(module, nn.Dropout) and module.p == 0.3 for module in model.modules())
    ids = torch.arange(20)[None]
    assert torch.equal(model.eval()(input_ids=ids).logits, model(input_ids=ids).logits)
