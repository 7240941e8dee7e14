"""Every model of the project, small, and a batch of every kind for each: for tests on accelerators."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    MistralConfig,
    Qwen2Config,
    T5Config,
    T5ForConditionalGeneration,
)

import contextlm_models
import multitoken_models
from contextwise import ContextLMConfig, ContextLMForCausalLM
from contextwise.base.recipes import RECIPES
from contextwise.models.families import FAMILIES
from contextwise.models.variant.code import digest, name_code, read_code
from contextwise.models.variant.modeling import VariantConfig, VariantForCausalLM
from contextwise_papers.intrinsic_entropy.parity import (
    ParityMLP,
    ParityMLPConfig,
    ParityTransformer,
    ParityTransformerConfig,
)
from contextwise_papers.objectives import MultiTokenConfig, MultiTokenForCausalLM
from cue_models import TEXT, autoencoder, cue_model, proxy_model, sentence_encoder

LENGTH = 12


def stock_model(family: str) -> Any:
    return AutoModelForCausalLM.from_config(backbone(family))


def backbone(family: str) -> Any:
    if family not in ("mistral", "qwen2"):
        layers = "n_layer" if family == "gpt2" else "num_hidden_layers"
        return contextlm_models.backbone(family, **{layers: 2})
    shape = {"vocab_size": 61, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    shape |= {"num_key_value_heads": 1, "intermediate_size": 32}
    return MistralConfig(**shape, sliding_window=None) if family == "mistral" else Qwen2Config(**shape)


def contextlm(family: str, **options: Any) -> ContextLMForCausalLM:
    torch.manual_seed(0)
    model = ContextLMForCausalLM(ContextLMConfig(backbone(family), **options))
    contextlm_models.draw_parts(model)  # so that contexts matter
    return model


def over_context(family: str = "llama", head: str = "layer", **options: Any) -> MultiTokenForCausalLM:
    torch.manual_seed(0)
    model = MultiTokenForCausalLM(MultiTokenConfig(ContextLMConfig(backbone(family), **options), 3, head))
    contextlm_models.draw_parts(model.backbone)
    return model


def variant(name: str) -> VariantForCausalLM:
    file, _, own = name.partition(":")
    path = RECIPES / "variants" / file
    sha256 = digest(read_code(path))
    name_code(path, sha256)
    return VariantForCausalLM(VariantConfig(backbone("gpt2"), file, own, {}, sha256))


def retrofitted() -> ContextLMForCausalLM:
    model = ContextLMForCausalLM.from_backbone(stock_model("gpt2"))
    model.requires_grad_(False)
    model.context.requires_grad_(True)
    return model


def masked_model(model_class: Any = BertForMaskedLM, **options: Any) -> Any:
    torch.manual_seed(0)
    shape = {"vocab_size": 23, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    shape |= {"intermediate_size": 32, "max_position_embeddings": 24}
    return model_class(BertConfig(**shape, **options))


def encoder_decoder() -> T5ForConditionalGeneration:
    torch.manual_seed(0)
    shape = {"vocab_size": 23, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
    return T5ForConditionalGeneration(T5Config(**shape, decoder_start_token_id=0, dropout_rate=0.0))


STOCK: dict[str, Callable[[], Any]] = {family: partial(stock_model, family) for family in FAMILIES}
OURS: dict[str, Callable[[], Any]] = {
    **{f"ContextLM {family}": partial(contextlm, family) for family in ("gpt2", "llama")},
    "every layer": partial(contextlm, "gpt2", inject_every_layer=True, pooling="attention"),
    "add": partial(contextlm, "gpt2", injection="add", injection_layer=1, predictor_layers=1),
    "pools of an MLP": partial(contextlm, "gpt_neox", pooling="mlp", predictor_layers=1),
    "normed gate": partial(contextlm, "qwen3", injection="normed_gate", pooling="latent_attention", predictor_layers=1),
    "both norms": partial(contextlm, "gpt2", injection="own_norms", predictor_norm=True),
    "the paper's form": partial(contextlm, "gpt2", injection="paper"),
    "embedding norm": partial(contextlm_models.normed, "gpt2"),
    "retrofitted": retrofitted,
    **{head: partial(multitoken_models.multitoken, "gpt2", head) for head in ("layer", "linear")},
    "over ContextLM": over_context,
}
DECODERS = STOCK | OURS
CUE: dict[str, Callable[[], Any]] = {
    "CUE": cue_model,
    "CUE of contexts": partial(cue_model, sentence_inputs=False),
    "CUE of an LSTM": partial(cue_model, "lstm"),
    "CUE concatenated": partial(cue_model, form="concatenate", width=24),
    "proxy": proxy_model,
}
OTHERS: dict[str, Callable[[], Any]] = {
    "token order": partial(variant, "token_order.py:TokenOrder"),
    "next latent": partial(variant, "next_latent.py:NextLatent"),
    "LSTM": partial(sentence_encoder, "lstm"),
    "BERT": masked_model,
    "BERT of pairs": partial(masked_model, BertForPreTraining),
    "T5": encoder_decoder,
    "autoencoder": autoencoder,
    "parity MLP": lambda: ParityMLP(ParityMLPConfig(LENGTH - 1, 4, 6, 8)),
    "parity Transformer": lambda: ParityTransformer(ParityTransformerConfig(LENGTH - 1, 4, 16)),
}
MODELS = DECODERS | CUE | OTHERS


BATCHES: dict[str, tuple[str, ...]] = {"whole rows": (), "packed": ("position_ids",), "padded": ("attention_mask",)}
"""Kinds of batches, and what they have beside the tokens."""


def batch_of(name: str, kind: str, device: str) -> dict[str, torch.Tensor] | None:
    """A batch of this kind for the model of this name, as the trainer gives it; None if it takes no such batches.

    All tokens, positions and masks are 0.
    """

    def tokens(rows: int = 2, length: int = LENGTH) -> torch.Tensor:
        return torch.zeros(rows, length, dtype=torch.long, device=device)

    if "parity" in name or name == "autoencoder":
        return (
            {"input_ids": tokens(), "labels": tokens(2, 1 if "parity" in name else LENGTH)}
            if not BATCHES[kind]
            else None
        )
    if kind == "packed" and (name in CUE or name == "T5"):
        return None  # one sentence in a row
    if kind == "padded" and "LSTM" in name and device == "meta":
        return None  # torch's LSTM wants the lengths of padded rows on the host
    batch = {"input_ids": tokens(), "labels": tokens(), **{part: tokens() for part in BATCHES[kind]}}
    if name in CUE and name != "proxy":
        batch |= {"contexts": torch.empty(2, 3, TEXT, device=device), "context_mask": tokens(2, 3).bool()}
    elif name == "proxy":
        batch["proxy_noise"] = torch.empty(2, 4, device=device)
    elif name == "BERT of pairs":
        batch |= {"token_type_ids": tokens(), "pair_label": tokens(1, 2)[0]}
    elif name == "T5":
        batch["labels"] = tokens(2, 7)
    if kind == "padded" and name not in (*DECODERS, "T5"):
        batch["labelled"] = tokens(1, 5)[0]
    return batch


def packs(name: str) -> bool:
    """Whether it is trained on packed rows; then its padded rows are those of an evaluation."""
    return batch_of(name, "packed", "meta") is not None


def drawn_batch(name: str, kind: str) -> dict[str, torch.Tensor] | None:
    """The batch with values, on the CPU: two documents in each row, or a row with padding on the left."""
    batch = batch_of(name, kind, "cpu")
    if batch is None:
        return None
    draw = torch.Generator().manual_seed(0)
    batch.pop("labelled", None)  # found by the model
    for part, value in batch.items():
        if part in ("input_ids", "labels"):
            least, most = (0, 2) if "parity" in name else (1, 20)
            batch[part] = torch.randint(least, most, value.shape, generator=draw)
            if "parity" in name and part == "input_ids":
                batch[part][:, -1] = 3  # the first task
        elif part in ("pair_label", "token_type_ids"):
            batch[part] = torch.randint(0, 2, value.shape, generator=draw)
        elif part == "position_ids":
            first = (LENGTH, LENGTH) if name == "LSTM" else (5, 8)  # it takes one document in a row
            batch[part] = torch.stack([torch.cat([torch.arange(n), torch.arange(LENGTH - n)]) for n in first])
        elif part == "attention_mask":
            batch[part] = torch.ones_like(value)
            batch[part][1, :4] = 0
            if batch["labels"].shape == value.shape:
                batch["labels"] = batch["labels"].masked_fill(batch[part] == 0, -100)
        elif part == "context_mask":
            batch[part] = torch.ones_like(value)
        else:
            batch[part] = torch.randn(value.shape, generator=draw)
    return batch
