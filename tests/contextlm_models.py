"""Small models of every family for the tests of ContextLM, in which everything matters."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config, GPTNeoXConfig, LlamaConfig, Qwen3Config

from contextwise import ContextLMConfig, ContextLMForCausalLM
from contextwise.models.embedding_norm import EmbeddingNormConfig, EmbeddingNormForCausalLM

VOCABULARY, LONGEST = 61, 48


def backbone(family, **changes):
    ends = {"bos_token_id": None, "eos_token_id": None, "vocab_size": VOCABULARY}
    if family == "gpt2":
        values = {"n_positions": LONGEST, "n_embd": 16, "n_layer": 3, "n_head": 2}
        values |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        return GPT2Config(**ends | values | changes)
    values = {"max_position_embeddings": LONGEST, "hidden_size": 16, "num_hidden_layers": 3}
    values |= {"num_attention_heads": 2, "intermediate_size": 32}
    if family == "gpt_neox":
        rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
        return GPTNeoXConfig(**ends | values | {"rope_parameters": rope} | changes)
    values |= {"num_key_value_heads": 1, "pad_token_id": None}  # grouped queries
    if family == "llama":
        return LlamaConfig(**ends | values | changes)
    if family in ("mistral", "qwen2"):
        return AutoConfig.for_model(family, sliding_window=None, **ends | values | changes)
    return Qwen3Config(**ends | values | {"head_dim": 8, "tie_word_embeddings": True} | changes)


def stock_model(family):
    return AutoModelForCausalLM.from_config(backbone(family)).eval()


def contextlm(family, seed=0, **options):
    """A model in which everything matters: gates and the norms around them are drawn, not zero and one."""
    torch.manual_seed(seed)
    model = ContextLMForCausalLM(ContextLMConfig(marked(backbone(family), options), **options)).eval()
    draw_parts(model)
    return model


def marked(config, options):
    """The configuration, with a norm behind the embedding if the options say so."""
    if options.pop("embedding_norm", False):
        config.embedding_norm = True
    return config


def draw_parts(model):
    """Draw the gate, and the norms that a model has beside those of a stock backbone, or in two places."""
    parts = [model.context.gate, model.context.norm, model.embedding_norm]
    if model.config.injection == "shared_norm":
        parts.append(getattr(model.backbone, model.family.norm_name))
    for parameter in (each for part in parts if part is not None for each in part.parameters()):
        torch.nn.init.normal_(parameter)


def normed(family, **changes):
    """A stock decoder with a norm behind its embedding, which matters."""
    torch.manual_seed(0)
    model = EmbeddingNormForCausalLM(EmbeddingNormConfig(backbone(family, **changes))).eval()
    torch.nn.init.normal_(model.embedding_norm.weight)
    return model


def draw(rows, length, seed=0):
    return torch.randint(0, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))


EVERY_FAMILY = pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "llama", "qwen3"])
FAMILIES = pytest.mark.parametrize(  # learned positions, and rotary ones
    "family", ["gpt2", "llama", *(pytest.param(family, marks=pytest.mark.slow) for family in ("gpt_neox", "qwen3"))]
)
FORMS = pytest.mark.parametrize(
    "options",
    [
        {},
        {"inject_every_layer": True},
        {"injection_layer": 2},
        {"injection": "add"},
        {"injection_layer": 1, "inject_every_layer": True},
        {"injection": "shared_norm", "initial_context": "zero", "predictor_norm": True, "embedding_norm": True},
    ],
    ids=["embedding", "every layer", "2/1", "add", "1/2 every", "norms"],
)
PARTS = pytest.mark.parametrize(
    "options",
    [
        {"injection": "normed_gate", "initial_context": "zero"},
        {"injection": "own_norms", "inject_every_layer": True},
        {"injection": "shared_norm", "injection_layer": 1},
        {"injection": "paper"},
        {"predictor_norm": True},
        {"pooling": "mlp"},
        {"pooling": "attention"},
        {"pooling": "latent_attention"},
    ],
    ids=lambda options: " ".join(str(value) for value in options.values()),
)
