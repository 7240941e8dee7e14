"""Positions follow P(x) ∝ (1 - x/L)^γ: by the formula, by chi-squared tests, and in the texts themselves."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruler_reader import size, write_squad
from scipy import stats

from contextwise_evals.ruler.documents import DocumentQA
from contextwise_evals.ruler.questions import NOISE, distances_behind
from contextwise_evals.ruler.tasks import VariableTracking, scatter, word_counts

SURE = 1e-3  # below this p-value a law is rejected; the seeds are fixed


def p_value(observed: np.ndarray, probabilities: np.ndarray) -> float:
    """Of a chi-squared test that counts come from a distribution."""
    return float(stats.chisquare(observed, probabilities * observed.sum()).pvalue)


def test_the_law_by_hand() -> None:
    probabilities = size(10, 2).probabilities(np.array([0, 5, 9]))
    assert probabilities == pytest.approx(np.array([1, 0.25, 0.01]) / 1.26)
    assert size(10, 0).probabilities(np.array([0, 5, 9])) == pytest.approx([1 / 3] * 3)


@given(st.lists(st.integers(0, 999), min_size=1, max_size=30), st.floats(0, 50))
def test_probabilities_sum_to_one_and_fall_with_the_distance(distances: list[int], gamma: float) -> None:
    probabilities = size(1000, gamma).probabilities(np.sort(distances))
    assert probabilities.sum() == pytest.approx(1) and (np.diff(probabilities) <= 1e-15).all()


def test_distances_count_the_tokens_behind() -> None:
    assert distances_behind(np.array([5, 7, 2])).tolist() == [14, 9, 2, 0]
    assert distances_behind(np.array([], dtype=int)).tolist() == [0]


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 3.0])
def test_draws_follow_the_law_and_no_other(gamma: float) -> None:
    distances, draw = np.arange(0, 900, 100), np.random.default_rng(5)
    law = size(1000, gamma)
    drawn = [int(law.draw_positions(draw, distances)[0]) for _ in range(8000)]
    observed = np.bincount(drawn, minlength=len(distances))
    assert p_value(observed, law.probabilities(distances)) > SURE
    assert p_value(observed, size(1000, gamma + 0.5).probabilities(distances)) < SURE


def test_several_positions_are_drawn_without_replacement() -> None:
    law, distances, draw = size(1000, 1.0), np.array([0, 400, 600]), np.random.default_rng(6)
    probabilities = np.array([0.5, 0.3, 0.2])
    assert law.probabilities(distances) == pytest.approx(probabilities)
    orders = list(itertools.permutations(range(3), 2))
    expected = np.array([probabilities[a] * probabilities[b] / (1 - probabilities[a]) for a, b in orders])
    drawn = [orders.index(tuple(law.draw_positions(draw, distances, 2).tolist())) for _ in range(6000)]
    assert p_value(np.bincount(drawn, minlength=6), expected) > SURE


@pytest.mark.long
@pytest.mark.parametrize("gamma", [0.0, 2.0])
def test_the_position_of_the_paragraph_follows_the_law(tmp_path, gamma: float) -> None:
    piece = len("Document 1:\n") + 80 + 2
    length = 9 * piece + 30  # nine paragraphs, and room for what their numbers take
    task = DocumentQA(write_squad(tmp_path / "squad.jsonl"), size(length, gamma))
    behind = []
    for index in range(1200):
        question = task.question(index)
        ((_, end),) = question.needles
        assert question.body.count("Document ") == 9
        behind.append(question.body[end:].count("Document "))
    observed = np.bincount(behind, minlength=9)
    probabilities = size(length, gamma).probabilities(piece * np.arange(9))
    assert p_value(observed, probabilities) > SURE
    assert p_value(observed, size(length, gamma + 1).probabilities(piece * np.arange(9))) < SURE


@pytest.mark.long
def test_assignments_follow_the_law_in_the_order_of_the_chain() -> None:
    lines, gamma = 5, 3.0
    length = lines * len(NOISE) + 110
    task = VariableTracking(size(length, gamma), example=False)
    probabilities = size(length, gamma).probabilities(len(NOISE) * np.arange(lines, -1, -1))
    # Five of six positions are taken. Which one is left has a distribution that can be summed over all orders of drawing.
    left_out = np.zeros(lines + 1)
    for order in itertools.permutations(range(lines + 1), lines):
        rest, probability = 1.0, 1.0
        for position in order:
            probability *= probabilities[position] / rest
            rest -= probabilities[position]
        left_out[next(iter(set(range(lines + 1)) - set(order)))] += probability
    observed = np.zeros(lines + 1)
    for index in range(1500):
        question = task.question(index)
        assert question.body.count(NOISE.strip()) == lines
        positions = [question.body[:start].count(NOISE.strip()) for start, _ in question.needles]
        assert positions == sorted(set(positions))
        observed[next(iter(set(range(lines + 1)) - set(positions)))] += 1
    assert p_value(observed, left_out) > SURE


def test_the_positions_of_words_follow_the_law() -> None:
    total, gamma = 12, 2.0
    draw, observed = np.random.default_rng(8), np.zeros(total)
    for _ in range(5000):
        items, positions = scatter(draw, ["x"], [f"{i}" for i in range(total - 1)], size(600, gamma))
        assert [i for i, item in enumerate(items) if item == "x"] == positions and len(items) == total
        observed[positions[0]] += 1
    distances = 600 / total * np.arange(total)[::-1]
    assert p_value(observed, size(600, gamma).probabilities(distances)) > SURE


def test_frequencies_of_coded_words_by_hand() -> None:
    # 1000 / ζ(2) = 607.9; divided by 1, 4, 9, 16, 25 and rounded down.
    assert word_counts(1000)[:5].tolist() == [607, 151, 67, 37, 24]
    assert word_counts(1).tolist() == [] and word_counts(2).tolist() == [1]


@pytest.mark.parametrize("distance", [-1, 10])
def test_a_distance_outside_the_text_is_refused(distance: int) -> None:
    with pytest.raises(ValueError, match="from 0 to below 10"):
        size(10, 1).probabilities(np.array([distance]))
