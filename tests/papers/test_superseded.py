"""Results that were made with models or data mended since say so, in their files and in the guide."""

import json
from pathlib import Path

import pytest
from benchmarks.superseded import COMPOSED, MENDED, NEOX, T5, listed, mark, reasons, superseded, why

GUIDE = Path(__file__).parents[2] / "docs/results/superseded.md"


@pytest.mark.long
def test_superseded_results_are_marked_and_listed():
    found = superseded()
    for file, expected in found.items():
        assert json.loads(file.read_text())["superseded"] == expected, (
            f"run python -m benchmarks.superseded: {file.name}"
        )
    assert listed(found).rstrip() in GUIDE.read_text()


def test_the_reasons_follow_from_the_settings():
    predictor = {"model": {"family": "gpt2", "context_predictor": {}}}
    assert reasons(predictor, paired=False) == {COMPOSED} and reasons(predictor, paired=True) == set()
    assert reasons({"models": {"a": ["model.context_predictor.chunk_size=4"]}}, paired=False) == {COMPOSED}
    assert reasons({"model": {"family": "llama", "context_predictor": {}}}, paired=False) == set()
    assert reasons({"multi_token": {"head": "linear"}}, paired=False) == set()
    assert reasons({"model.family": "gpt2_rotary"}, paired=True) == {NEOX}
    assert reasons({"rows": [{"family": "t5"}]}, paired=False) == {T5}


def test_a_result_that_is_made_again_is_not_superseded(tmp_path):
    file = tmp_path / "x.json"
    for day, expected in (("2026-11-26", [NEOX]), (MENDED.isoformat(), [])):
        file.write_text(json.dumps({"benchmark": "x", "date": day, "settings": {"family": "gpt_neox"}}))
        assert why(file) == expected
    before = json.loads(file.read_text())
    mark(file, [NEOX])
    mark(file, [T5])
    assert json.loads(file.read_text()) == before | {"superseded": [T5]}
