"""A corpus in memory and small models with random weights."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, GPTNeoXConfig, GPTNeoXForCausalLM, PreTrainedModel

from contextwise.models import ContextLMConfig, ContextLMForCausalLM

VOCABULARY = 23
CONTEXT = 12


@dataclass
class MemoryCorpus:
    """What the evaluation needs of a corpus, without a disk."""

    documents: list[np.ndarray]
    end_of_text: int | None = 0
    path: Path = Path("data/memory")
    split: str = "validation"
    fingerprint: str = "f00d"
    vocab_size: int | None = VOCABULARY
    bytes: np.ndarray | None = None
    words: np.ndarray | None = None
    columns: list[str] = field(default_factory=list)

    @property
    def lengths(self) -> np.ndarray:
        return np.array([len(document) for document in self.documents], dtype=np.int64)

    def document(self, index: int) -> np.ndarray:
        return self.documents[index]

    def __len__(self) -> int:
        return len(self.documents)


def make_corpus(lengths: list[int], seed: int = 0, **values: object) -> MemoryCorpus:
    """Random documents of the given lengths, with four bytes a token and a word for every two."""
    generator = np.random.default_rng(seed)
    documents = [generator.integers(1, VOCABULARY, length).astype(np.uint16) for length in lengths]
    sizes = np.array(lengths, dtype=np.int64)
    return MemoryCorpus(documents, **{"bytes": 4 * sizes, "words": (sizes + 1) // 2, **values})  # type: ignore[arg-type]


def make_model(
    kind: str, seed: int = 0, vocab_size: int = VOCABULARY, n_positions: int = CONTEXT
) -> PreTrainedModel:
    """A model of a few thousand parameters, its weights large enough for position and context to matter."""
    torch.manual_seed(seed)
    shared = {"vocab_size": vocab_size, "bos_token_id": 0, "eos_token_id": 0, "initializer_range": 0.3}
    if kind == "gpt_neox":
        neox = GPTNeoXConfig(
            max_position_embeddings=n_positions,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            **shared,
        )
        return GPTNeoXForCausalLM(neox).eval()
    gpt2 = GPT2Config(n_positions=n_positions, n_embd=16, n_layer=2, n_head=2, **shared)
    if kind == "gpt2":
        return GPT2LMHeadModel(gpt2).eval()
    return ContextLMForCausalLM(ContextLMConfig(backbone_config=gpt2, chunk_size=4, injection="add")).eval()


@pytest.fixture(scope="session")
def models() -> dict[str, PreTrainedModel]:
    """One small model of each kind."""
    return {kind: make_model(kind) for kind in ("gpt2", "gpt_neox", "contextlm")}


@pytest.fixture
def corpus_of():
    """:func:`make_corpus`."""
    return make_corpus


@pytest.fixture
def model_of():
    """:func:`make_model`."""
    return make_model
