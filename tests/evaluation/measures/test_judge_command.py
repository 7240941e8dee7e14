"""``contextwise judge`` as a user types it."""

import json
import sys

import pytest
from judge_server import JudgeServer, compare, mt_bench_files, rate, write
from typer.testing import CliRunner

from contextwise.cli import app

pytest.importorskip("openai", reason="the serve extra is not installed")


def test_the_command_compares_alpaca_eval_outputs(tmp_path):
    ours = [{"instruction": f"Do {i}.", "output": f"quality {i}", "generator": "ours"} for i in range(6)]
    theirs = [
        {"instruction": f"Do {i}.", "output": "quality 2", "generator": "ref", "dataset": "d"}
        for i in range(6)
    ]
    (tmp_path / "ours.json").write_text(json.dumps(ours))
    (tmp_path / "ref.json").write_text(json.dumps(theirs))
    command = [
        "judge",
        str(tmp_path / "ours.json"),
        "--against",
        str(tmp_path / "ref.json"),
        "--judge-model",
        "org/j",
    ]
    with JudgeServer(compare) as server:
        done = CliRunner().invoke(
            app, [*command, "--endpoint", server.url, "--limit", "5", "--set", "max_tokens=9"]
        )
    assert done.exit_code == 0, done.output
    assert "2 won, 1 tied, 2 lost." in done.output and "50.0%" in done.output
    # Equal texts are one request in both orders.
    assert len(server.requests) == 9 and server.requests[0]["max_tokens"] == 9
    assert json.loads((tmp_path / "judged-by-j" / "summary.json").read_text())["all"]["value"] == 0.5


def test_the_command_says_that_judgments_are_missing(tmp_path):
    questions, good, bad = mt_bench_files(tmp_path)
    command = [
        "judge",
        str(good),
        str(bad),
        "--questions",
        str(questions),
        "--judge-model",
        "j",
        "--concurrency",
        "1",
    ]
    with JudgeServer(rate) as server:
        server.next.append(400)
        done = CliRunner().invoke(app, [*command, "--endpoint", server.url])
        assert "1 of 16 judgments are missing: 1 request failed" in str(done.exception)
        assert done.exception.exit_status == 1
        done = CliRunner().invoke(app, [*command, "--endpoint", server.url, "--json"])
        assert done.exit_code == 0 and '"missing": 0' in done.output and len(server.requests) == 17
        done = CliRunner().invoke(app, [*command, "--endpoint", server.url])
    assert "all 7.50 [7.50, 7.50] 4" in " ".join(done.output.split())
    assert "bad - good: -4.00 [-4.00, -4.00], significant" in done.output


def test_the_help_says_what_is_sent_with_each_request():
    help_text = CliRunner().invoke(app, ["judge", "--help"], env={"COLUMNS": "200"}).output
    assert "temperature=0" in help_text and "max_tokens=2048" in help_text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--questions is missing"),
        (["--questions", "Q", "--against", "GOOD"], "a model called 'good'"),
        (["--questions", "Q", "BAD", "--against", "OTHER"], "compare one at a time"),
        (["--questions", "Q", "ALPACA"], "judge one benchmark at a time"),
        (["--questions", "OTHER-Q"], "has answered none of the questions"),
        (["--questions", "Q", "--endpoint", "localhost:8000"], "give a URL such as http"),
        (["--questions", "Q", "--timeout", "0"], "--timeout is 0"),
        (["--questions", "Q", "--concurrency", "0"], "--concurrency is 0"),
        (["--questions", "Q", "--set", "stream=true"], "--set stream=… cannot"),
        (["--questions", "Q", "--length-controlled"], "is for AlpacaEval's outputs"),
        (["--questions", "Q", "--key-file", "none"], "key file none cannot be read"),
    ],
)
def test_bad_input_of_the_command(tmp_path, arguments, message):
    questions, good, bad = mt_bench_files(tmp_path)
    other = [{"question_id": 81, "model_id": "other", "choices": [{"turns": ["a", "b"]}]}]
    alpaca = [{"instruction": "Do.", "output": "Done.", "generator": "third"}]
    paths = {
        "Q": questions,
        "GOOD": good,
        "BAD": bad,
        "OTHER": write(tmp_path / "other.jsonl", other),
        "ALPACA": write(tmp_path / "alpaca.json", alpaca),
        "OTHER-Q": write(tmp_path / "q.jsonl", [{"question_id": 1, "category": "x", "turns": ["?"]}]),
    }
    given = [str(paths.get(argument, argument)) for argument in arguments]
    done = CliRunner().invoke(
        app, ["judge", str(good), "--endpoint", "http://127.0.0.1:9/v1", "--judge-model", "j", *given]
    )
    assert message in str(done.exception), done.output


def test_length_control_without_its_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "alpaca_eval", None)
    for name in ("a", "b"):
        rows = [{"instruction": "Do.", "output": name, "generator": name}]
        write(tmp_path / f"{name}.json", rows)
    files = ["judge", str(tmp_path / "a.json"), "--against", str(tmp_path / "b.json"), "--length-controlled"]
    with JudgeServer(compare) as server:
        done = CliRunner().invoke(app, [*files, "--endpoint", server.url, "--judge-model", "j"])
    assert "needs the alpaca_eval package" in str(done.exception) and not server.requests
