"""Tuned models and a judge of their answers; attention received by phrases: in miniature."""

import contextlib
import json
import math

import numpy as np
import pytest
from test_contextlm_tasks import corpus, item_of, settings  # noqa: F401

from contextwise.base.config import validate
from contextwise.base.estimates import Estimate
from contextwise.evaluation.attention import ModelReading, Reading
from contextwise.evaluation.measures.judging.judge import Endpoint
from contextwise.reproductions.claims import above
from contextwise.reproductions.contextlm.figure_5_attention import AttentionReceived, chunks_table, tokens_of
from contextwise.reproductions.contextlm.table_4_figure_3_answers import (
    NO_JUDGE,
    InstructionAnswers,
    mean_over_seeds,
    win_rate,
)

TEXT = "the context window learns. This model reads"
QUESTIONS = [
    {"question_id": 81 + i, "category": category, "turns": [f"{category} one?", "two?"]}
    for i, category in enumerate(["writing", "stem", "roleplay"])
]


def instructions(folder):
    records = [{"instruction": f"Say {i}.", "input": "", "output": f"It is {i}, the model says."} for i in range(40)]
    (folder / "alpaca.json").write_text(json.dumps(records))
    (folder / "question.jsonl").write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
    outputs = [{"instruction": f"Say {i}.", "output": "", "generator": "x"} for i in range(3)]
    (folder / "alpaca_eval.json").write_text(json.dumps(outputs))


@pytest.fixture(scope="module")
def answering(corpus, tmp_path_factory):  # noqa: F811
    """Settings in a folder where models are tuned once for all tests."""
    folder = tmp_path_factory.mktemp("answers")
    instructions(folder)
    training = {"steps": 2, "tokens_per_step": 512, "learning_rate": 1e-3, "evaluation_tokens": 512}
    values = settings(corpus, tuning={"data": {"context": 256}, "training": training})
    values["recipe"] = values["recipe"] | {"data": {"context": 256}}
    values["recipe"]["training"] = values["recipe"]["training"] | {"tokens_per_step": 256}
    values |= {"instructions": str(folder / "alpaca.json"), "questions": str(folder / "question.jsonl")}
    return folder, values | {"max_new_tokens": 4}


def measured(answering, **changes):
    folder, values = answering
    measure = validate(InstructionAnswers, values | changes, "the settings")
    return measure.measure(item_of("instruction_answers"), folder / "out")


@pytest.fixture
def judge(monkeypatch):
    """Lets a function of the messages answer in place of an endpoint; the protocol has tests of its own."""

    def use(answer):
        asked = []

        def ask(endpoint, client, request):
            asked.append(endpoint.model)
            without = {"top_logprobs": None} if request.weighted else {}
            return {"text": answer(request.messages), "finish_reason": "stop", **without}

        monkeypatch.setattr(Endpoint, "client", lambda endpoint: contextlib.nullcontext())
        monkeypatch.setattr(Endpoint, "ask", ask)
        return asked

    return use


def test_without_a_judge_the_models_answer_and_claims_stay_open(answering):
    outcome = measured(answering)
    assert [(claim.holds, claim.evidence) for claim in outcome.claims] == [(None, NO_JUDGE)]
    (table,) = outcome.tables
    assert [row[0] for row in table.rows] == ["a", "b"]
    assert all(row[2] == "6" and float(row[1]) > 0 for row in table.rows)
    names = [json.loads((run / "summary.json").read_text())["name"] for run in outcome.runs]
    assert names == ["a", "b", "a-SFT", "b-SFT"]
    tuned = [json.loads((run / "summary.json").read_text()) for run in outcome.runs[2:]]
    assert tuned[0]["tokens"] == tuned[1]["tokens"] == 1024
    assert tuned[0]["corpus"] == tuned[1]["corpus"]


def test_a_judge_rates_by_category(answering, judge):
    judge(lambda messages: "[[4]]" if "stem" in messages[-1]["content"] else "[[6]]")
    outcome = measured(answering, endpoint="http://judge/v1", judge_model="judge")
    rows = {row[0]: row[1:] for row in outcome.tables[1].rows}
    assert rows["stem"][0].startswith("4.00") and rows["writing"][0].startswith("6.00")
    (claim,) = outcome.claims
    assert claim.holds is None and "b minus a: +0.00" in claim.evidence
    (plot,) = outcome.plots
    assert {point["x"]: point["y"] for point in plot.series["b"]} == {"writing": 6, "stem": 4, "roleplay": 6}


def test_a_judge_that_likes_the_first_answer_tells_nothing(answering, judge):
    asked = judge(lambda messages: "[[A]]")
    changes = {"pairwise": True, "questions": str(answering[0] / "alpaca_eval.json")}
    outcome = measured(answering, endpoint="http://judge/v1", judge_model="first", **changes)
    assert set(asked) == {"first"}
    # model, win rate, wins, ties, losses, verdicts that follow the order.
    assert outcome.tables[1].rows[0][2:] == ["0", "3", "0", "3"]
    assert outcome.tables[1].rows[0][1].startswith("50.00")
    assert outcome.claims[0].holds is None


