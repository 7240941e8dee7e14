"""Several budgets of a trial, whose shorter runs begin from the longest where the schedule allows it."""

from pathlib import Path
from typing import Any

import pytest

from contextwise.base.runs import RunFolder
from contextwise.experiments.trial import Trial, TrialSettings
from contextwise.training import branching
from small_trials import small_trial

TRAINING = {"tokens_per_step": 64, "learning_rate": 3e-3, "evaluation_tokens": 16, "precision": "fp32"}
RECIPE = {
    "data": {"context": 16},
    "model": {"layers": 1, "width": 16, "heads": 2},
    "training": TRAINING | {"schedule": "wsd", "decay_steps": 0.25, "warmup_steps": 2},
}
BUDGETS = [8 * 64, 12 * 64, 24 * 64]


pytestmark = pytest.mark.usefixtures("unscored")


def settings(corpus: Path, folder: Path, **changes: Any) -> TrialSettings:
    return small_trial(corpus, folder, **{"recipe": RECIPE, "tokens": BUDGETS, "seeds": 2} | changes)


def without_trunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(branching, "shared_tokens", lambda recipe, lengths: {})


def trunks(folder: Path) -> dict[str, str | None]:
    """Name of a run -> that of its trunk."""
    runs = {path.name: RunFolder(path).summary().get("trunk") for path in (folder / "runs").iterdir()}
    return {name: None if trunk is None else Path(trunk["path"]).name for name, trunk in runs.items()}


@pytest.mark.long
def test_budgets_are_read_off_one_trunk_and_have_the_losses_of_whole_runs(corpus_folder, tmp_path, monkeypatch):
    result = Trial(settings(corpus_folder, tmp_path / "t")).run()
    of_run = trunks(tmp_path / "t")
    for name, trunk in of_run.items():
        arm, budget, seed, _ = name.split("-")
        assert (trunk is None) == (int(budget) == BUDGETS[-1])
        assert trunk is None or trunk.startswith(f"{arm}-{BUDGETS[-1]}-{seed}-")
    assert len(of_run) == 12
    without_trunks(monkeypatch)
    whole = Trial(settings(corpus_folder, tmp_path / "whole")).run()
    assert set(trunks(tmp_path / "whole")) == set(of_run) and set(trunks(tmp_path / "whole").values()) == {None}
    assert whole.losses == result.losses
    assert [each.looks for each in whole.comparisons] == [each.looks for each in result.comparisons]


@pytest.mark.long
def test_a_trial_whose_longest_runs_are_trained_already_trains_the_others_whole(corpus_folder, tmp_path, monkeypatch):
    given = settings(corpus_folder, tmp_path / "t")
    with monkeypatch.context() as patch:
        without_trunks(patch)
        trial = Trial(given)
        trial.write(dict.fromkeys(given.arms, 1.0))
        lengths = [length for length in trial.lengths() if length.budget == BUDGETS[-1]]
        trial.arms.run_set(lengths, 0, {}).train_missing()
    Trial(given).run()
    of_run = trunks(tmp_path / "t")
    assert {trunk for name, trunk in of_run.items() if "-s0-" in name} == {None}
    assert sum(trunk is not None for name, trunk in of_run.items() if "-s1-" in name) == 4


def test_the_plan_counts_a_trunk_once(corpus_folder, tmp_path, monkeypatch):
    plan = Trial(settings(corpus_folder, tmp_path / "t")).plan()
    assert [length.shared_tokens // 64 for length in plan.lengths if length.arm == "gpt2"] == [6, 9, 0]
    assert [length.own_share for length in plan.lengths if length.arm == "gpt2"] == [0.25, 0.25, 1]
    assert plan.seed_seconds == 2 * (2 + 3 + 24)  # a second a step
    assert plan.flops == pytest.approx(2 * 2 * 29 / 24 * plan.lengths[-1].flops)
    without_trunks(monkeypatch)
    whole = Trial(settings(corpus_folder, tmp_path / "t")).plan()
    assert whole.seed_seconds == 2 * (8 + 12 + 24) and whole.flops > plan.flops


@pytest.mark.parametrize(
    "training",
    [
        {"schedule": "linear"},
        {"warmup_steps": 0.25},  # another number of steps at each budget
    ],
)
def test_budgets_share_no_trunk_where_the_schedule_does_not_allow_it(training, corpus_folder, tmp_path):
    recipe = RECIPE | {"training": RECIPE["training"] | training}
    plan = Trial(settings(corpus_folder, tmp_path / "t", recipe=recipe)).plan()
    assert {length.shared_tokens for length in plan.lengths} == {0}
