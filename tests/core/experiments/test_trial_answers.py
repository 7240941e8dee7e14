"""The tables of finished trials, and what is kept of them."""

import json

import pytest
from benchmarks import answers, harness

from contextwise.base.files import write_sealed_json

ENVIRONMENT = {"gpus": ["A GPU"], "processor": "another"}
RESULT = {
    "stopped": "seeds",
    "losses": {"a": {"64": [3.0, 3.2], "128": [2.0, 2.2]}, "b": {"128": [2.1, 2.5, 2.4]}},
    "comparisons": [
        {
            "arm": "b",
            "budget": 128,
            "documents": "fixed",
            "decision": "worse",
            "decided_after": 2,
            "difference": {"value": 0.3, "low": 0.1, "high": 0.5},
            "looks": [
                {"seeds": 2, "fixed": {"value": 0.3, "low": 0.1, "high": 0.5}},
                {"seeds": 3, "fixed": {"value": 0.2, "low": -0.1, "high": 0.5}},
            ],
        }
    ],
    "unchanged": {"data.corpus": "/somewhere/corpora/text"},
}


def trial(folder, **changes):
    (folder / "runs/a-s0").mkdir(parents=True)
    write_sealed_json(folder / "runs/a-s0/environment.json", ENVIRONMENT)
    write_sealed_json(folder / "result.json", RESULT | changes)
    return str(folder)


def test_the_table_of_trials_and_their_machine(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    answers.main(["name", trial(tmp_path / "text"), "--against", "b"])
    printed = capsys.readouterr().out.splitlines()
    assert printed[2] == "| b, 128 | *+0.300 [+0.100, +0.500]* 2 |"  # the look that decided, as the later one would not
    # Differences of a from b: −0.1 and −0.3, with t = 12.706 and a standard error of 0.1.
    assert printed[5] == "| a, 128 | −0.200 [−1.471, +1.071] 2 |"  # of the two seeds that both have
    kept = json.loads((tmp_path / "name-gpu.json").read_text())["trials"]["text"]
    assert kept["environment"] == ENVIRONMENT and kept["unchanged"] == {"data.corpus": "text"}


def test_a_trial_that_is_not_finished_is_refused(tmp_path, capsys):
    before = trial(tmp_path / "before")
    (tmp_path / "before/result.json").unlink()
    for folder in (trial(tmp_path / "running", stopped=None), before, str(tmp_path / "none")):
        with pytest.raises(SystemExit):
            answers.main(["name", folder])
        assert "is not finished" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        answers.main(["name", trial(tmp_path / "text"), "--against", "c"])
    assert "has no arm 'c', but a, b" in capsys.readouterr().err
