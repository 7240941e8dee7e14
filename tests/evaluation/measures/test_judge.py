"""Judging against a real server that speaks the protocol: verdicts, orders, errors, slowness, interruption."""

import contextlib
import json
import math
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel, PreTrainedModel

from contextwise.base.errors import ConfigError, DataError
from contextwise.base.progress import interruption
from contextwise.data.sources.alpaca import CHAT_TEMPLATE
from contextwise.data.tokenizers import byte_tokenizer
from contextwise.evaluation.measures.judging.files import ModelAnswers, Question
from contextwise.evaluation.measures.judging.judge import Endpoint, judge_answers, read_key
from contextwise.evaluation.measures.judging.requests import (
    Match,
    cost_sentence,
    judge_prompt,
    read_preference,
    read_rating,
    read_verdict,
)
from contextwise.evaluation.measures.judging.results import comparisons, judging_tables, summarize
from contextwise.models import ContextLMConfig, ContextLMForCausalLM
from judge_server import BAD, CATEGORIES, GOOD, QUESTIONS, REFERENCES, JudgeServer, answers_of, compare, rate

pytest.importorskip("openai", reason="the serve extra is not installed")

RATING = Match(QUESTIONS, (GOOD, BAD), None, REFERENCES)
PAIRS = Match(QUESTIONS, (GOOD,), BAD, REFERENCES)


def endpoint(server: JudgeServer, **values: Any) -> Endpoint:
    return Endpoint(**{"url": server.url, "model": "the-judge", "timeout": 20.0, "retries": 2, **values})


def judged(match: Match, server: JudgeServer, out: Path, **values: Any) -> dict[str, Any]:
    given = {name: values.pop(name) for name in ("concurrency", "dry_run") if name in values}
    return judge_answers(match, endpoint(server, **values), out, **{"concurrency": 1, **given})


@pytest.mark.parametrize(
    ("text", "rating"),
    [
        ("Rating: [[7]]", 7),
        ("[[7.5]]", 7.5),
        ("not [[1]] but [[8]]", 8),
        ("Rating: [6]", 6),
        ("[[0]]", None),
        ("[[11]]", None),
        ("seven", None),
        ("", None),
    ],
)
def test_ratings_are_read(text, rating):
    assert read_rating(text) == rating


@pytest.mark.parametrize(("text", "verdict"), [("[[A]]", "A"), ("[[A]]? No: [[C]]", "C"), ("A", None), ("[[D]]", None)])
def test_verdicts_are_read(text, verdict):
    assert read_verdict(text) == verdict


def test_prompts_show_what_the_published_ones_show():
    question = QUESTIONS[1]
    system, user = judge_prompt(question, [("one", "two")], 1, ("right one", "right two"))
    assert (system["role"], user["role"]) == ("system", "user") and "[[5]]" in system["content"]
    assert "First of 1?" in user["content"] and "right one" in user["content"]
    assert not any(text in user["content"] for text in ("Second of 1?", "two"))
    _, user = judge_prompt(question, [("one", "two")], 2, None)
    positions = [user["content"].index(text) for text in ("First of 1?", "one", "Second of 1?", "two")]
    assert positions == sorted(positions) and "Reference" not in user["content"]
    _, user = judge_prompt(question, [("ours",), ("theirs",)], 1, None)
    assert user["content"].index("ours") < user["content"].index("theirs")


def test_ratings_by_model_turn_and_category(tmp_path):
    with JudgeServer(rate) as server:
        summary = judged(RATING, server, tmp_path / "out", concurrency=3)
    assert len(server.requests) == 16 and summary["judgments"] == 16 and summary["missing"] == 0
    assert {request["model"] for request in server.requests} == {"the-judge"}
    assert all(request["temperature"] == 0 and request["max_tokens"] == 2048 for request in server.requests)
    good = summary["models"]["good"]
    assert good["all"]["value"] == 7.5 and good["turns"]["2"]["value"] == 8
    assert set(good["categories"]) == set(CATEGORIES) and good["all"]["questions"] == 4
    difference = summary["differences"]["bad - good"]
    assert (difference["value"], difference["low"], difference["high"]) == (-4, -4, -4)
    with_reference = [r for r in server.requests if "Reference begins" in r["messages"][1]["content"]]
    assert len(with_reference) == 8  # math and coding, two models, two turns
    rows = [json.loads(line) for line in (tmp_path / "out" / "judgments.jsonl").read_text().splitlines()]
    assert {"question_id", "turn", "models", "judge", "user_prompt", "judgment", "verdict"} <= set(rows[0])
    assert json.loads((tmp_path / "out" / "summary.json").read_text()) == summary


