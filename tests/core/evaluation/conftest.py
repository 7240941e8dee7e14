"""A corpus in memory and small models with random weights."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from transformers import PreTrainedModel

from measured import VOCABULARY, make_model


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

    def window_start(self, wanted: bool | None = None) -> int | None:
        return self.end_of_text if wanted else None

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
