"""Small sources and corpora that several tests of the data package use."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from contextwise.data import Corpus, prepare_corpus

WORDS = ["the", "sea", "was", "calm", "and", "a", "ship", "with", "white", "sails", "came", "before", "noon"]


def story(number: int, words: int = 40) -> str:
    """A text of its own for each number."""
    return f"Story {number}.\n" + " ".join(WORDS[(number * 7 + i * i) % len(WORDS)] for i in range(words))


@pytest.fixture
def write_jsonl(tmp_path: Path) -> Callable[..., Path]:
    """Write records as JSON Lines into the test's folder; returns the file."""

    def write(records: Iterable[Any], name: str = "texts.jsonl") -> Path:
        path = tmp_path / name
        path.write_bytes(b"".join(json.dumps(record, ensure_ascii=False).encode() + b"\n" for record in records))
        return path

    return write


@pytest.fixture
def stories(write_jsonl: Callable[..., Path]) -> Path:
    """200 documents with metadata."""
    return write_jsonl({"text": story(i), "number": i, "tags": ["even"] if i % 2 == 0 else []} for i in range(200))


@pytest.fixture
def corpus(stories: Path, tmp_path: Path) -> Corpus:
    """The stories as bytes, with all three splits."""
    return prepare_corpus(stories, "bytes", tmp_path / "corpus", validation=0.2, test=0.1)