def test_pairs_are_compared_in_both_orders(tmp_path):
    with JudgeServer(compare) as server:
        summary = judged(PAIRS, server, tmp_path / "out")
    assert len(server.requests) == 16 and summary["wins"] == 8 and summary["losses"] == summary["ties"] == 0
    assert summary["all"]["value"] == 1 and summary["verdicts_that_follow_the_order"] == 0


def test_a_judge_that_prefers_the_first_answer_gives_ties(tmp_path):
    with JudgeServer(lambda messages: "The first: [[A]]") as server:
        summary = judged(PAIRS, server, tmp_path / "out")
    assert summary["ties"] == 8 and summary["all"]["value"] == 0.5
    assert summary["verdicts_that_follow_the_order"] == 8


def test_a_worked_example_of_win_rates():
    def row(question, turn, first, verdict):
        models = ["us", "them"] if first else ["them", "us"]
        return {"question_id": question, "turn": turn, "models": models, "verdict": verdict, "judgment": "?"}

    rows = [
        *(row(1, 1, True, "A"), row(1, 1, False, "B")),  # won in both orders
        *(row(1, 2, True, "B"), row(1, 2, False, "A")),  # lost in both
        *(row(2, 1, True, "A"), row(2, 1, False, "C")),  # won once, tied once: a tie
        *(row(2, 2, True, "A"), row(2, 2, False, "A")),  # the first position twice: a tie
        *(row(3, 1, True, "C"), row(3, 1, False, "C")),  # tied
        *(row(3, 2, True, "A"), row(3, 2, False, None)),  # an order without a verdict: left out
    ]
    values, followed = comparisons(rows, "us")
    assert values == {(1, 1): 1, (1, 2): 0, (2, 1): 0.5, (2, 2): 0.5, (3, 1): 0.5} and followed == 1
    questions = [Question(i, "all", ("?", "?")) for i in (1, 2, 3)]
    summary = summarize(questions, [ModelAnswers("us", {})], ModelAnswers("them", {}), rows)
    assert (summary["wins"], summary["ties"], summary["losses"]) == (1, 3, 1)
    assert summary["all"]["value"] == pytest.approx(2.5 / 5) and summary["without_verdict"] == 1


def test_a_worked_example_of_weighted_verdicts():
    # p(m) = 0.6 and p(M) = 0.2 of all tokens: 0.6 / 0.8. A name that is not among the likeliest has probability 0.
    assert read_preference({"m": math.log(0.6), "M": math.log(0.2), "the": -2.0}) == pytest.approx(0.75)
    assert read_preference({"m": -9.0, "the": -0.1}) == 1 and read_preference({"M": -9.0}) == 0
    assert read_preference({"the": -0.1}) is read_preference(None) is None

    def row(question, first, verdict):
        models = ["us", "them"] if first else ["them", "us"]
        return {"question_id": question, "turn": 1, "models": models, "verdict": verdict, "judgment": "?"}

    rows = [
        *(row(1, True, 0.75), row(1, False, 0.2)),  # 0.75 and 1 - 0.2
        *(row(2, True, 0.9), row(2, False, 0.8)),  # the first position twice: 0.9 and 1 - 0.8
        *(row(3, True, 0.1), row(3, False, None)),  # an order without a verdict: left out
    ]
    values, followed = comparisons(rows, "us")
    assert values == pytest.approx({(1, 1): 0.775, (2, 1): 0.55}) and followed == 1


def outputs_of(model: str, *texts: str) -> ModelAnswers:
    """Outputs of AlpacaEval."""
    questions = tuple(Question(f"Do {i}.", "all", (f"Do {i}.",)) for i in range(len(texts)))
    return ModelAnswers(model, {q.id: (text,) for q, text in zip(questions, texts, strict=True)}, questions)


