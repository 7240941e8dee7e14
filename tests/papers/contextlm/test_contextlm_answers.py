"""Tuned models and a judge of their answers; attention received by phrases: in miniature."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from test_contextlm_tasks import corpus, settings  # noqa: F401

from contextwise.base.config import validate
from contextwise.base.errors import DataError
from contextwise.base.estimates import Estimate, joint_freedom
from contextwise.base.intervals import NORMAL, student_t
from contextwise_papers.claims import above
from contextwise_papers.contextlm.attention import Reading, chunks_table
from contextwise_papers.contextlm.figure_5_attention import AttentionReceived, tokens_of
from contextwise_papers.contextlm.table_4_figure_3_answers import InstructionAnswers, Judged, mean_over_seeds, win_rate
from shipped import an_item
from small import write_rows

pytestmark = pytest.mark.long

TEXT = "the context window learns. This model reads"
QUESTIONS = [
    {"question_id": 81 + i, "category": category, "turns": [f"{category} one?", "two?"]}
    for i, category in enumerate(["writing", "stem", "roleplay"])
]


def instructions(folder):
    records = [{"instruction": f"Say {i}.", "input": "", "output": f"It is {i}, the model says."} for i in range(40)]
    (folder / "alpaca.json").write_text(json.dumps(records))
    write_rows(folder / "question.jsonl", QUESTIONS)
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
    values["benchmark"] = "mt-bench"
    return folder, values | {"max_new_tokens": 4}


def measured(answering, **changes):
    folder, values = answering
    measure = validate(InstructionAnswers, values | changes, "the settings")
    return measure.measure(an_item(), folder / "out")


def answers_of(answering, outcome, name):
    """Question -> the answers of the first seed, as they were written for the judge."""
    text = (answering[0] / "out" / outcome.figures["answers"][name][0]).read_text()
    return {row["question_id"]: row["choices"][0]["turns"] for row in map(json.loads, text.splitlines())}


def rate(answering, outcome, folder, scores, seeds=1, judge="gpt-4"):
    """FastChat's file of ratings, by category, for the models a and b."""
    folder.mkdir(exist_ok=True)
    rows = []
    for name in ("a", "b"):
        for seed in range(seeds):
            text = (answering[0] / "out" / outcome.figures["answers"][name][seed]).read_text()
            for row, question in zip(map(json.loads, text.splitlines()), QUESTIONS, strict=True):
                for turn, answer in enumerate(row["choices"][0]["turns"], 1):
                    row = {
                        "question_id": row["question_id"],
                        "turn": turn,
                        "model": f"{name}-s{seed}",
                        "tstamp": 0.5,
                    } | {
                        "judge": [judge, "single-v1"],
                        "user_prompt": f"[The Start of Assistant's Answer]\n{answer}\n[The End]",
                        "judgment": "",
                        "score": scores[question["category"]],
                    }
                    rows.append(json.dumps(row) + "\n")
    (folder / f"{judge}_single.jsonl").write_text("".join(rows))


def test_without_judgments_the_models_answer_and_claims_stay_open(answering):
    outcome = measured(answering)
    (claim,) = outcome.claims
    assert claim.holds is None and "gen_judgment.py --model-list b-s0 a-s0 " in claim.evidence
    assert all(len(turns) == 2 for turns in answers_of(answering, outcome, "b").values())
    (table,) = outcome.tables
    assert [row[0] for row in table.rows] == ["a", "b"]
    assert all(row[2] == "6" and float(row[1]) > 0 for row in table.rows)
    names = [json.loads((run / "summary.json").read_text())["name"] for run in outcome.runs]
    assert names == ["a", "b", "a-SFT", "b-SFT"]
    tuned = [json.loads((run / "summary.json").read_text()) for run in outcome.runs[2:]]
    assert tuned[0]["tokens"] == tuned[1]["tokens"] == 1024
    assert tuned[0]["corpus"] == tuned[1]["corpus"]


def test_fastchats_ratings_by_category(answering, tmp_path):
    rate(answering, measured(answering), tmp_path, {"writing": 6, "stem": 4, "roleplay": -1})
    outcome = measured(answering, judgments=str(tmp_path))
    assert (
        outcome.tables[1].title.startswith("Ratings by gpt-4")
        and "4 judgments without a verdict" in outcome.tables[1].title
    )
    rows = {row[0]: row[1:] for row in outcome.tables[1].rows}
    assert rows["stem"][0].startswith("4.00") and rows["writing"][0].startswith("6.00") and "roleplay" not in rows
    (claim,) = outcome.claims
    assert claim.holds is None and "b minus a: +0.00" in claim.evidence
    (plot,) = outcome.plots
    assert {point["x"]: point["y"] for point in plot.series["b"]} == {"writing": 6, "stem": 4}


def test_the_last_rating_of_an_answer_counts():
    """Also where it has no verdict, or is the first to have one."""
    judged = Judged()
    for turn, values in {1: (None, 8.0), 2: (7.0, None), 3: (3.0, 5.0)}.items():
        for value in values:
            judged.add(("a",), "gpt-4", ("q", turn), value)
    judged.add(("b",), "gpt-4", ("q", 1), None)
    assert judged.values == {("a",): {("q", 1): 8.0, ("q", 3): 5.0}}
    assert judged.without == {("a",): 1, ("b",): 1}


