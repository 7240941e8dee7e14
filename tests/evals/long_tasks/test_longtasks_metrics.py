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
        ("A cat", "A dog", 0.0),  # the article is no option
        ("A cat", "A", 1.0),
        ("C. one\nD. another", "C", 1.0),
        ("18", "8", 0.0),
        ("$70,000", "70000", 1.0),
        ("16 - 3 - 4 = 9 eggs, for 9 * 2 = 18.00 dollars.\n\nQuestion: another with 5?", "18", 1.0),
        ("First 3, then 7. The answer is $18. Two are left over: 2", "18", 1.0),
        ("The answer is 18.5", "18", 0.0),
        ("none", "18", 0.0),
        ("art in societyies", "Art in society", 0.0),
    ],
)
def test_exams(answer, wanted, expected):
    assert score(answer, [wanted], "exam") == expected


@pytest.mark.parametrize(
    ("answer", "wanted", "expected"),
    [
        ("A. this\nC. that\nThey help, as B. says", "AC", 1.0),
        ("A. this\nC. that", "ACD", 0.25),
        ("A. this\nC. that", "A", 0.0),
        ("(A) this\n(B) that", "AB", 1.0),
        ("AC", "AC", 1.0),
        ("The answer is C.", "C", 1.0),
    ],
)
def test_options_a_line_are_gathered(answer, wanted, expected):
    assert score(answer, [wanted], "options") == expected


@pytest.mark.parametrize(
    ("answer", "wanted", "expected"),
    [
        ("1. a is [1, 2]\n2. The value of b printed will be [[1.0, 2.0],\n [3.0, 4.0]]", "[[1 2][3 4]]", 1.0),
        ("the final output is 'dlroW!' because the characters of the word are read from its end", "dlroW!", 1.0),
        ("dlroW! is what one gets, if the characters of the word are read from its end", "dlroW!", 0.0),
        ("So the value is 15", "5", 0.0),
        ("So the value of a is 5", "5", 1.0),
    ],
)
def test_the_output_of_a_program_is_among_the_last_words(answer, wanted, expected):
    assert score(answer, [wanted], "code_output") == expected


def test_a_missing_package_is_reported_before_anything_is_answered(monkeypatch):
    harness_metrics.cache_clear()
    monkeypatch.setitem(sys.modules, "lm_eval.tasks.longbench.metrics", None)
    monkeypatch.setitem(sys.modules, "lm_eval.tasks.longbench", None)
    with pytest.raises(ConfigError, match=r"with LongBench's packages, .* pip install 'lm_eval\[longbench\]'"):
        harness_metrics()