OURS, THEIRS = outputs_of("us", "the best", "good"), outputs_of("them", "bad", "better")
OUTPUTS = Match(OURS.questions, (OURS,), THEIRS, {})


def weigh(messages: list[dict[str, str]]) -> tuple[str, dict[str, float]]:
    """Names the better output with probabilities that depend on the order; in words it has no verdict."""
    shown = messages[1]["content"]
    if "Do 0." in shown:
        return "m", ({"m": 0.6, "M": 0.2} if shown.index("the best") < shown.index("bad") else {"M": 0.4, "m": 0.1})
    return "M", {"M": 0.5, "the": 0.1}


def test_outputs_are_weighted_by_token_probabilities(tmp_path):
    with JudgeServer(weigh) as server:
        summary = judged(OUTPUTS, server, tmp_path / "out")
        assert judged(OUTPUTS, server, tmp_path / "out") == summary and len(server.requests) == 4  # kept
    for request in server.requests:
        assert (request["max_tokens"], request["logprobs"], request["top_logprobs"]) == (1, True, 5)
    # Question 0: 0.6 / 0.8 first, 1 - 0.1 / 0.5 second. Question 1: M in both orders, 0 and 1.
    assert summary["verdicts"] == "token probabilities" and summary["parameters"]["max_tokens"] == 1
    assert list(summary["prompts"]) == ["token probabilities"]
    assert summary["all"]["value"] == pytest.approx((0.775 + 0.5) / 2)
    assert (summary["wins"], summary["ties"], summary["losses"]) == (1, 1, 0)
    assert summary["verdicts_that_follow_the_order"] == 1
    printed = Console(width=300)
    with printed.capture() as shown:
        printed.print(judging_tables(summary))
    assert "weighted by the probabilities" in shown.get() and "count as ties" not in shown.get()
    rows = [json.loads(line) for line in (tmp_path / "out" / "judgments.jsonl").read_text().splitlines()]
    assert sorted(row["verdict"] for row in rows) == pytest.approx([0, 0, 0.2, 0.75])
    assert rows[0]["top_logprobs"].keys() <= {"m", "M", "the"}


@pytest.mark.parametrize("fault", [None, 400])
def test_outputs_are_judged_in_words_without_token_probabilities(tmp_path, capsys, fault):
    with JudgeServer(lambda messages: "[[A]]") as server:
        server.next.append(fault)  # a judge that refuses the parameter, or one that leaves it out
        summary = judged(OUTPUTS, server, tmp_path / "out")
        assert judged(OUTPUTS, server, tmp_path / "out") == summary and len(server.requests) == 1 + 4
    assert (summary["verdicts"], summary["ties"], summary["missing"]) == ("words", 2, 0)
    assert "logprobs" not in server.requests[-1] and summary["parameters"]["max_tokens"] == 2048
    assert summary["prompts"] == {"comparison": "Zheng et al. 2023, Section 3.1; Appendix A, Figure 5"}
    why = "status 400: fault 400" if fault else "its answer has none"
    assert f"the endpoint gives no token probabilities ({why})" in " ".join(capsys.readouterr().err.split())


def test_a_first_request_that_fails_decides_nothing(tmp_path):
    with JudgeServer(weigh) as server:
        server.always = 503
        with pytest.raises(ConfigError, match="nothing was judged: the first request failed .status 503"):
            judged(OUTPUTS, server, tmp_path / "out", retries=0)
        server.always = None
        assert judged(OUTPUTS, server, tmp_path / "out")["verdicts"] == "token probabilities"


def test_the_summary_names_where_the_prompts_are_published(tmp_path):
    with JudgeServer(rate) as server:
        prompts = judged(RATING, server, tmp_path / "out")["prompts"]
    assert set(prompts) == {"rating", "rating with reference", "later turn"}
    assert all("Zheng et al. 2023, Section 3." in source for source in prompts.values())


