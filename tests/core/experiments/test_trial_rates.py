"""The rate of whole runs, from short runs at several rates."""

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
from contextwise.experiments.trial.search import ChosenRate, Search, best_factor, doubtful_rates
from contextwise.reports.trial import rate_table
from small_trials import small_trial

pytestmark = pytest.mark.usefixtures("unscored")


def settings(corpus: Path, folder: Path, **changes: Any) -> TrialSettings:
    return small_trial(corpus, folder, **{"tokens": 64 * 1600, "rates": "search"} | changes)


def test_of_equal_losses_the_rate_of_the_recipe_is_the_best():
    equal = dict.fromkeys((0.125, 0.25, 0.5, 1.0, 2.0), 8.3)
    assert (best_factor(equal), ChosenRate.of("a", 1, equal).factor) == (1, 1)
    assert best_factor(equal | {0.25: 8.2, 2.0: 8.2}) == 2


@pytest.mark.parametrize(
    ("losses", "factor", "at_edge", "lead"),
    [
        ({0.5: 4.05, 1.0: 4.0, 2.0: 4.02, 4.0: 4.001}, 1.0, False, 0.02),  # over the better neighbour
        ({0.5: 4.05, 1.0: 4.0, 2.0: math.inf}, 1.0, False, 0.05),
        ({1.0: 4.0, 2.0: math.inf}, 1.0, True, None),
        ({0.5: 4.2, 1.0: 4.1, 2.0: 4.0}, 2.0, True, 0.1),
        ({1.0: 4.0}, 1.0, False, None),
    ],
)
def test_the_lead_is_that_over_the_better_neighbour(losses, factor, at_edge, lead):
    chosen = ChosenRate.of("a", 1600, losses)
    assert (chosen.factor, chosen.at_edge) == (factor, at_edge)
    assert chosen.lead == (None if lead is None else pytest.approx(lead))
    shown = json.loads(json.dumps(as_json(chosen)))
    assert shown["sentence"] == chosen.sentence == f"Full-length runs (1,600 steps) use {factor:g} × the recipe's rate."


# ---- the search of a trial ----


def losses_around(best: dict[str, float], trained: list[list[float]]) -> Any:
    """Training that gives each arm a loss that is lowest at a factor; one that diverges from 8 on."""

    def train_rates(self: Search, factors: list[float], losses: dict) -> None:
        trained.append(list(factors))
        for length in self.lengths:
            for factor in factors:
                loss = 1 + np.log2(factor / best[length.arm]) ** 2
                losses[length.arm, factor] = math.inf if factor >= 8 else float(loss)

    return train_rates


