"""Means, intervals over documents, paired differences, and where more input stops helping."""

import numpy as np
import pytest

from command_line import in_terminal
from contextwise.base.intervals import ratios
from contextwise_evals.long_tasks import LongBench, _heading, verdict
from contextwise_evals.long_tasks.results import level_of, level_rows, mean_level


def scores(*columns):
    return np.array(columns, dtype=float).T


def named(count):
    return [f"d{i}" for i in range(count)]


def test_the_interval_is_that_over_documents():
    draw = np.random.default_rng(1)
    documents = [f"d{i // 5}" for i in range(200)]  # five questions a document, which agree
    values = np.repeat(draw.random(40), 5)
    level = level_of(scores(values, values), documents)
    clustered = level.estimate(0)
    single = level_of(scores(values), named(200)).estimate(0)
    assert clustered.value == pytest.approx(values.mean())
    assert (clustered.high - clustered.low) > 1.8 * (single.high - single.low)  # five equal answers are one
    sums = values.reshape(40, 5).sum(1)
    other = ratios(sums, {"questions": np.full(40, 5)})["questions"]
    assert clustered.low == pytest.approx(other.low, abs=0.01)
    assert clustered.high == pytest.approx(other.high, abs=0.01)


def test_the_difference_is_paired():
    """What all documents share, however much it varies between them, is not in the interval of a difference."""
    draw = np.random.default_rng(2)
    hard = draw.random(50) * 0.8
    level = level_of(scores(hard, hard + 0.1 + 0.01 * draw.standard_normal(50)), named(50))
    gain = level.gain(0, 1)
    assert gain.value == pytest.approx(0.1, abs=0.01) and gain.high - gain.low < 0.01
    assert level.estimate(0).high - level.estimate(0).low > 0.1


def test_what_all_documents_agree_on_is_not_taken_for_certain():
    level = level_of(scores(np.zeros(20), np.zeros(20)), named(20))
    z2 = 1.959964**2
    assert level.estimate(0).low == 0 and level.estimate(0).high == pytest.approx(z2 / (20 + z2), rel=1e-4)
    assert level.gain(0, 1).high == -level.gain(0, 1).low == pytest.approx(z2 / (20 + z2), rel=1e-4)
    ones = level_of(scores(np.ones(20)), named(20)).estimate(0)
    assert ones.high == 1 and ones.low == pytest.approx(20 / (20 + z2), rel=1e-4)


def test_one_document_allows_no_interval():
    level = level_of(scores([0.1, 0.3], [0.5, 0.5]), ["d", "d"])
    assert level.estimate(0).value == pytest.approx(0.2) and level.estimate(0).low is None
    assert level.gain(0, 1).value == pytest.approx(0.3) and level.stops_helping() is None
    several = mean_level([level, level_of(scores([0.0, 1.0], [1.0, 0.0]), named(2))])
    assert several.estimate(0).low is None and several.values_V.tolist() == pytest.approx([0.35, 0.5])


def test_more_input_stops_helping_where_no_larger_context_is_surely_better():
    draw = np.random.default_rng(3)
    # A third of the questions each at the first, second, third context
    answered_from = draw.integers(0, 3, 90)
    columns = [(answered_from <= position).astype(float) for position in range(3)]
    level = level_of(scores(*columns, columns[2], columns[2]), named(90))
    assert level.stops_helping() == 2
    rows = level_rows(level, [10, 20, 30, 40, 50])
    assert rows["stops_helping"]["visible"] == 30
    rest = rows["stops_helping"]["to_the_largest"]
    assert rest["value"] == 0 and rest["low"] < 0 < rest["high"]
    assert "more input stops helping at 30 visible tokens; from there to the most, +0.00" in verdict(rows)


def test_small_gains_that_add_up_are_seen():
    """No single step is sure, the whole way is."""
    draw = np.random.default_rng(4)
    answered_from = np.concatenate([np.zeros(60), np.arange(1, 9).repeat(2), np.full(20, 99)])
    draw.shuffle(answered_from)
    columns = [(answered_from <= position).astype(float) for position in range(9)]
    level = level_of(scores(*columns), named(96))
    assert all((level.gain(i, i + 1).low or 0) <= 0 for i in range(8))
    assert level.stops_helping() > 3


def test_where_no_input_helps_more_seldom_seems_to():
    """100 tasks in which all of nine contexts are equal: with each interval alone at 95%, 14% had more input help."""
    draw, helps = np.random.default_rng(0), 0
    for _ in range(100):
        level = level_of(scores(*(0.5 * draw.random(40) + 0.5 * (draw.random((9, 40)) < 0.5))), named(40))
        helps += level.stops_helping() > 0
    assert helps <= 8


def test_verdicts():
    draw = np.random.default_rng(5)
    low, high = (draw.random(60) < 0.2).astype(float), np.ones(60)
    rows = level_rows(level_of(scores(low, high), named(60)), [10, 20])
    assert verdict(rows) == "more input still helps at 20 visible tokens, the most that were measured."
    rows = level_rows(level_of(scores(high, low), named(60)), [10, 20])
    assert verdict(rows).startswith("no visible context is significantly better than 10 tokens, the least")
    assert verdict(rows).endswith(", which harms.")
    rows = level_rows(level_of(scores(0 * low, 0 * low), named(60)), [10, 20])
    assert verdict(rows) == "every answer scores 0, which says nothing about context."
    rows = level_rows(level_of(scores(low), named(60)), [10])
    assert verdict(rows).startswith("with one visible context there is none to compare it with")
    rows = level_rows(level_of(scores([0.5], [0.6]), ["d"]), [10, 20])
    assert verdict(rows).startswith("a data set of fewer than 6 documents allows no verdict")


def test_a_groups_interval_is_that_of_independent_data_sets():
    draw = np.random.default_rng(6)
    values = draw.random((2, 100))
    levels = [level_of(scores(v), named(100)) for v in values]
    mean = mean_level(levels).estimate(0)
    width = [level.estimate(0).high - level.estimate(0).low for level in levels]
    assert mean.value == pytest.approx(values.mean())
    assert mean.high - mean.low == pytest.approx(np.hypot(*width) / 2, rel=0.1)


def test_tables_fit_80_columns():
    draw = np.random.default_rng(7)
    visible = [512, 1024, 2048, 4096, 8192, 16384, 32768]
    row = level_rows(level_of(draw.random((20, 7)), named(20)), visible)
    name = "passage_retrieval_en_with_a_long_name"
    dataset = {"metric": "classification", "questions": 1000, "documents": 1000, **row}
    summary = {
        "model": "runs/m", "settings": {"chat": False, "rope": "dynamic", "keep": "ends"}, "rope_factor": 16.5,
        "trained_context": 2048, "visible": visible, "datasets": {name: dataset}, "overall": row,
        "groups": {"Code & Class.": {"datasets": [name], **row}}, "notes": ["one"],
    }  # fmt: skip
    text = in_terminal(LongBench.table(summary))
    assert max(map(len, text.splitlines())) <= 80 and "…" not in text
    for context in visible:
        assert f"{context:,}" in text


@pytest.mark.parametrize(
    ("questions", "documents", "words"),
    [(2, 1, "2 questions on 1 document."), (1, 1, "1 question on 1 document."), (9, 7, "9 questions on 7 documents.")],
)
def test_the_heading_counts_in_plain_english(questions, documents, words):
    summary = {
        "model": "m",
        "settings": {"chat": False, "rope": None, "keep": "ends"},
        "datasets": {"tpo": {"questions": questions, "documents": documents}},
    }
    assert _heading(summary).startswith(f"m: {words} Visible are")