def test_intervals_are_over_questions():
    draw = np.random.default_rng(0)
    ratings = draw.integers(1, 11, size=60)
    rows = [
        {"question_id": i, "turn": turn, "models": ["m"], "verdict": float(rating), "judgment": ""}
        for i, rating in enumerate(ratings)
        for turn in (1, 2)  # both turns alike: no more is known than with one
    ]
    questions = [Question(i, "all", ("?", "?")) for i in range(60)]
    mean = summarize(questions, [ModelAnswers("m", {})], None, rows)["models"]["m"]["all"]
    half = 1.96 * ratings.std(ddof=1) / np.sqrt(60)
    assert mean["value"] == pytest.approx(ratings.mean())
    assert mean["high"] - mean["low"] == pytest.approx(2 * half, rel=0.1)


def test_answers_without_a_verdict_are_counted_kept_and_shown(tmp_path):
    words = iter(["I like trains.\x1b[31m", ""] * 4)
    with JudgeServer(
        lambda messages: rate(messages) if "First of 0" in messages[1]["content"] else next(words)
    ) as server:
        match = Match(QUESTIONS, (GOOD,), None, REFERENCES)
        summary = judged(match, server, tmp_path / "out")
        assert (summary["judgments"], summary["without_verdict"], summary["missing"]) == (8, 6, 0)
        assert summary["examples_without_verdict"][0] == "I like trains.\x1b[31m"
        printed = Console(width=80)
        with printed.capture() as shown:
            printed.print(judging_tables(summary))
        assert r"  I like trains.\x1b[31m" in shown.get()  # not sent to the terminal, which would turn red
        assert summary["models"]["good"]["all"]["value"] == 7.5 and summary["models"]["good"]["all"]["questions"] == 1
        judged(match, server, tmp_path / "out")
        assert len(server.requests) == 8  # what is kept is not asked again
    rows = (tmp_path / "out" / "judgments.jsonl").read_text()
    assert "I like trains." in rows


def test_429_is_retried_after_retry_after(tmp_path):
    with JudgeServer(rate) as server:
        server.next.extend([(429, {"Retry-After": "1"}), 503])
        summary = judged(Match(QUESTIONS[:1], (GOOD,), None, {}), server, tmp_path / "out")
    assert summary["missing"] == 0 and len(server.requests) == 4
    assert server.times[1] - server.times[0] >= 1


def test_slow_answers_time_out_and_are_retried(tmp_path):
    with JudgeServer(rate) as server:
        server.next.append(3.0)
        match = Match(QUESTIONS[:1], (GOOD,), None, {})
        summary = judged(match, server, tmp_path / "out", timeout=0.5)
        assert summary["missing"] == 0 and len(server.requests) == 3
        server.always = 3.0
        with pytest.raises(ConfigError, match="nothing was judged: 2 requests failed.*no answer within 0.3 s, 1 times"):
            judged(match, server, tmp_path / "slow", timeout=0.3, retries=0)
    assert not (tmp_path / "slow").exists()


def test_failed_requests_are_made_by_the_next_run(tmp_path):
    match = Match(QUESTIONS, (GOOD,), None, REFERENCES)
    with JudgeServer(rate) as server:
        server.next.extend([None, 400, None])  # such as a text that is longer than the judge
        summary = judged(match, server, tmp_path / "out")
        assert summary["missing"] == 1 and summary["judgments"] == 7
        assert summary["why_missing"] == "1 request failed, question 81, turn 2: status 400: fault 400"
        again = judged(match, server, tmp_path / "out")
    assert again["missing"] == 0 and len(server.requests) == 9


def test_failures_in_a_row_stop_the_run(tmp_path):
    with JudgeServer(rate) as server:
        server.next.append(None)
        server.always = 500
        summary = judged(RATING, server, tmp_path / "out", retries=0)
    assert len(server.requests) == 6 and summary["missing"] == 15
    assert summary["why_missing"].startswith("5 requests failed one after the other")


@pytest.mark.parametrize(
    "body",
    [
        b"<html>hello</html>",
        b'{"choices": []}',
        b'{"choices": null}',
        b"[]",
        b'{"choices": [{}]}',
        b'{"choices": [{"message": {"content": [{"type": "text", "text": "[[7]]"}]}}]}',
    ],
)
def test_a_body_of_another_protocol(tmp_path, body):
    with JudgeServer(rate) as server:
        server.always = body
        with pytest.raises(ConfigError, match="nothing was judged.*the answer is not of the protocol"):
            judged(RATING, server, tmp_path / "out", retries=0)


