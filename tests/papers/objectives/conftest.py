"""Fixtures of the tests of objectives, and documents of several sentences."""

import json

import pytest

from contextwise.data import prepare_corpus
from objective_corpora import bpe, corpus, known, letters, modules  # noqa: F401
from small import WORDS


@pytest.fixture(scope="session")
def sentences_folder(tmp_path_factory):
    """Documents of several sentences, with a small learned vocabulary."""
    folder = tmp_path_factory.mktemp("sentences")
    with (folder / "text.jsonl").open("w") as file:
        for i in range(120):
            words = [WORDS[(i * 7 + j * (1 + i % 5)) % len(WORDS)] for j in range(20 + i)]
            text = " ".join(" ".join(words[k : k + 6]).capitalize() + f" in {i + k}." for k in range(0, len(words), 6))
            file.write(json.dumps({"text": text}) + "\n")
    prepare_corpus(folder / "text.jsonl", "train:400", folder / "corpus", validation=0.15)
    return folder / "corpus"
