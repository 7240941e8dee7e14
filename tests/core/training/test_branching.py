"""Runs that branch off a trunk: they end as uninterrupted runs of their length, and only where they may begin."""

import pytest

from contextwise.base.config import validate
from contextwise.base.errors import CheckpointError, ConfigError
from contextwise.base.runs import RunFolder
from contextwise.training import Recipe
from contextwise.training.branching import may_branch
from small import recipe_values, run_summary
from trained import half_done, same, timeless, trained

WSD = {"schedule": "wsd", "decay_steps": 0.5}
TOKENS = {"steps": None, "optimizer": "muon", "precision": "fp32"}
CASES = {
    "adamw": (WSD, {"steps": 20, "branches": [8, 12]}, {"steps": 12}, 6),
    "muon, in tokens": (
        WSD | TOKENS,
        {"tokens": 20 * 128, "branches": [12 * 128], "schedule": "constant"},
        {"tokens": 12 * 128, "minimum_learning_rate": 0.1},
        6,
    ),
}
"""Settings of both, of the trunk, of a branch, and the step at which it begins to decay."""


def branched(corpus, folder, **options):
    return trained(recipe_values(corpus, folder, **options))


@pytest.fixture(scope="module")
def trunk(corpus_folder, tmp_path_factory):
    both, own, _, _ = CASES["adamw"]
    folder = tmp_path_factory.mktemp("trunk") / "trunk"
    return branched(corpus_folder, folder, **both | own, keep_checkpoints=1)


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_a_branch_ends_as_an_uninterrupted_run(case, corpus_folder, tmp_path):
    both, of_trunk, own, start = CASES[case]
    trunk = branched(corpus_folder, tmp_path / "trunk", **both | of_trunk, keep_checkpoints=1)
    assert (trunk.checkpoints / f"step-{start}").exists()
    whole = branched(corpus_folder, tmp_path / "whole", **both | own)
    branch = branched(corpus_folder, tmp_path / "branch", **both | own, trunk=str(trunk.path))
    assert same(whole.path, branch.path)
    assert not same(whole.path, trunk.path)
    assert timeless(whole) == timeless(branch)
    summary, shared = whole.summary(), branch.summary()["trunk"]
    for name in ("steps", "tokens", "target_tokens", "flops", "validation_loss"):
        assert branch.summary()[name] == summary[name]
    row = next(row for row in trunk.metrics() if row["step"] == start)
    assert shared == {"path": str(trunk.path), "step": start} | {k: row[k] for k in ("tokens", "flops", "seconds")}
    assert 0 < shared["seconds"] < branch.summary()["seconds"]


@pytest.mark.long
@pytest.mark.parametrize("stop", ["before its first checkpoint", "after it"])
def test_a_stopped_branch_resumes_exactly(trunk, corpus_folder, tmp_path, stop):
    options = WSD | {"steps": 12, "save_every": 100 if "before" in stop else 4}
    whole = branched(corpus_folder, tmp_path / "whole", **options)
    values = half_done(corpus_folder, tmp_path / "branch", **options, trunk=str(trunk.path))
    own = list((tmp_path / "branch" / "checkpoints").glob("step-*"))
    assert len(own) == ("after" in stop)
    if own:  # the trunk is not needed any more
        values["training"]["trunk"] = str(tmp_path / "gone")
    branch = trained(values)
    assert same(whole.path, branch.path)
    assert timeless(whole) == timeless(branch)
    assert branch.summary()["trunk"]["step"] == 6


def test_intervals_of_a_branch_are_its_own(trunk, corpus_folder, tmp_path):
    """The trunk has a row every 2 steps and a validation every 6; this branch every 3 and every 4."""
    options = WSD | {"steps": 12, "log_every": 3, "evaluate_every": 4, "save_every": 5, "keep_checkpoints": 9}
    branch = branched(corpus_folder, tmp_path / "branch", **options, trunk=str(trunk.path))
    assert [row["step"] for row in branch.metrics("train")] == [2, 4, 6, 9, 12]
    assert [row["step"] for row in branch.metrics("validation")] == [6, 8, 12]
    assert sorted(path.name for path in branch.checkpoints.iterdir()) == ["step-10", "step-12"]


@pytest.mark.parametrize(
    ("kept", "finished", "may"),
    [
        (None, False, True),  # there is no trunk yet
        ([], False, True),
        ([2, 4], False, True),
        ([6, 10], True, True),
        ([4, 8], False, False),
        ([4], True, False),  # it ended before
    ],
)
def test_a_run_may_branch_off_a_trunk_that_has_its_checkpoint_or_will_have_it(tmp_path, kept, finished, may):
    trunk = RunFolder(tmp_path / "trunk")
    recipe = validate(Recipe, recipe_values(tmp_path, tmp_path / "branch", **WSD | {"steps": 12}), "the recipe")
    assert recipe.decay_start() == 6
    if kept is not None:
        trunk.path.mkdir()
        trunk.recipe_file.write_text("name: trunk\n")
        for step in kept:
            (trunk.checkpoints / f"step-{step}").mkdir(parents=True)
        if finished:
            trunk.write_summary(run_summary())
    assert may_branch(trunk.path, recipe) == may


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"steps": 14}, "no checkpoint of step 7, where this run begins to decay; .*training.branches=.14."),
        ({"learning_rate": 1e-3}, "recipe differs in training.learning_rate"),
        ({"warmup_steps": 0.25}, "learning rate differs .* before step 6, .* set training.warmup_steps=2"),
        (
            {"steps": 26},
            "learning rate differs .* before step 13, where the decay begins; .* schedule must be wsd or constant",
        ),
    ],
)
def test_a_branch_that_cannot_begin_there_is_refused(trunk, corpus_folder, tmp_path, change, words):
    values = recipe_values(corpus_folder, tmp_path / "branch", **WSD | {"steps": 12, "trunk": str(trunk.path)} | change)
    with pytest.raises((ConfigError, CheckpointError), match=words) as caught:
        trained(values)
    assert caught.value.exit_status == 2
    assert not (tmp_path / "branch").exists()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"trunk": "runs/trunk"}, "training.trunk is 'runs/trunk', but the schedule is cosine; set schedule: wsd"),
        ({"branches": [8]}, "training.branches is .8., but the schedule is cosine"),
        (WSD | {"trunk": "runs/trunk", "patience": 1}, "patience does not apply to a run with a trunk"),
        (WSD | {"branches": [8], "decay_steps": 10, "warmup_steps": 0}, "has 8, a run that decays from step 0,"),
        (WSD | {"trunk": "runs/trunk", "decay_steps": 12, "warmup_steps": 0}, "all steps of the run are its decay"),
        (WSD | {"branches": [8, 14]}, "has 14, a run that decays from step 7, .* from step 2 to 6 only"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(tmp_path, settings, words):
    with pytest.raises(ConfigError, match=words):
        validate(Recipe, recipe_values(tmp_path / "corpus", tmp_path / "run", **settings), "the recipe")