def test_the_search_widens_for_all_arms_where_one_is_at_an_edge(corpus_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(Search, "train", losses_around({"gpt2": 4.0, "slower": 1.0}, []))
    trial = Trial(small_trial(corpus_folder, tmp_path / "t", rates="search"))
    plan = trial.plan()
    # A run takes 4 s and a short one 1 s: 3 factors of 2 arms, and up to two more factors twice.
    assert (plan.seed_seconds, plan.search_seconds, plan.widening_runs) == (8, 6, 8)
    trial._search(plan.lengths)
    assert trial.factors == {"gpt2": 4.0, "slower": 1.0}
    tried = {arm: [row.factor for row in trial.rates if row.arm == arm] for arm in ("gpt2", "slower")}
    assert tried["gpt2"] == tried["slower"] == [0.5, 1.0, 2.0, 4.0, 8.0]
    assert trial.rates[4].loss is None and [row.chosen for row in trial.rates[:5]].index(True) == 3


def test_the_notes_name_rates_at_an_edge_and_those_that_hardly_lead(corpus_folder, tmp_path, monkeypatch):
    """Losses at 0.5, 1 and 2: gpt2 is best at the edge; slower is best at 1 and level with 2, as best lies between them."""
    monkeypatch.setattr(Search, "train", losses_around({"gpt2": 2.0, "slower": 2**0.499}, []))
    trial = Trial(small_trial(corpus_folder, tmp_path / "t", rates={"widenings": 0}))
    trial._search(trial.lengths())
    edge, tie = doubtful_rates(trial.chosen_rates, trial.settings.margin)
    assert edge.startswith("The best learning rate of gpt2 is at an edge")
    assert "for slower (0.0020)" in tie and "gpt2" not in tie


def test_one_arm_at_the_lower_edge_and_one_at_the_upper_widen_both(corpus_folder, tmp_path, monkeypatch):
    trained: list[list[float]] = []
    monkeypatch.setattr(Search, "train", losses_around({"gpt2": 0.45, "slower": 2.2}, trained))
    trial = Trial(settings(corpus_folder, tmp_path / "t", rates={"share": 1.0}))
    trial._search(trial.lengths())
    assert trained == [[0.5, 1.0, 2.0], [0.25, 0.5, 1.0, 2.0, 4.0]]
    assert {each.arm: each.at_edge for each in trial.chosen_rates} == {"gpt2": False, "slower": False}


def test_whole_runs_take_the_best_rate_and_every_output_says_so(corpus_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(Search, "train", losses_around({"gpt2": 2.0, "slower": 1.0}, []))
    trial = Trial(settings(corpus_folder, tmp_path / "t"))
    lengths = trial.lengths()
    trial._search(lengths)
    assert {(row.arm, row.steps) for row in trial.rates} == {("gpt2", 400), ("slower", 400)}
    runs = trial.arms.run_set(lengths, 0, trial.factors).runs
    assert [run.recipe().learning_rate for run in runs] == [pytest.approx(2 * 3e-3), pytest.approx(1e-6)]
    trial._tokens_N = np.ones(8)
    given = trial._result(lengths, 0, "")
    assert [each["arm"] for each in as_json(given)["chosen_rates"]] == ["gpt2", "slower"]
    words = " ".join(in_terminal(terminal(rate_table(given))).split())
    for each in given.chosen_rates:
        assert each.sentence in words


def test_the_plan_counts_the_search(corpus_folder, tmp_path):
    quarter, whole = (
        Trial(settings(corpus_folder, tmp_path / "t", rates={"share": share})).plan() for share in (0.25, 1.0)
    )
    assert (quarter.search_runs, whole.search_runs) == (6, 6) and whole.search_seconds > quarter.search_seconds
    # Three rates of two arms, each a quarter of a run.
    assert quarter.search_flops == pytest.approx(3 * 0.25 * sum(length.flops for length in quarter.lengths))
    fixed = Trial(settings(corpus_folder, tmp_path / "t", rates="fixed")).plan()
    assert (fixed.search_runs, fixed.widening_runs, fixed.search_flops, fixed.search_seconds) == (0, 0, 0, 0)


@pytest.mark.parametrize("share", [0.0, 1.5, [0.25]])
def test_a_length_that_says_nothing_is_refused(share, corpus_folder, tmp_path):
    with pytest.raises(ConfigError, match="share"):
        settings(corpus_folder, tmp_path / "t", rates={"share": share})


@pytest.mark.long
def test_short_runs_are_trained(corpus_folder, tmp_path):
    rates = {"factors": [0.5, 1.0, 2.0], "share": 0.5, "widenings": 0}
    trial = Trial(settings(corpus_folder, tmp_path / "t", rates=rates, tokens=64 * 16))
    trial.path.mkdir()
    trial._search(trial.lengths())
    runs = [RunFolder(path).recipe() for path in (tmp_path / "t/runs").glob("rates-gpt2-*")]
    assert [run["training"]["tokens"] for run in runs] == [512] * 3
    rows = [row for row in trial.rates if row.arm == "gpt2"]
    assert [row.steps for row in rows] == [8] * 3
    assert all(row.loss is not None and math.isfinite(row.loss) for row in rows)
