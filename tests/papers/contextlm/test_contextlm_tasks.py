"""Averages of tasks and their intervals, by hand; tasks and long tasks in miniature."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from contextwise.base.config import validate
from contextwise.base.estimates import joint_freedom
from contextwise.base.intervals import student_t
from contextwise.data import prepare_corpus
from contextwise_papers.claims import above
from contextwise_papers.contextlm.table_5_long_tasks import OVERALL, LongTaskScores, levels_of, with_each_seed
from contextwise_papers.contextlm.tables_1_2_3_12_harness import NORMAL, Average, TaskAccuracy, TextPerplexity, accuracy
from long_questions import define_long, long_line, needs_longbench
from shipped import an_item
from small import write_documents, write_rows

BETTER = [{"text": "b is above a", "better": "b", "than": "a"}]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    return prepare_corpus(write_documents(folder / "text.jsonl", 60), "bytes", folder / "made", validation=0.3).path


def settings(corpus, **values):
    training = {"steps": 3, "tokens_per_step": 128, "learning_rate": 1e-2, "evaluation_tokens": 128}
    model = {"family": "gpt_neox", "layers": 1, "width": 32, "heads": 2}
    recipe = {"name": "small", "data": {"context": 64}, "model": model, "training": training}
    predictor = [f"model.context_predictor.{name}" for name in ("chunk_size=4", "predictor_layers=1", "injection=gate")]
    shared = {"corpus": str(corpus), "recipe": recipe, "models": {"a": [], "b": predictor}, "reference": "a"}
    return shared | {"claims": BETTER} | values


def define(folder, task, family, rows):
    """Write a file, and a YAML file in which the harness's own task reads it."""
    from lm_eval import tasks

    folder.mkdir(exist_ok=True)
    file = write_rows(folder / f"{task}.jsonl", rows)
    own = {"include": str(Path(tasks.__file__).parent / family / f"{task}.yaml"), "dataset_path": "json"}
    own |= {"dataset_name": None, "dataset_kwargs": {"data_files": {"test": str(file)}}}
    own |= {"training_split": None, "validation_split": None}
    (folder / f"{task}.yaml").write_text(json.dumps(own))


def arc_line(number):
    choices = {"text": ["red", "blue", "green", "grey"], "label": list("ABCD")}
    return {
        "id": str(number),
        "question": f"Which is {number}{' or not' * 9 * (number == 2)}?",
        "choices": choices,
        "answerKey": "ABCD"[number % 4],
    }


def summary(*rows):
    result = [
        {
            "task": task,
            "shots": 0,
            "documents": 4,
            "cut": 0,
            "measures": {"acc": {"value": value, "stderr": error}},
            "right": "1" * round(10 * value) + "0" * round(10 - 10 * value),
        }
        for task, value, error in rows
    ]
    return {"rows": result, "averages": [{"shots": 0, "tasks": [row[0] for row in rows]}]}


def test_the_error_of_an_average_adds_up_those_of_its_tasks():
    average = accuracy([summary(("arc_easy", 0.5, 0.03), ("sciq", 0.7, 0.04))], 0, ["arc_easy", "sciq"])
    assert average.value == pytest.approx(0.6)
    assert average.error == pytest.approx(0.05 / 2)
    alone = accuracy([summary(("arc_easy", 0.5, None), ("sciq", 0.7, 0.04))], 0, ["arc_easy", "sciq"])
    assert alone.error is None and not average.minus(alone).has_interval


def test_five_questions_decide_nothing():
    right, wrong = np.ones((1, 5)), np.zeros((1, 5))
    better, worse = (Average(answers.mean(axis=1), 0.0, [answers]) for answers in (right, wrong))
    assert not better.surely_above(0.25) and above(better.minus(worse)).holds is None
    better, worse = (Average(answers.mean(axis=1), 0.0, [answers]) for answers in (np.ones((1, 6)), np.zeros((1, 6))))
    assert better.surely_above(0.25) and above(better.minus(worse)).holds is True


