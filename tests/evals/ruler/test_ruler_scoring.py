"""String match, intervals, and the best visible context, by hand and against other computations."""

import itertools

import numpy as np
import pytest

from contextwise_evals.ruler import verdict
from contextwise_evals.ruler.results import best_shares, string_match


@pytest.mark.parametrize(
    ("answer", "all_found", "one_found"),
    [
        ("They are ALPHA, beta and gamma", 2 / 3, 1.0),  # of alpha, Beta, delta
        ("delta beta alphabet", 1.0, 1.0),  # part of a longer word counts, as in RULER
        ("gamma", 0.0, 0.0),
        ("", 0.0, 0.0),
        ("al\npha", 0.0, 0.0),
        ("al\x00pha beta", 1 / 3, 1.0),
    ],
)
def test_string_match_by_hand(answer: str, all_found: float, one_found: float) -> None:
    wanted = ["alpha", "Beta", "delta"]
    assert string_match(answer, wanted, "all") == pytest.approx(all_found)
    assert string_match(answer, wanted, "part") == one_found


def test_how_often_a_context_is_best_by_enumeration() -> None:
    scores = np.array([[1.0, 0.0, 0.5], [0.0, 0.6, 0.5], [0.0, 0.6, 0.5]])
    exact = np.zeros(3)
    for chosen in itertools.product(range(3), repeat=3):
        exact[scores[list(chosen)].mean(axis=0).argmax()] += 1 / 27  # no two are equally good here
    assert best_shares(scores) == pytest.approx(exact, abs=0.04)  # 2000 resamples: four standard errors
    assert exact == pytest.approx([7 / 27, 8 / 27, 12 / 27])


def test_contexts_that_are_equally_good_share() -> None:
    assert best_shares(np.zeros((5, 4))) == pytest.approx([0.25] * 4)
    assert best_shares(np.array([[0.0, 1.0], [0.5, 1.0]])) == pytest.approx([0, 1])


def test_the_verdict_says_how_sure_it_is() -> None:
    rows = [{"visible": v, "best_share": s} for v, s in ((512, 0.1), (1024, 0.62), (2048, 0.28))]
    result = {"optimum": {"visible": 1024, "share": 0.62}, "accuracies": rows}
    assert verdict(result) == "Best with 1,024 visible tokens, in 62% of resamples; 2,048 in 28%."
    result["optimum"] = None
    assert verdict(result) == "No visible context is better than another: the accuracies are all equal."
    result["accuracies"] = rows[:1]
    assert verdict(result).startswith("With one visible context there is none to compare it with")
