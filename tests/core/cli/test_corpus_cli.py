"""``contextwise corpus``, as it is typed."""

import json
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory, corpus_folder: Path) -> Path:
    folder = tmp_path_factory.mktemp("meter")
    np.ones(5000, dtype="<u2").tofile(folder / "text.bin")
    (folder / "corpus").symlink_to(corpus_folder)
    return folder


def test_the_table_fits_a_terminal(contextwise) -> None:
    words = contextwise.words("corpus corpus")
    assert "are rewarded" in words and "longer than this corpus can reward: no document is as long" in words


def test_the_json_agrees_with_the_table(contextwise) -> None:
    _, table, _ = contextwise("corpus corpus --split validation")
    status, output, _ = contextwise("corpus corpus --split validation --json")
    lengths = json.loads(output)
    assert status == 0 and lengths["split"] == "validation"
    assert f"{lengths['documents']:,} documents, {lengths['tokens']:,} tokens" in " ".join(table.split())
    last = lengths["bins"][-1]
    rows = [line.split() for line in table.splitlines() if line.strip().endswith("%")]
    assert rows[-1][-2:] == [f"{last['shorter']:.1%}", f"{last['preceded']:.1%}"]
    assert sum(row["documents"] for row in lengths["bins"]) == lengths["documents"]


def test_given_contexts_are_judged(contextwise) -> None:
    words = contextwise.words("corpus corpus --context 64 --context 65536")
    assert "A training context of 64 tokens is rewarded: " in words
    warning = "Warning: a training context of 65,536 tokens is longer than this corpus can reward: no document"
    assert warning in words and "Train with " in words
    contexts = json.loads(contextwise("corpus corpus --context 65536 --json")[1])["contexts"]
    assert [(row["context"], row["half"], row["enough"]) for row in contexts] == [(65536, 32768, False)]


def test_a_bin_file_is_one_document(contextwise) -> None:
    words = contextwise.words("corpus text.bin --context 4096")
    assert "one document of 5,000 tokens" in words and "counts as one" in words
    # (5000 - 2048) of 5000 tokens have 2,048 or more before them.
    assert "A training context of 4,096 tokens is rewarded: 59.0% of the tokens have 2,048 tokens or more" in words


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("corpus --context 1", "--context is 1; give a training context in tokens"),
        ("corpus --split tset", "has no split 'tset'; it has train, validation"),
        ("nowhere", "make one with `contextwise prepare SOURCE --tokenizer train:4096 --out nowhere`"),
    ],
)
def test_bad_input_is_refused(contextwise, arguments: str, message: str) -> None:
    contextwise.refused(f"corpus {arguments}", message)