def test_seeds_widen_an_interval():
    """Six of eight questions against two of them, by each of two seeds; or by one seed eight, and by the other four."""
    same, apart, base = (
        Average(np.mean(rows, axis=1), 0.1, [np.array(rows, dtype=float)])
        for rows in ([[1] * 6 + [0] * 2] * 2, [[1] * 8, [1] * 4 + [0] * 4], [[1] * 2 + [0] * 6] * 2)
    )
    narrow, wide = same.minus(base), apart.minus(base)
    assert narrow.value == wide.value == 0.5
    assert narrow.high - narrow.value == pytest.approx(NORMAL * math.sqrt(2 / 7 / 8))  # half of the questions differ
    questions = (np.var([0] * 2 + [1] * 2 + [0.5] * 4, ddof=1) / 8, math.inf)  # variances, and their degrees of freedom
    seeds = (0.25**2, 1)
    half = student_t(joint_freedom([questions, seeds])) * math.sqrt(questions[0] + seeds[0])
    assert wide.high - wide.value == pytest.approx(half)


def test_differences_are_paired_by_question():
    """By hand: two tasks of four questions, one seed; the models differ at two questions of the first task alone."""

    def answered(*rights):
        values = [("arc_easy", rights[0]), ("sciq", rights[1])]
        result = summary(*((task, right.count("1") / 4, 0.25) for task, right in values))
        for row, (_, right) in zip(result["rows"], values, strict=True):
            row["right"] = right
        return accuracy([result], 0, ["arc_easy", "sciq"])

    difference = answered("1110", "1010").minus(answered("1000", "1010"))
    assert difference.value == pytest.approx(0.25)
    # Differences 0, 1, 1, 0 have the variance 1/3; the other task has none.
    assert difference.high - difference.value == pytest.approx(NORMAL * math.sqrt(1 / 3 / 4) / 2)


@pytest.mark.parametrize(
    ("better", "than", "holds"),
    [((0.28, 0.02), (0.1, 0.02), None), ((0.6, 0.02), (0.3, 0.02), True), ((0.3, 0.02), (0.6, 0.02), False)],
)
def test_a_claim_is_undecided_where_both_models_guess(corpus, better, than, holds):
    # Chance is a quarter: 0.28 ± 0.04 may be a guess, and the difference is decided only where one model is above it.
    measure = validate(TaskAccuracy, settings(corpus, seeds=[0, 1, 2]), "the settings")
    result = {name: [summary(("arc_easy", *row))] * 3 for name, row in (("a", than), ("b", better))}
    claim = measure._claim(measure.claims[0], 0, result)
    assert claim.holds is holds
    assert ("neither model is surely above chance, 25.0%" in claim.evidence) == (holds is None)
    one_seed = validate(TaskAccuracy, settings(corpus), "the settings")
    claim = one_seed._claim(measure.claims[0], 0, {name: rows[:1] for name, rows in result.items()})
    assert claim.holds is None


@pytest.mark.long
def test_tasks_in_miniature(corpus, tmp_path, monkeypatch):
    pytest.importorskip("lm_eval", reason="the eval extra is not installed")
    sets = tmp_path / "sets"
    define(sets, "arc_easy", "arc", [arc_line(i) for i in range(6)])
    define(sets, "lambada_openai", "lambada", [{"text": f"the model reads {i} tokens"} for i in range(5)])
    values = settings(corpus, include_path=str(sets), tasks=["arc_easy", "lambada_openai"], shots=[0])
    measure = validate(TaskAccuracy, values, "the settings")
    outcome = measure.measure(an_item(), tmp_path / "out")
    (table,) = outcome.tables
    assert [row[:2] for row in table.rows] == [["arc_easy", "6, 1 cut"], ["lambada_openai", "5"], ["Avg of 2", ""]]
    assert table.columns[2:] == ["a", "b", "b minus a"]
    result = outcome.figures["tasks"]["a"][0]
    values = [row["measures"]["acc"]["value"] for row in result["rows"]]
    assert [row["right"].count("1") / len(row["right"]) for row in result["rows"]] == pytest.approx(values)
    assert "; paired by question" in outcome.claims[0].evidence
    assert table.rows[-1][2].startswith(f"{100 * sum(values) / 2:.1f} ± ")
    assert [claim.holds for claim in outcome.claims] == [None]
    # Asked again, nothing is answered again.
    monkeypatch.setattr("contextwise_evals.harness.tasks.ask_tasks", None)
    again = measure.measure(an_item(), tmp_path / "out")
    assert again.figures == outcome.figures


