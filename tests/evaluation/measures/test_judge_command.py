"""``contextwise judge`` as a user types it."""

import json
import sys

import pytest

from judge_server import JudgeServer, compare, mt_bench_files, rate, write

pytest.importorskip("openai", reason="the serve extra is not installed")


def test_the_command_compares_alpaca_eval_outputs(contextwise, tmp_path):
    ours = [{"instruction": f"Do {i}.", "output": f"quality {i}", "generator": "ours"} for i in range(6)]
    theirs = [row | {"output": "quality 2", "generator": "ref", "dataset": "d"} for row in ours]
    (tmp_path / "ours.json").write_text(json.dumps(ours))
    (tmp_path / "ref.json").write_text(json.dumps(theirs))
    command = "judge ours.json --against ref.json --judge-model org/j --limit 5 --set max_tokens=9"
    with JudgeServer(compare) as server:
        words = contextwise.words(f"{command} --endpoint {server.url}")
    assert "2 won, 1 tied, 2 lost." in words and "50.0%" in words
    # The first request finds no token probabilities; equal texts are one request in both orders.
    assert len(server.requests) == 1 + 9 and [each["max_tokens"] for each in server.requests] == [1] + [9] * 9
    assert json.loads((tmp_path / "judged-by-j" / "summary.json").read_text())["all"]["value"] == 0.5


def test_the_command_reports_missing_judgments(contextwise, tmp_path):
    questions, good, bad = mt_bench_files(tmp_path)
    with JudgeServer(rate) as server:
        command = f"judge {good} {bad} --questions {questions} --judge-model j --concurrency 1 --endpoint {server.url}"
        server.next.append(400)
        status, _, errors = contextwise(command)
        assert status == 1 and "1 of 16 judgments are missing: 1 request failed" in " ".join(errors.split())
        server.next.append(400)
        status, output, errors = contextwise(f"{command} --json")  # one document: the summary
        assert status == 1 and json.loads(output)["missing"] == 1 and "judgments are missing" in errors
        status, output, _ = contextwise(f"{command} --json")
        assert status == 0 and json.loads(output)["missing"] == 0 and len(server.requests) == 18
        words = contextwise.words(command)
    assert "all 7.50 [7.50, 7.50] 4" in words
    assert "bad - good: -4.00 [-4.00, -4.00]; fewer than 6 questions allow no verdict" in words


def test_the_help_lists_what_is_sent_with_each_request(contextwise):
    words = contextwise.words("judge --help")
    assert "temperature=0" in words and "max_tokens=2048" in words


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "--questions is missing"),
        ("--questions {Q} --against {GOOD}", "a model called 'good'"),
        ("--questions {Q} {BAD} --against {OTHER}", "compare one at a time"),
        ("--questions {Q} {ALPACA}", "judge one benchmark at a time"),
        ("--questions {UNASKED}", "has answered none of the questions"),
        ("--questions {Q} --endpoint localhost:8000", "give a URL such as http"),
        ("--questions {Q} --timeout 0", "--timeout is 0"),
        ("--questions {Q} --concurrency 0", "--concurrency is 0"),
        ("--questions {Q} --set stream=true", "--set stream=… cannot"),
        ("--questions {Q} --length-controlled", "is for AlpacaEval's outputs"),
        ("--questions {Q} --key-file none", "key file none cannot be read"),
    ],
)
def test_bad_input_is_refused(contextwise, tmp_path, arguments, message):
    questions, good, bad = mt_bench_files(tmp_path)
    other = [{"question_id": 81, "model_id": "other", "choices": [{"turns": ["a", "b"]}]}]
    alpaca = [{"instruction": "Do.", "output": "Done.", "generator": "third"}]
    paths = {
        "Q": questions,
        "GOOD": good,
        "BAD": bad,
        "OTHER": write(tmp_path / "other.jsonl", other),
        "ALPACA": write(tmp_path / "alpaca.json", alpaca),
        "UNASKED": write(tmp_path / "q.jsonl", [{"question_id": 1, "category": "x", "turns": ["?"]}]),
    }
    options = f"--endpoint http://127.0.0.1:9/v1 --judge-model j {arguments.format(**paths)}"
    contextwise.refused(f"judge {good} {options}", message)


def test_length_control_without_its_package(contextwise, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "alpaca_eval", None)
    for name in ("a", "b"):
        write(tmp_path / f"{name}.json", [{"instruction": "Do.", "output": name, "generator": name}])
    with JudgeServer(compare) as server:
        options = f"--length-controlled --endpoint {server.url} --judge-model j"
        _, _, errors = contextwise(f"judge a.json --against b.json {options}")
    assert "needs the alpaca_eval package" in " ".join(errors.split()) and not server.requests
