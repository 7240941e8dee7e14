"""Tiny models of every kind that turn texts into vectors, over a tokenizer of bytes."""

from typing import Any

import numpy as np
import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BloomConfig,
    BloomForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerBase,
    RobertaConfig,
    RobertaModel,
)

from contextwise.data.tokenizers import byte_tokenizer
from contextwise.models import ContextLMConfig, ContextLMForCausalLM
from contextwise_papers.objectives import MultiTokenConfig, MultiTokenForCausalLM
from contextwise_papers.objectives.embedding import Embedder

VOCABULARY = 261  # bytes, end-of-text, and four more
END, CLS, SEP = 256, 257, 258
POSITIONS = 40
SHAPE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
WIDE = {"initializer_range": 0.3}  # wide enough for attention to matter


def tokenizer(encoder: bool = False) -> PreTrainedTokenizerBase:
    """Bytes; for an encoder with [CLS] and [SEP], which, as in a run's tokenizer, are not put around a text."""
    made = byte_tokenizer().tokenizer
    made.backend_tokenizer.encode_special_tokens = False
    if encoder:
        made.add_special_tokens({"cls_token": "[CLS]"})
        made.add_special_tokens({"sep_token": "[SEP]"})
        made.add_special_tokens({"pad_token": "[PAD]"})
    return made


def gpt2() -> Any:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=VOCABULARY, n_positions=POSITIONS, n_embd=16, n_layer=2, n_head=2, **WIDE)
    config.bos_token_id = config.eos_token_id = END
    return GPT2LMHeadModel(config).eval()


def llama() -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(vocab_size=VOCABULARY, max_position_embeddings=POSITIONS, **SHAPE, **WIDE)
    ).eval()


def longrope() -> Any:
    """A Llama with the frequencies of Phi-3: others for texts of more than 12 tokens."""
    torch.manual_seed(0)
    rope: dict[str, Any] = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 12}
    rope |= {"short_factor": [1.0] * 4, "long_factor": [1.0, 2.0, 4.0, 8.0]}
    places = {"max_position_embeddings": POSITIONS, "rope_parameters": rope}
    return LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, **places, **SHAPE, **WIDE)).eval()


def bert() -> Any:
    torch.manual_seed(0)
    config = BertConfig(vocab_size=VOCABULARY, max_position_embeddings=POSITIONS, pad_token_id=259, **SHAPE, **WIDE)
    return BertForMaskedLM(config).eval()


def roberta() -> Any:
    """Counts positions from the one behind padding's, over what is not padding."""
    torch.manual_seed(0)
    positions = POSITIONS + 259 + 1
    config = RobertaConfig(
        vocab_size=VOCABULARY, max_position_embeddings=positions, pad_token_id=259, type_vocab_size=1, **SHAPE, **WIDE
    )
    return RobertaModel(config).eval()


def bloom() -> Any:
    """Its positions have no end."""
    torch.manual_seed(0)
    return BloomForCausalLM(BloomConfig(vocab_size=VOCABULARY, hidden_size=16, n_layer=1, n_head=2)).eval()


def context_lm() -> Any:
    backbone = gpt2().config
    config = ContextLMConfig(backbone_config=backbone, injection="add", predictor_layers=1, chunk_size=3)
    return ContextLMForCausalLM(config).eval()


def multi_token() -> Any:
    return MultiTokenForCausalLM(MultiTokenConfig(gpt2().config, future_tokens=2)).eval()


MODELS = {
    "gpt2": gpt2,
    "llama": llama,
    "longrope": longrope,
    "bert": bert,
    "roberta": roberta,
    "contextlm": context_lm,
    "multitoken": multi_token,
}
ENCODERS = ("bert", "roberta")


def made(name: str) -> tuple[Any, PreTrainedTokenizerBase]:
    """A model and its tokenizer."""
    return MODELS[name](), tokenizer(name in ENCODERS)


def embed_texts(model: Any, tokenizer: PreTrainedTokenizerBase, texts: list[str], **options: Any) -> np.ndarray:
    """Vectors of texts, (N, D) float32; ``options`` are those of :class:`Embedder`."""
    return np.concatenate(list(Embedder(model, tokenizer, **options).blocks(texts)))
