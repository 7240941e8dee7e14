"""LongBench's metrics and L-Eval's for exams, by hand-worked examples."""

import builtins
import importlib.util
import random
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rapidfuzz.distance import LCSseq

from contextwise.base.errors import ConfigError
from contextwise_evals.long_tasks import metrics
from contextwise_evals.long_tasks.metrics import METRICS, score, words

HAS_ROUGE = importlib.util.find_spec("rouge_score") is not None
needs_rouge = pytest.mark.skipif(not HAS_ROUGE, reason="rouge_score, of the extra 'eval', is not installed")
CLASSES = ["Abbreviation", "Abbreviation expanded", "Country", "City"]


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        ("The cat's  A-list, an Apple!", "en", ["cats", "alist", "apple"]),
        ("theory of a the them", "en", ["theory", "of", "them"]),  # articles are whole words
        ("a.n the.", "en", []),  # punctuation goes first, as in LongBench: "an" and "the" are left
        ("", "en", []),
        ("巴黎,是 首都。", "zh", ["巴", "黎", "是", "首", "都"]),
        ("《GDP》 5%", "zh", ["g", "d", "p", "5"]),
    ],
)
def test_normalised_words(text, language, expected):
    assert words(text, language) == expected


@pytest.mark.parametrize(
    ("answer", "wanted", "expected"),
    [
        ("The Eiffel Tower", ["eiffel tower."], 1.0),
        ("in Paris, in France", ["Paris"], 2 * 1 / (4 + 1)),
        ("dog dog cat", ["dog cat cat"], 2 * 2 / (3 + 3)),  # multisets: one dog, one cat
        ("red", ["blue", "Red", "red green"], 1.0),  # the best reference
        ("", ["x"], 0.0),
        ("the", ["a"], 0.0),  # nothing is left of either
    ],
)
def test_qa_f1(answer, wanted, expected):
    assert score(answer, wanted, "qa_f1") == pytest.approx(expected)


def test_chinese_is_compared_by_characters():
    assert score("首都巴黎", ["巴黎。"], "qa_f1", language="zh") == pytest.approx(2 * 2 / (4 + 2))
    assert score("首都巴黎", ["巴黎"], "qa_f1") == 0  # as English: two different words


@needs_rouge
def test_rouge_l_is_the_longest_common_subsequence():
    # police . killed . the . gunman against police . kill . the . gunman: 3 of 4 words in order, both ways
    assert score("police kill the gunman", ["police killed the gunman"], "rouge") == pytest.approx(0.75)
    assert score("the gunman kill police", ["police killed the gunman"], "rouge") == pytest.approx(0.5)
    assert score("", ["police"], "rouge") == 0
    assert score("首都巴黎", ["巴黎"], "rouge", language="zh") == pytest.approx(2 * 2 / (4 + 2))


@needs_rouge
@given(st.lists(st.sampled_from("abcde"), min_size=1), st.lists(st.sampled_from("abcde"), min_size=1))
def test_rouge_l_is_its_formula(written, wanted):
    common = LCSseq.similarity(written, wanted)
    expected = 2 * common / (len(written) + len(wanted))
    assert score(" ".join(written), [" ".join(wanted)], "rouge") == pytest.approx(expected)


@pytest.mark.parametrize(
    ("answer", "wanted", "expected"),
    [
        ("Country", "Country", 1.0),
        ("Country or City", "Country", 0.5),
        ("City", "Country", 0.0),
        ("Abbreviation expanded", "Abbreviation expanded", 1.0),  # "Abbreviation" is part of it
        # Both names are there, neither is part of the true one
        ("Abbreviation expanded", "Abbreviation", 0.5),
        ("country", "Country", 0.0),
    ],
)
def test_classification(answer, wanted, expected):
    assert score(answer, [wanted], "classification", classes=CLASSES) == expected


def test_parts_of_the_true_name_are_left_out_one_and_all():
    classes = ["a", "a b", "a b c", "d"]
    assert score("a b c", ["a b c"], "classification", classes=classes) == 1
    assert score("a b c d", ["a b c"], "classification", classes=classes) == 0.5


@pytest.mark.parametrize(
    ("metric", "answer", "wanted", "expected"),
    [
        ("retrieval", "Paragraph 12", "Paragraph 12", 1.0),
        ("retrieval", "12 or 13, not 12 or 14", "Paragraph 12", 0.5),
        ("retrieval", "Paragraph 112", "Paragraph 12", 0.0),
        ("retrieval", "段落3", "段落3", 1.0),
        ("retrieval", "the first", "Paragraph 1", 0.0),
        ("count", "There are 8 of 10", "8", 0.5),
        ("count", "eight", "8", 0.0),
    ],
)
def test_shares_of_numbers(metric, answer, wanted, expected):
    assert score(answer, [wanted], metric) == expected


def test_code_is_compared_by_its_first_line_that_is_no_comment():
    answer = "\n# first\n// then\n```python\nreturn x + 1\nreturn y"
    assert score(answer, ["return x + 1"], "code") == 1
    # abcd -> abxd: b one deleted, one inserted; 1 - 2/8
    assert score("abcd", ["abxd"], "code") == pytest.approx(0.75)
    assert score("# nothing else", ["return"], "code") == 0


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


def test_few_shot_tasks_count_the_first_line_only():
    answer = "\n\nred\nblue"
    assert score(answer, ["red"], "qa_f1", first_line=True) == 1
    assert score(answer, ["red"], "qa_f1") == pytest.approx(2 / 3)


@pytest.mark.parametrize("metric", [metric for metric in METRICS if HAS_ROUGE or metric != "rouge"])
def test_scores_lie_between_0_and_1(metric):
    draw = random.Random(0)
    for _ in range(50):
        text = "".join(draw.choices(string.printable, k=draw.randint(0, 40)))
        assert 0 <= score(text, ["Paragraph 3", "City"], metric, classes=CLASSES) <= 1
    for wanted in ("Paragraph 3", "City") if metric != "count" else ("3",):
        best = score(wanted, [wanted], metric, classes=CLASSES)
        assert best == (0 if metric in ("retrieval", "classification") and wanted not in _own(metric) else 1)


def _own(metric):
    return ("Paragraph 3",) if metric == "retrieval" else CLASSES


def test_a_missing_package_is_reported_before_anything_is_answered(monkeypatch):
    real = builtins.__import__

    def without_rouge(name, *rest):
        if name.startswith("rouge_score"):
            raise ImportError(name)
        return real(name, *rest)

    metrics._rouge.cache_clear()
    monkeypatch.setattr(builtins, "__import__", without_rouge)
    with pytest.raises(ConfigError, match=r"rouge_score, which is not installed; pip install 'contextwise\[eval\]'"):
        metrics.check_installed({"qa_f1", "rouge"})
    metrics.check_installed({"qa_f1"})