def test_judgments_of_other_answers_or_of_two_judges_are_refused(answering, tmp_path):
    scores = {"writing": 6, "stem": 4, "roleplay": 5}
    rate(answering, measured(answering), tmp_path, scores)
    rate(answering, measured(answering), tmp_path, scores, judge="other")
    with pytest.raises(DataError, match="judgments of gpt-4, other; give those of one judge"):
        measured(answering, judgments=str(tmp_path))
    row = json.loads((tmp_path / "gpt-4_single.jsonl").read_text().splitlines()[0]) | {"user_prompt": "\0"}
    (tmp_path / "other_single.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(DataError, match="other_single.jsonl:1 judges another answer of a-s0 than the present one"):
        measured(answering, judgments=str(tmp_path))


def test_alpaca_evals_preferences(answering, tmp_path):
    changes = {"benchmark": "alpaca-eval", "questions": str(answering[0] / "alpaca_eval.json")}
    outcome = measured(answering, **changes)
    first, out = outcome.claims[0].evidence, answering[0] / "out"
    files = [str(out / outcome.figures["answers"][name][0]) for name in ("b", "a")]
    assert f"alpaca_eval --model_outputs {files[0]} --reference_outputs {files[1]} --output_path" in first
    ours, theirs = (json.loads(Path(file).read_text()) for file in files)
    rows = [
        {"instruction": b["instruction"], "output_1": a["output"], "output_2": b["output"], "annotator": "gpt"}
        | {"generator_1": a["generator"], "generator_2": b["generator"], "preference": preference}
        for a, b, preference in zip(theirs, ours, (1.75, 1.5, 1.25), strict=True)
    ]
    folder = tmp_path / "b-a" / "weighted_alpaca_eval_gpt4_turbo"
    folder.mkdir(parents=True)
    (folder / "annotations.json").write_text(json.dumps(rows))
    (folder / "leaderboard.csv").write_text(",win_rate,length_controlled_winrate\nb-s0,50.0,51.5\ngpt4,50,50\n")
    outcome = measured(answering, judgments=str(tmp_path), **changes)
    # model, win rate, wins, ties, losses, length-controlled win rate
    assert outcome.tables[1].rows[0][2:] == ["1", "1", "1", "51.50"]
    assert outcome.tables[1].rows[0][1].startswith("50.00") and outcome.claims[0].holds is None


@pytest.mark.parametrize(("questions", "holds"), [(3, None), (5, None), (20, True)])
def test_wins_in_all_questions_are_certain_only_where_there_are_many(questions, holds):
    result = win_rate({(question, 1): 1.0 for question in range(questions)})
    assert result.low < 1 and above(result, 0.5).holds is holds
    spread = win_rate({(question, 1): question / 10 for question in range(11)})
    assert spread.value == pytest.approx(0.5) and spread.low < 0.5 and win_rate({}) is None


def test_seeds_widen_the_interval_over_questions():
    one = Estimate(0.5, 0.4, 0.6)
    assert mean_over_seeds([one]) == one
    same = mean_over_seeds([one, one, one])
    assert (same.value, *same.limits) == pytest.approx((0.5, 0.4, 0.6))
    apart = mean_over_seeds([Estimate(0.4, 0.3, 0.5), Estimate(0.6, 0.5, 0.7)])
    # The variance of a mean of two seeds, with one degree of freedom, and that over questions, 0.1 being 1.96 errors.
    questions, seeds = ((0.1 / NORMAL) ** 2, math.inf), (0.1**2, 1)
    half = student_t(joint_freedom([questions, seeds])) * math.sqrt(questions[0] + seeds[0])
    assert (apart.value, apart.high) == pytest.approx((0.5, 0.5 + half))
    assert mean_over_seeds([one, None]) is None


@pytest.mark.slow
def test_ratings_of_two_seeds(answering, tmp_path):
    rate(answering, measured(answering, seeds=[0, 1]), tmp_path, {"writing": 6, "stem": 4, "roleplay": 5}, seeds=2)
    outcome = measured(answering, seeds=[0, 1], judgments=str(tmp_path))
    assert "mean of 2 seeds" in outcome.tables[1].title
    texts = [(answering[0] / "out" / path).read_text() for path in outcome.figures["answers"]["a"]]
    assert len(set(texts)) == 2  # each seed answers for itself


def reading(pieces, *levels, has_start=True):
    received = {name: np.full(len(pieces), level) for name, level in zip("ab", levels, strict=True)}
    return Reading(pieces, list(range(len(pieces))), has_start, 4, [], received)


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
    attention = {name: values[None] for name, values in result.received.items()}
    table = chunks_table(result, attention, "a", "one seed")
    assert [row[0] for row in table.rows] == ["1: <s> a b c", "2: d"]
    assert [row[1:] for row in table.rows] == [["0.8000", "1.2000", "+50.0%"], ["0.2000", "0.3000", "+50.0%"]]


@pytest.mark.parametrize("seeds", [[0], pytest.param([0, 1], marks=pytest.mark.slow)])
def test_attention_in_miniature(corpus, tmp_path, seeds):  # noqa: F811
    values = settings(corpus, text=TEXT, phrases=["This model"], seeds=seeds)
    measure = validate(AttentionReceived, values, "the settings")
    outcome = measure.measure(an_item(), tmp_path / "out")
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
