"""Tiny multi-token models for tests, and the stock models that they are made of."""

import copy

import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPTNeoXConfig, LlamaConfig, Qwen3Config

from contextwise_papers.objectives.multitoken import MultiTokenConfig, MultiTokenForCausalLM

VOCABULARY, LONGEST = 23, 64


def backbone(family, layers=2, width=16, **changes):
    values = {"vocab_size": VOCABULARY, "bos_token_id": None, "eos_token_id": None}
    if family == "gpt2":
        values |= {"n_positions": LONGEST, "n_embd": width, "n_layer": layers, "n_head": 2}
        values |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        return GPT2Config(**values | changes)
    values |= {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": 2}
    values |= {"intermediate_size": 2 * width, "max_position_embeddings": LONGEST}
    if family == "gpt_neox":
        return GPTNeoXConfig(**values | changes)
    values |= {"num_key_value_heads": 1, "head_dim": width // 2}
    return {"llama": LlamaConfig, "qwen3": Qwen3Config}[family](**values | changes)


def multitoken(family, head, n=3, seed=0, **changes):
    torch.manual_seed(seed)
    return MultiTokenForCausalLM(MultiTokenConfig(backbone(family, **changes), n, head)).eval()


def draw(rows, length, seed=0):
    return torch.randint(1, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))


def as_stock_model(model, i):
    """Head i (from 1) and the trunk as one stock model: with a block of its own, the last of its layers."""
    config = copy.deepcopy(model.config.backbone_config)
    blocks = list(model.family.blocks(model.backbone))
    if model.config.head == "layer":
        blocks.append(model.heads[i - 1])
        config = backbone(config.model_type, layers=len(blocks))
    stock = AutoModelForCausalLM.from_config(config).eval()
    stock.base_model.load_state_dict(model.backbone.state_dict(), strict=model.config.head == "linear")
    model.family.blocks(stock.base_model)[-1].load_state_dict(blocks[-1].state_dict())
    stock.lm_head = copy.deepcopy(model.vocabulary_head(i))
    return stock


def all_logits(out):
    """(B, T, n, V)."""
    return torch.cat([out.logits[:, :, None], out.future_logits], dim=2)
