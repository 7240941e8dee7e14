"""Small real corpora and recipes that many tests share."""

import os
from pathlib import Path

import pytest
import torch

from small import write_documents

# One thread: the models of the tests are tiny, and waiting threads cost more than they give on a shared machine.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def corpus_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared corpus of bytes, about 50,000 tokens."""
    from contextwise.data import prepare_corpus

    folder = tmp_path_factory.mktemp("shared")
    prepare_corpus(write_documents(folder / "text.jsonl"), "bytes", folder / "corpus", validation=0.1)
    return folder / "corpus"
