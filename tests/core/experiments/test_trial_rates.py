"""The rate of whole runs, from short runs at several rates and two lengths."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_line import in_terminal
from contextwise.base.errors import ConfigError
from contextwise.base.estimates import as_json
from contextwise.base.runs import RunFolder
from contextwise.base.tables import terminal
from contextwise.experiments.trial import Trial, TrialSettings
from contextwise.experiments.trial import arms as arms_module
from contextwise.experiments.trial.rates import ChosenRate, Optimum, best_factor, other_minima
from contextwise.experiments.trial.search import Search
from contextwise.reports.trial import rate_table
from small_trials import small_trial

MARGIN = 0.01


pytestmark = pytest.mark.usefixtures("unscored")


def settings(corpus: Path, folder: Path, **changes: Any) -> TrialSettings:
    return small_trial(corpus, folder, **{"tokens": 64 * 1600, "rates": "search"} | changes)


def parabola(lowest: float, curvature: float = 0.1, factors: tuple[float, ...] = (0.5, 1.0, 2.0)) -> dict[float, float]:
    return {factor: 4 + curvature * math.log2(factor / lowest) ** 2 for factor in factors}


# ---- the best rate of a length ----


@pytest.mark.parametrize("lowest", [0.8, 1.0, 1.3])
def test_the_lowest_point_lies_between_the_rates_that_were_tried(lowest):
    losses = parabola(lowest)
    found = Optimum.of(128, losses, MARGIN)
    assert found.factor == 1.0 and found.lowest == pytest.approx(lowest) and found.unknown == ""
    assert found.leads == (pytest.approx(losses[0.5] - losses[1.0]), pytest.approx(losses[2.0] - losses[1.0]))
    uneven = Optimum.of(128, parabola(lowest, factors=(0.25, 1.0, 4.0)), MARGIN)
    assert uneven.lowest == pytest.approx(lowest)


@pytest.mark.parametrize(
    ("values", "minima"),
    [
        ([4.2, 4.1, 4.0, 4.1, 4.2], []),
        ([4.2, 4.0, 4.1, 4.095, 4.2], []),  # by less than the margin
        ([4.2, 4.0, 4.1, 4.05, 4.2], [2.0]),
        ([4.05, 4.1, 4.0, 4.1, 4.02], [0.25, 4.0]),
        ([4.0, 4.3, math.inf, 4.1, 4.05], [4.0]),
    ],
)
def test_losses_with_two_minima_are_noticed(values, minima):
    factors = (0.25, 0.5, 1.0, 2.0, 4.0)
    assert other_minima(dict(zip(factors, values, strict=True)), MARGIN) == minima


@pytest.mark.parametrize(
    ("losses", "why"),
    [
        (parabola(4.0), "the best is at an edge"),
        (parabola(0.1), "the best is at an edge"),
        ({1.0: 4.0}, "the best is at an edge"),
        (parabola(1.0) | {2.0: math.inf}, "a rate next to the best diverges"),
        (parabola(1.0, curvature=0.009), "differ by less than the margin"),
    ],
)
def test_a_lowest_point_that_is_not_known_has_a_reason(losses, why):
    found = Optimum.of(128, losses, MARGIN)
    assert found.lowest is None and why in found.unknown
    assert found.at_edge == (why == "the best is at an edge" and len(losses) > 1)


def test_of_equal_losses_the_rate_of_the_recipe_is_the_best():
    equal = dict.fromkeys((0.125, 0.25, 0.5, 1.0, 2.0), 8.3)
    assert (best_factor(equal), Optimum.of(1, equal, MARGIN).factor) == (1, 1)
    assert best_factor(equal | {0.25: 8.2, 2.0: 8.2}) == 2


# ---- from two lengths to whole runs ----


def test_a_rate_that_falls_with_the_length_falls_as_fast_up_to_whole_runs():
    """From 100 to 400 steps the best rate falls to 0.8 of what it was, in two doublings; 1600 steps are two more."""
    chosen = ChosenRate.of("a", 1600, [(100, parabola(1.25)), (400, parabola(1.0))], MARGIN)
    assert chosen.moved == pytest.approx(0.8) and chosen.factor == pytest.approx(0.8)
    assert (
        "The best rate changes with the run length: it is 1.25 × the recipe's rate at 100 steps and" in chosen.sentence
    )
    assert chosen.sentence.startswith("Full-length runs (1,600 steps) use 0.8 × the recipe's rate.")
    rising = ChosenRate.of("a", 800, [(100, parabola(1.0)), (400, parabola(1.2))], MARGIN)
    assert rising.factor == pytest.approx(1.2 * 1.2**0.5, abs=0.01)
    far = ChosenRate.of("a", 1_000_000, [(100, parabola(1.4)), (400, parabola(1.0))], MARGIN)
    assert far.factor == 0.5  # at most halved


def test_a_rate_that_stays_is_the_lowest_point():
    chosen = ChosenRate.of("a", 1600, [(100, parabola(1.2)), (400, parabola(1.21))], MARGIN)
    assert "hardly changes with the run length" in chosen.sentence and chosen.factor == pytest.approx(1.22, abs=0.01)


@pytest.mark.parametrize(
    ("by_steps", "why"),
    [
        (
            [(100, parabola(8.0)), (400, parabola(1.3))],
            "is not known: in runs of 100 steps, the best is at an edge of the search",
        ),
        (
            [(100, parabola(1.3)), (400, parabola(1.3) | {0.5: math.inf})],
            "is not known: in runs of 400 steps, a rate next to the best diverges",
        ),
        ([(400, parabola(1.3))], "Whether the best rate depends on the run length was not measured."),
    ],
)
def test_where_it_is_not_known_whether_the_rate_moves_the_best_of_the_longer_runs_is_taken(by_steps, why):
    chosen = ChosenRate.of("a", 1600, by_steps, MARGIN)
    assert chosen.factor == 1.0 and chosen.moved is None and why in chosen.sentence


def test_runs_of_the_whole_length_leave_nothing_open():
    sentence = ChosenRate.of("a", 400, [(400, parabola(1.0))], MARGIN).sentence
    assert "length" not in sentence.replace("Full-length", "") and "  " not in sentence


def test_the_lead_is_that_over_the_better_neighbour():
    losses = {0.5: 4.05, 1.0: 4.0, 2.0: 4.02, 4.0: 4.001}
    chosen = ChosenRate.of("a", 1600, [(400, losses)], MARGIN)
    assert chosen.lead == pytest.approx(0.02) and chosen.lead_in_margins == pytest.approx(2)
    shown = json.loads(json.dumps(as_json(chosen)))
    assert shown["lead_in_margins"] == pytest.approx(2) and shown["sentence"] == chosen.sentence
    diverged = ChosenRate.of("a", 1600, [(400, {1.0: 4.0, 2.0: math.inf})], MARGIN)
    assert diverged.lead is None and as_json(diverged)["optima"][0]["leads"] == [None, None]


# ---- the search of a trial ----


def losses_around(best: dict[tuple[str, float], float], trained: list[tuple[float, list[float]]]) -> Any:
    """Training that gives each arm, at each share of a run, a loss that is lowest at a factor."""

    def train_rates(self: Search, share: float, factors: list[float], losses: dict) -> None:
        trained.append((share, list(factors)))
        for length in self.lengths:
            for factor in factors:
                losses[length.arm, factor] = 4 + 0.1 * float(np.log2(factor / best[length.arm, share]) ** 2)

    return train_rates


def test_each_length_is_widened_by_itself_for_all_arms_and_in_both_directions(corpus_folder, tmp_path, monkeypatch):
    trained: list[tuple[float, list[float]]] = []
    best = {("gpt2", 0.0625): 3.0, ("slower", 0.0625): 1.0, ("gpt2", 0.25): 1.3, ("slower", 0.25): 0.4}
    monkeypatch.setattr(Search, "train", losses_around(best, trained))
    trial = Trial(settings(corpus_folder, tmp_path / "t"))
    trial._search(trial.lengths())
    assert trained == [
        (0.25, [0.5, 1.0, 2.0]),
        (0.25, [0.25, 0.5, 1.0, 2.0]),  # of slower
        (0.0625, [0.5, 1.0, 2.0]),
        (0.0625, [0.5, 1.0, 2.0, 4.0]),  # of gpt2
        (0.0625, [0.5, 1.0, 2.0, 4.0, 8.0]),
    ]
    assert trial.factors == {"gpt2": 0.65, "slower": 0.2}  # 1.3 and 0.4, which is at most halved
    rows = {(row.arm, row.steps): row.factor for row in trial.rates if row.chosen}
    assert rows == {("gpt2", 100): 4.0, ("gpt2", 400): 1.0, ("slower", 100): 1.0, ("slower", 400): 0.5}


def test_one_arm_at_the_lower_edge_and_one_at_the_upper_widen_both(corpus_folder, tmp_path, monkeypatch):
    trained: list[tuple[float, list[float]]] = []
    monkeypatch.setattr(Search, "train", losses_around({("gpt2", 1.0): 0.45, ("slower", 1.0): 2.2}, trained))
    trial = Trial(settings(corpus_folder, tmp_path / "t", rates={"shares": [1.0]}))
    trial._search(trial.lengths())
    assert [factors for _, factors in trained] == [[0.5, 1.0, 2.0], [0.25, 0.5, 1.0, 2.0, 4.0]]
    assert {each.arm: each.at_edge for each in trial.chosen_rates} == {"gpt2": False, "slower": False}


def test_whole_runs_take_the_scaled_rate_and_every_output_says_so(corpus_folder, tmp_path, monkeypatch):
    best = {(arm, share): 1.0 for arm in ("gpt2", "slower") for share in (0.0625, 0.25)} | {("gpt2", 0.0625): 1.25}
    monkeypatch.setattr(Search, "train", losses_around(best, []))
    trial = Trial(settings(corpus_folder, tmp_path / "t"))
    lengths = trial.lengths()
    trial._search(lengths)
    runs = trial.arms.run_set(lengths, 0, trial.factors).runs
    assert [run.recipe().learning_rate for run in runs] == [pytest.approx(0.8 * 3e-3), pytest.approx(1e-6)]
    trial._tokens_N = np.ones(8)
    given = trial._result(lengths, 0, "")
    assert [each["arm"] for each in as_json(given)["chosen_rates"]] == ["gpt2", "slower"]
    words = " ".join(in_terminal(terminal(rate_table(given))).split())
    for each in given.chosen_rates:
        assert each.sentence in words


def test_short_runs_of_fewer_than_a_hundred_steps_are_left_out(corpus_folder, tmp_path):
    plans = {
        tokens: Trial(settings(corpus_folder, tmp_path / "t", tokens=64 * tokens)).plan() for tokens in (1590, 1600)
    }
    assert plans[1590].search_runs == 6 and plans[1600].search_runs == 12


def test_the_plan_counts_both_lengths(corpus_folder, tmp_path):
    one, two = (
        Trial(settings(corpus_folder, tmp_path / "t", rates={"shares": shares})).plan()
        for shares in ([0.25], [0.125, 0.25])
    )
    assert two.search_flops == pytest.approx(1.5 * one.search_flops)
    assert two.search_seconds == pytest.approx(1.5 * one.search_seconds)
    assert (one.search_runs, two.search_runs) == (6, 12) and two.widening_runs == 2 * one.widening_runs
    # Three rates of two arms, each a quarter and an eighth of a run.
    assert two.search_flops == pytest.approx(3 * 0.375 * sum(length.flops for length in two.lengths))


@pytest.mark.parametrize("shares", [[], [0.1, 0.2, 0.4], [0.0], [1.5], [0.2, 0.3]])
def test_lengths_that_say_nothing_are_refused(shares, corpus_folder, tmp_path):
    with pytest.raises(ConfigError, match="shares"):
        settings(corpus_folder, tmp_path / "t", rates={"shares": shares})


@pytest.mark.long
def test_short_runs_of_both_lengths_are_trained(corpus_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(arms_module, "FEWEST_STEPS", 4)
    rates = {"factors": [0.5, 1.0, 2.0], "shares": [0.25, 0.5], "widenings": 0}
    trial = Trial(settings(corpus_folder, tmp_path / "t", rates=rates, tokens=64 * 16))
    trial.path.mkdir()
    trial._search(trial.lengths())
    runs = [RunFolder(path).recipe() for path in (tmp_path / "t/runs").glob("rates-gpt2-*")]
    assert sorted(run["training"]["tokens"] for run in runs) == [256] * 3 + [512] * 3
    rows = [row for row in trial.rates if row.arm == "gpt2"]
    assert [row.steps for row in rows] == [4] * 3 + [8] * 3
    assert all(row.loss is not None and math.isfinite(row.loss) for row in rows)
    assert np.mean([row.loss for row in rows[3:]]) < np.mean([row.loss for row in rows[:3]])