@pytest.mark.slow
def test_perplexities_of_texts_stand_beside_the_corpus(corpus, tmp_path):
    pytest.importorskip("lm_eval", reason="the eval extra is not installed")
    sets = tmp_path / "sets"
    define(sets, "lambada_openai", "lambada", [{"text": f"the model reads {i} tokens"} for i in range(5)])
    values = settings(corpus, include_path=str(sets), texts=["lambada_openai"])
    measure = validate(TextPerplexity, values, "the settings")
    outcome = measure.measure(an_item(), tmp_path / "out")
    table = outcome.tables[-1]
    assert table.columns == ["model", "corpus", "lambada openai", "average of 2"]
    for name, values in outcome.figures["texts"].items():
        group = next(g for g in outcome.figures["comparison"]["groups"] if g["name"] == name)
        assert values["corpus"] == group["perplexity"]["value"] and values["lambada_openai"] > 1
    # Without the files, the corpus alone.
    measure = validate(TextPerplexity, settings(corpus), "the settings")
    alone = measure.measure(an_item(), tmp_path / "out")
    assert len(alone.tables) == len(outcome.tables) - 1 and "texts" not in alone.figures


def row_of(task, text, score):
    return {"task": task, "text": text, "score": score}


def test_models_stand_side_by_side_and_are_paired_by_document():
    documents = range(8)
    low = [row_of("one", f"d{i}", i / 8) for i in documents] + [row_of("two", f"d{i}", 0.0) for i in documents]
    high = [row_of("one", f"d{i}", i / 8 + 0.05) for i in documents] + [row_of("two", f"d{i}", 0.5) for i in documents]
    rows = {"a": [low], "b": [high, high]}
    levels = levels_of(rows, {"one": "QA", "two": "Summaries"})
    assert list(levels) == ["QA", "Summaries", OVERALL]
    gain = levels["QA"].gain(0, 1)
    assert gain.value == pytest.approx(0.05)
    # The scores differ by 0.05 at every document, however far apart the documents are.
    own = levels["QA"].estimate(0)
    assert own.high - own.low > 0.3
    assert levels[OVERALL].gain(0, 1).value == pytest.approx((0.05 + 0.5) / 2)


@pytest.mark.parametrize(("gains", "holds"), [((0.2, 0.2005, 0.201), True), ((0.1, 0.2, 0.3), None)])
def test_the_gain_of_long_tasks_covers_the_seeds(corpus, gains, holds):
    """Three seeds that agree, and three that do not: the mean over them gains as much at every document."""
    draw = np.random.default_rng(0)
    own = draw.uniform(0, 0.5, 12)
    a = [[row_of("one", f"d{i}", own[i]) for i in range(12)]] * 3
    b = [[row_of("one", f"d{i}", own[i] + gain + 0.05 * (i % 2)) for i in range(12)] for gain in gains]
    levels = with_each_seed({"a": a, "b": b}, {"one": "QA"})[OVERALL]
    values = settings(corpus, seeds=[0, 1, 2])
    measure = validate(LongTaskScores, values, "the settings")
    over_documents = levels[0].gain(0, 1)
    documents = (((over_documents.high - over_documents.value) / student_t(11)) ** 2, 11)
    seeds = (np.var(gains, ddof=1) / 3, 2)
    gain = measure._gain(levels, "b", "a")
    half = student_t(joint_freedom([documents, seeds])) * (documents[0] + seeds[0]) ** 0.5
    assert gain.high - gain.value == pytest.approx(half, rel=1e-3)
    assert over_documents.low > 0
    (claim,) = measure._claims(levels, 48)
    assert claim.holds is holds


@needs_longbench
def test_long_tasks_in_miniature(corpus, tmp_path):
    sets = define_long(tmp_path / "sets", "keys", [long_line(i, length=100) for i in range(3)], new_tokens=4)
    define_long(sets, "others", [long_line(i, context="The same text. " * 20) for i in range(5)], new_tokens=4)
    values = settings(corpus, groups={"QA": ["keys"], "Other": ["others"]}, include_path=str(sets), context=[200, 48])
    measure = validate(LongTaskScores, values, "the settings")
    outcome = measure.measure(an_item(), tmp_path / "out")
    assert [[row[0] for row in table.rows] for table in outcome.tables] == [["QA", "Other", OVERALL]] * 2
    assert "context of 48 tokens; 7 questions of 2 tasks" in outcome.tables[0].title  # one text has 4,000 words
    assert outcome.figures["rope_factor"] > 1 and outcome.figures["trained_context"] == 64
    assert [claim.text for claim in outcome.claims] == ["b is above a"]
    assert "a context of 200 tokens" in outcome.claims[0].evidence
    assert "a task has 1 texts only" in outcome.claims[0].evidence
    for scores in outcome.figures["scores"].values():
        assert all(0 <= score["value"] <= 1 for level in scores.values() for score in level.values())
