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


def flat(text: str) -> str:
    return " ".join(text.split())


def test_the_table_fits_a_terminal(contextwise) -> None:
    status, output, errors = contextwise("corpus", "corpus")
    assert (status, errors) == (0, "")
    assert max(map(len, output.splitlines())) <= 80
    assert "are rewarded" in output and "longer than this corpus can reward: no document is as long" in flat(
        output
    )


def test_the_json_agrees_with_the_table(contextwise) -> None:
    _, table, _ = contextwise("corpus", "corpus", "--split", "validation")
    status, output, _ = contextwise("corpus", "corpus", "--split", "validation", "--json")
    found = json.loads(output)
    assert status == 0 and found["split"] == "validation"
    assert f"{found['documents']:,} documents, {found['tokens']:,} tokens" in flat(table)
    last = found["bins"][-1]
    rows = [line.split() for line in table.splitlines() if line.strip().endswith("%")]
    assert rows[-1][-2:] == [f"{last['shorter']:.1%}", f"{last['preceded']:.1%}"]
    assert sum(one["documents"] for one in found["bins"]) == found["documents"]


def test_contexts_that_are_asked_for(contextwise) -> None:
    status, output, _ = contextwise("corpus", "corpus", "--context", "64", "--context", "65536")
    assert status == 0
    assert "A training context of 64 tokens is rewarded: " in flat(output)
    assert (
        "Warning: a training context of 65,536 tokens is longer than this corpus can reward: no document"
        in flat(output)
    )
    assert "Train with " in output
    contexts = json.loads(contextwise("corpus", "corpus", "--context", "65536", "--json")[1])["contexts"]
    assert [(one["context"], one["half"], one["enough"]) for one in contexts] == [(65536, 32768, False)]


def test_a_bin_file_is_one_document(contextwise) -> None:
    _, output, _ = contextwise("corpus", "text.bin", "--context", "4096")
    assert "one document of 5,000 tokens" in flat(output) and "counts as one" in flat(output)
    # (5000 - 2048) of 5000 tokens have 2,048 or more before them.
    assert (
        "A training context of 4,096 tokens is rewarded: 59.0% of the tokens have 2,048 tokens or more"
        in flat(output)
    )


def test_bad_input(contextwise) -> None:
    status, output, errors = contextwise("corpus", "corpus", "--context", "1")
    assert (status, output) == (2, "") and "--context is 1; give a training context in tokens" in errors
    status, _, errors = contextwise("corpus", "corpus", "--split", "tset")
    assert status == 2 and "has no split 'tset'; it has train, validation" in flat(errors)
    status, _, errors = contextwise("corpus", "nowhere")
    assert status == 2 and "there is no corpus at nowhere" in flat(errors)
