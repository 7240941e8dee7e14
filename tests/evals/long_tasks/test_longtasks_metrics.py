"""The harness's metrics for LongBench by name, and L-Eval's for exams by hand-worked examples."""

import sys

import pytest

from contextwise.base.errors import ConfigError
from contextwise_evals.long_tasks.metrics import METRICS, harness_metrics, score
from longtasks_files import needs_longbench

CLASSES = ["Abbreviation", "Country", "City"]


@needs_longbench
@pytest.mark.parametrize(
    ("metric", "answer", "wanted", "expected"),
    [
        ("qa_f1", "in Paris, in France", ["Paris"], 2 * 1 / (4 + 1)),
        ("qa_f1", "red", ["blue", "Red", "red green"], 1.0),  # the best reference
        ("rouge", "police kill the gunman", ["police killed the gunman"], 0.75),
        ("classification", "Country or City", ["Country"], 0.5),
        ("retrieval", "12 or 13, not 12 or 14", ["Paragraph 12"], 0.5),
        ("count", "There are 8 of 10", ["8"], 0.5),
        ("code", "# first\nreturn x + 1\nreturn y", ["return x + 1"], 1.0),
    ],
)
def test_scores_are_the_harness_s(metric, answer, wanted, expected):
    assert score(answer, wanted, metric, classes=CLASSES) == pytest.approx(expected)


@pytest.mark.long
@needs_longbench
def test_chinese_is_cut_into_words():
    assert score("首都巴黎", ["巴黎。"], "qa_f1", chinese=True) == pytest.approx(2 * 1 / (2 + 1))
    assert score("首都巴黎", ["巴黎"], "qa_f1") == 0  # as English: two different words
    assert score("段落3", ["段落3"], "retrieval", chinese=True) == 1


@needs_longbench
def test_few_shot_tasks_count_the_first_line_only():
    answer = "\n\nred\nblue"
    assert score(answer, ["red"], "qa_f1", first_line=True) == 1
    assert score(answer, ["red"], "qa_f1") == pytest.approx(2 / 3)


@needs_longbench
@pytest.mark.parametrize("metric", METRICS)
def test_the_harness_has_a_function_for_every_metric(metric):
    assert score("", ["Paragraph 3"], metric, classes=CLASSES) == 0


@pytest.mark.parametrize(
    ("answer", "wanted", "expected"),
    [
        ("C", "C", 1.0),
        (" (C) because A is wrong", "C", 1.0),
        ("The answer is C.", "C", 1.0),
        ("AC", "AC", 1.0),
        ("CA", "AC", 1.0),
        ("A", "AC", 0.25),
        ("AB", "AC", 0.0),
        ("ABC", "AC", 0.0),
        ("because of that", "A", 0.0),  # L-Eval would take it for A
        ("(B) They were tired", "(B) They were so tired.", 1.0),
        ("false, I think; not true", "False [fact: True]", 1.0),
        ("True", "False [fact: True]", 0.0),
        ("untrue", "True [fact: True]", 0.0),
        ("1\nThe answer is 42 apples", "42 Apples", 1.0),
        ("41", "42", 0.0),
        ("", "C", 0.0),
    ],
)
def test_exams(answer, wanted, expected):
    assert score(answer, [wanted], "exam") == expected


def test_a_missing_package_is_reported_before_anything_is_answered(monkeypatch):
    harness_metrics.cache_clear()
    monkeypatch.setitem(sys.modules, "lm_eval.tasks.longbench.metrics", None)
    monkeypatch.setitem(sys.modules, "lm_eval.tasks.longbench", None)
    with pytest.raises(ConfigError, match=r"with LongBench's packages, .* pip install 'lm_eval\[longbench\]'"):
        harness_metrics()