@pytest.mark.parametrize(("questions", "holds"), [(3, None), (5, None), (20, True)])
def test_wins_in_all_questions_are_certain_only_where_there_are_many(questions, holds):
    result = win_rate({"value": 1.0, "low": 1.0, "high": 1.0, "questions": questions})
    assert result.low < 1 and above(result, 0.5).holds is holds
    spread = {"value": 0.6, "low": 0.5, "high": 0.7, "questions": 9}
    assert win_rate(spread) == Estimate.from_dict(spread) and win_rate(None) is None


def test_seeds_widen_the_interval_over_questions():
    one = Estimate(0.5, 0.4, 0.6)
    assert mean_over_seeds([one]) == one
    same = mean_over_seeds([one, one, one])
    assert (same.value, *same.limits) == pytest.approx((0.5, 0.4, 0.6))
    apart = mean_over_seeds([Estimate(0.4, 0.3, 0.5), Estimate(0.6, 0.5, 0.7)])
    # t(1 degree of freedom) times the standard error over two seeds, and 0.1 over questions, by the squares.
    assert apart.value == pytest.approx(0.5) and apart.high - 0.5 == pytest.approx(
        math.hypot(0.1, 12.7062 * 0.1), rel=1e-4
    )
    assert mean_over_seeds([one, None]) is None


@pytest.mark.slow
def test_a_judge_of_two_seeds(answering, judge):
    judge(lambda messages: "[[6]]")
    outcome = measured(answering, endpoint="http://judge/v1", judge_model="judge", seeds=[0, 1])
    assert len(outcome.figures["judged"]["b against a"]) == 2
    assert "mean of 2 seeds" in outcome.tables[1].title
    texts = [(answering[0] / "out" / path).read_text() for path in outcome.figures["answers"]["a"]]
    assert len(set(texts)) == 2  # each seed answers for itself
    assert len(list((answering[0] / "out" / "judged").glob("*-s1-by-*"))) == 1


def reading(pieces, *levels, has_start=True):
    models = [
        ModelReading(
            "s", name, 1, [np.array([[level * (len(pieces) - j) for j in range(len(pieces))]])], [], 4, *[None] * 2
        )
        for name, level in zip("ab", levels, strict=True)
    ]
    return Reading(pieces, list(range(len(pieces))), has_start, 4, models)


@pytest.mark.parametrize(
    ("phrase", "positions"),
    [("context", [2]), ("learns. This", [4, 5, 6]), ("window learns", [3, 4]), ("the", [1]), ("reads", [8])],
)
def test_tokens_of_a_phrase(phrase, positions):
    pieces = ["<start>", "the", " context", " window", " learns", ".", " This", " model", " reads"]
    assert tokens_of(reading(pieces, 1.0, 1.0), TEXT, phrase) == positions
    plain = tokens_of(reading(pieces[1:], 1.0, 1.0, has_start=False), TEXT, phrase)
    assert plain == [position - 1 for position in positions]


def test_chunks_say_how_much_more_they_receive():
    result = reading(["<s>", "a", " b", " c", " d"], 0.2, 0.3)
    attention = {name: result.models[i].received()[None] for i, name in enumerate("ab")}
    table = chunks_table(result, attention, "a", "one seed")
    assert [row[0] for row in table.rows] == ["1: <s> a b c", "2: d"]
    assert [row[1:] for row in table.rows] == [["0.8000", "1.2000", "+50.0%"], ["0.2000", "0.3000", "+50.0%"]]


@pytest.mark.parametrize("seeds", [[0], pytest.param([0, 1], marks=pytest.mark.slow)])
def test_attention_in_miniature(corpus, tmp_path, seeds):  # noqa: F811
    values = settings(corpus, text=TEXT, phrases=["This model"], seeds=seeds)
    measure = validate(AttentionReceived, values, "the settings")
    outcome = measure.measure(item_of("attention_received"), tmp_path / "out")
    positions = outcome.figures["phrases"]["This model"]
    assert "".join(outcome.figures["pieces"][position] for position in positions).strip() == "This model"
    (claim,) = outcome.claims
    assert claim.text == "b is above a: 'This model'"
    assert claim.holds is None, "fewer than three seeds"
    if len(seeds) == 1:
        assert claim.evidence.endswith("one seed; there is no interval")
    plot, shares = outcome.plots
    # One byte is one token; the one before the text is not drawn.
    assert "".join(point["text"] for point in plot.series["a"]) == TEXT
    assert [point["y"] for point in shares.series["b"]] == pytest.approx(
        [point["y"] / other["y"] for point, other in zip(plot.series["b"], plot.series["a"], strict=True)]
    )