@pytest.mark.parametrize(
    ("status", "message"), [(401, "refuses the key"), (403, "refuses the key"), (404, "knows no judge 'the-judge'")]
)
def test_a_refusing_endpoint_gets_one_request(tmp_path, status, message):
    with JudgeServer(rate) as server:
        server.always = status
        with pytest.raises(ConfigError, match=f"{message}.*status {status}"):
            judged(RATING, server, tmp_path / "out")
    assert len(server.requests) == 1


def test_an_endpoint_without_a_server(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        judge = Endpoint(f"http://127.0.0.1:{probe.getsockname()[1]}/v1", "judge", retries=0)
        with pytest.raises(ConfigError, match="nothing was judged: nothing answers at .*refused"):
            judge_answers(RATING, judge, tmp_path / "out")


def test_a_stopped_judging_resumes_and_one_more_model_costs_its_own_requests(tmp_path, monkeypatch):
    with JudgeServer(rate) as server:
        stops = iter([False] * 5 + [True] * 100)
        with monkeypatch.context() as patch:
            patch.setattr(type(interruption), "requested", property(lambda self: next(stops)))
            part = judged(RATING, server, tmp_path / "out")
        assert part["judgments"] == 5 and part["missing"] == 11 and "stopped" in part["why_missing"]
        with (tmp_path / "out" / "judgments.jsonl").open("a") as file:
            file.write('{"key": "half')  # killed while it wrote
        whole = judged(RATING, server, tmp_path / "out")
        assert len(server.requests) == 16 and whole["missing"] == 0
        assert whole == judged(RATING, server, tmp_path / "other")
        third = Match(QUESTIONS, (GOOD, BAD, answers_of("third", 5)), None, REFERENCES)
        judged(third, server, tmp_path / "out")
        assert len(server.requests) == 16 + 16 + 8
        judged(RATING, server, tmp_path / "out", parameters={"temperature": 0.5})
        assert len(server.requests) == 40 + 16 and "max_tokens" not in server.requests[-1]


def test_a_dry_run_prints_the_cost_and_makes_no_request(tmp_path, capsys):
    with JudgeServer(rate) as server:
        assert judged(RATING, server, tmp_path / "out", dry_run=True) is None
    assert not server.requests and not (tmp_path / "out").exists()
    assert "16 judgments, 0 of which exist: 16 requests to make; about " in " ".join(capsys.readouterr().err.split())
    requests = Match(QUESTIONS[:1], (GOOD,), BAD, {}).requests()
    tokens = sum(len(m["content"]) for r in requests for m in r.messages) // 4
    cost = cost_sentence(requests, 4, 0, 100, 2000.0, 10_000.0)
    assert f"about {tokens:,} prompt tokens (4 characters each, an estimate); at most 400 answer tokens" in cost
    assert f"at most about {(2000 * tokens + 10_000 * 400) / 1e6:,.2f} in the currency of the prices" in cost
    assert "at most" not in cost_sentence(requests, 4, 0, None, None, None)


def test_the_key_goes_to_the_endpoint_and_nowhere_else(tmp_path, monkeypatch):
    (tmp_path / "key").write_text("sk-secret-1\n")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-2")
    assert (read_key(tmp_path / "key"), read_key(None)) == ("sk-secret-1", "sk-secret-2")
    with JudgeServer(rate) as server:
        judged(Match(QUESTIONS[:1], (GOOD,), None, {}), server, tmp_path / "out", key="sk-secret-1")
    assert set(server.keys) == {"Bearer sk-secret-1"}
    assert not any("sk-secret" in file.read_text() for file in (tmp_path / "out").iterdir())
    (tmp_path / "key").write_text("two words")
    with pytest.raises(DataError, match="must hold one key and nothing else"):
        read_key(tmp_path / "key")


def test_a_short_key_is_no_secret():
    for key in ("1", "A", "none", "EMPTY"):
        assert (
            Endpoint("http://localhost:1/v1", "j", key).masked("[[10]] [[A]] none EMPTY") == "[[10]] [[A]] none EMPTY"
        )
    with pytest.raises(ConfigError, match="which is no URL"):
        Endpoint("http://[x/v1", "j")


def test_a_key_that_the_endpoint_repeats_is_masked(tmp_path):
    key, match = "sk-secret-1", Match(QUESTIONS[:1], (GOOD,), None, {})
    with JudgeServer(lambda _: f"Your key is {key}. Rating: [[5]]") as server:
        judged(match, server, tmp_path / "out", key=key)
        assert "Your key is ***. Rating" in (tmp_path / "out" / "judgments.jsonl").read_text()
        for status, body in (
            (401, {"error": {"message": f"no {key}"}}),
            (200, {"choices": [{"message": {"content": [key]}}]}),
        ):
            server.always = json.dumps(body).encode() if status == 200 else status
            with pytest.raises(ConfigError) as caught:
                judged(match, server, tmp_path / f"out-{status}", key=key, retries=0)
            assert "secret" not in str(caught.value)
    told = Endpoint(url="http://127.0.0.1/v1", model="a", key=key)._reason(
        ValueError(f"Incorrect key {key} of " + "x" * 300)
    )
    assert told.startswith("Incorrect key *** of x") and len(told) == 200
    with pytest.raises(ConfigError, match="holds a name or a password"):
        Endpoint(url="http://me:secret@127.0.0.1/v1", model="a")


TINY = GPT2Config(n_positions=4096, n_embd=16, n_layer=1, n_head=2, vocab_size=257)


def served(model: PreTrainedModel, folder: Path, port: int) -> subprocess.Popen[str]:
    """A model of bytes behind ``contextwise serve``."""
    model.save_pretrained(folder)
    tokenizer = byte_tokenizer().tokenizer
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)
    return subprocess.Popen(
        [sys.executable, "-m", "contextwise", "serve", str(folder), "--port", str(port), "--host", "127.0.0.1"],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@contextlib.contextmanager
def serving(model: PreTrainedModel, folder: Path) -> Iterator[str]:
    """The base URL of :func:`served`, once it listens."""
    pytest.importorskip("fastapi", reason="the serve extra is not installed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = served(model, folder, port)
    try:
        for _ in range(120):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert server.poll() is None, server.stdout.read()
            time.sleep(1)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.kill()
        server.wait()


@pytest.mark.slow
def test_served_models_give_token_probabilities(tmp_path):
    """A model of bytes, of which m and M are likely, is weighted by its own logits."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(TINY).eval()
    with torch.no_grad():
        weights, m = model.lm_head.weight, ord("m")
        weights[m] *= 3
        weights[ord("M")] = 0.95 * weights[m]
        model.transformer.ln_f.bias += 300 * weights[m]
    with serving(model, tmp_path / "model") as url:
        judge = Endpoint(url, str(tmp_path / "model"))
        summary = judge_answers(OUTPUTS, judge, tmp_path / "out")
    assert summary["verdicts"] == "token probabilities" and summary["missing"] == 0
    rows = [json.loads(line) for line in (tmp_path / "out" / "judgments.jsonl").read_text().splitlines()]
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    verdicts = {row["user_prompt"]: row["verdict"] for row in rows}
    for request in OUTPUTS.requests(weighted=True):
        text = tokenizer.apply_chat_template(request.messages, tokenize=False, add_generation_prompt=True)
        ids = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
        logits = model(ids).logits[0, -1].detach()
        expected = logits[[ord("m"), ord("M")]].softmax(0)[0].item()
        assert verdicts[request.messages[-1]["content"]] == pytest.approx(expected, abs=1e-4)
        assert 0.1 < expected < 0.9


@pytest.mark.slow
def test_answers_of_an_untrained_judge_are_shown_as_answers_without_a_verdict(tmp_path):
    with serving(ContextLMForCausalLM(ContextLMConfig(backbone_config=TINY)), tmp_path / "model") as url:
        judge = Endpoint(url, str(tmp_path / "model"), parameters={"temperature": 0, "max_tokens": 12})
        summary = judge_answers(Match(QUESTIONS[:2], (GOOD,), None, REFERENCES), judge, tmp_path / "out")
    assert summary["judgments"] == 4 and summary["missing"] == 0 and summary["without_verdict"] == 4
    assert summary["models"]["good"]["all"] is None and len(summary["examples_without_verdict"]) == 3
