"""Run sets: what arms, seeds, a grid and parents stand for; what is trained, and what is found again."""

import threading
from pathlib import Path

import pytest

from contextwise.base.config import validate
from contextwise.base.errors import ConfigError, DivergedError, TrainingError
from contextwise.base.files import exclusive
from contextwise.experiments import executors as executors_module
from contextwise.experiments import scheduling
from contextwise.experiments.executors import ExecutorSettings, RunHere
from contextwise.experiments.grid import size_name
from contextwise.experiments.run_set import RunSet, RunSetSettings
from sweeping import InProcess

RECIPE = {
    "data": {"context": 16},
    "model": {"family": "llama", "layers": 1, "width": 16, "heads": 2},
    "training": {"steps": 4, "tokens_per_step": 64, "learning_rate": 1e-3, "log_every": 2},
}
CONTINUED = ["model.pretrained=@base", "training.steps=2"]


def run_set(folder=Path("set"), corpus=Path("corpus"), **changes):
    values = {"recipe": RECIPE, "arms": {"plain": [], "deep": ["model.extra_layers=1"]}} | changes
    return RunSet.of(validate(RunSetSettings, values, "the run set"), folder, corpus=corpus)


def test_every_arm_is_trained_with_every_seed_at_every_point():
    runs = run_set(seeds=[0, 1], grid={"data.context": [16, 32]}).runs
    assert [(run.seed, run.point["data.context"], run.arm) for run in runs] == [
        (seed, context, arm) for seed in (0, 1) for context in (16, 32) for arm in ("plain", "deep")
    ]
    recipe = runs[-1].recipe()
    assert (recipe.seed, recipe.data.context, recipe.model.extra_layers) == (1, 32, 1)
    assert recipe.folder.parent == Path("set/runs")
    assert recipe.folder.name.startswith("deep-context32-s1-")


def test_the_same_settings_have_the_same_run_id():
    ids = {run.id for run in run_set().runs}
    assert ids == {run.id for run in run_set(Path("elsewhere")).runs}
    slower = {**RECIPE, "training": {**RECIPE["training"], "learning_rate": 1e-4}}
    for other in (run_set(recipe=slower), run_set(corpus=Path("another corpus")), run_set(seeds=[1])):
        assert ids.isdisjoint(run.id for run in other.runs)


def test_the_training_data_is_part_of_a_runs_id(corpus_folder, tmp_path):
    (prepared, *_), (unknown, *_) = run_set(corpus=corpus_folder).runs, run_set().runs
    assert prepared.id != unknown.id
    (tmp_path / "link").symlink_to(corpus_folder)
    assert run_set(corpus=tmp_path / "link").runs[0].id == prepared.id, "its place does not matter"


def test_a_parent_comes_first_and_is_part_of_its_children():
    arms = {"tuned": CONTINUED, "base": []}
    base, tuned = run_set(arms=arms).runs
    assert (base.arm, tuned.parents) == ("base", (base,))
    assert tuned.values["model"]["pretrained"] == str(base.folder)
    changed = run_set(arms={"tuned": CONTINUED, "base": ["model.extra_layers=1"]}).runs
    assert changed[1].id != tuned.id
    one_base = {"tuned": CONTINUED, "base": {"seeds": [7]}}
    assert [(run.arm, run.seed) for run in run_set(arms=one_base, seeds=[0, 1]).runs] == [
        ("base", 7),
        ("tuned", 0),
        ("tuned", 1),
    ]


@pytest.mark.parametrize(
    ("arms", "message"),
    [
        ({"a": ["model.pretrained=@a"]}, "the arm 'a' is made from itself: a <- a"),
        ({"a": ["model.pretrained=@b"], "b": ["model.pretrained=@a"]}, "the arm 'a' is made from itself: a <- b <- a"),
        ({"a": ["model.pretrained=@lost"]}, "the arm 'a' names 'lost', which is none of a"),
        ({"a": ["model.depth=3"]}, "model.depth is an unknown key"),
        ({"a": {"model": {"size": "pico"}}}, r"arms.a: it holds sections of a recipe; give changed settings as a list"),
        ({"a": {"data": {}}}, r"arms.a: it holds sections of a recipe"),
        ({"a": {"seed": [0]}}, r"arms.a.seed is an unknown key; did you mean 'seeds'\?"),
        ({"a": {"x": 1}}, "arms.a.x is an unknown key; known keys are model, recipe, seeds, settings"),
    ],
)
def test_invalid_arms_are_refused(arms, message):
    with pytest.raises(ConfigError, match=message):
        run_set(arms=arms)


def test_a_model_that_exists_is_an_arm_that_is_not_trained():
    runs = run_set(arms={"theirs": {"model": "gpt2"}, "ours": []}, seeds=[0, 1])
    assert [run.source for run in runs.of_arm("theirs")] == ["gpt2"]
    assert len(runs.trained) == 2


@pytest.mark.long
def test_parents_are_trained_first_and_nothing_is_trained_twice(corpus_folder, tmp_path):
    runs = run_set(tmp_path, corpus_folder, arms={"tuned": CONTINUED, "base": []})
    base, tuned = runs.plan  # before there is a model to continue
    assert (base.steps, tuned.steps) == (4, 2) and base.parameters == tuned.parameters
    runs.train_missing()
    (run,) = runs.folders("tuned")
    assert run.summary()["parameters"] == base.parameters
    assert runs.count()["finished"] == 2
    files = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*") if file.is_file()}
    again = run_set(tmp_path, corpus_folder, arms={"tuned": CONTINUED, "base": []})
    again.train_missing()
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*") if file.is_file()} == files


@pytest.mark.long
def test_an_executor_starts_a_run_behind_its_parents(corpus_folder, tmp_path, monkeypatch):
    executors = []

    def in_process(folder, *_):
        executors.append(InProcess(folder))
        return executors[0]

    monkeypatch.setattr(executors_module, "LocalExecutor", in_process)
    monkeypatch.setattr(scheduling, "POLL_SECONDS", 0.0)
    longer = [CONTINUED[0], "training.steps=40"]  # the most expensive, but not the first
    runs = run_set(tmp_path, corpus_folder, arms={"tuned": longer, "base": []})
    runs.train_missing(ExecutorSettings(jobs=2))
    assert [name.partition("-")[0] for name in executors[0].started] == ["base", "tuned"]
    assert runs.count()["finished"] == 2


DIVERGES = ["training.learning_rate=1e30", "training.clip=0.0", "training.warmup_steps=0"]


def test_a_run_that_diverged_may_be_left_and_another_failure_is_raised(corpus_folder, tmp_path, monkeypatch):
    executors, given = [], ExecutorSettings(jobs=2)

    def broken(run, attempt):
        if run.id.startswith("sound") and not executors[2:]:
            raise TrainingError("killed by SIGKILL; the machine may have run out of memory")

    def in_process(folder, *_):
        executors.append(InProcess(folder, broken))
        return executors[-1]

    monkeypatch.setattr(executors_module, "LocalExecutor", in_process)
    monkeypatch.setattr(scheduling, "POLL_SECONDS", 0.0)
    runs = run_set(tmp_path, corpus_folder, arms={"hot": DIVERGES, "sound": []})
    with pytest.raises(TrainingError, match="of 2 runs failed"):
        runs.train_missing(given)
    (hot,), (sound,) = runs.folders("hot"), runs.folders("sound")
    assert hot.diverged and not hot.finished and not sound.finished
    metrics = hot.divergence_file.stat().st_mtime_ns
    with pytest.raises(TrainingError, match="SIGKILL") as caught:
        runs.train_missing(given, may_diverge=True)
    assert "contextwise plan sweep" not in str(caught.value)  # which lists sweeps only
    runs.train_missing(given, may_diverge=True)
    assert sound.finished and hot.divergence_file.stat().st_mtime_ns == metrics
    assert executors[0].started.count(next(run.id for run in runs.runs if run.arm == "hot")) == 1


def test_in_this_process_the_others_are_trained_before_an_error_is_raised(corpus_folder, tmp_path, monkeypatch):
    runs = run_set(tmp_path, corpus_folder, arms={"hot": DIVERGES, "odd": ["model.width=8"], "sound": []})
    train = RunHere.train

    def broken(self):
        if self.run.startswith("odd"):
            raise KeyError("a defect")
        train(self)

    monkeypatch.setattr(RunHere, "train", broken)
    with pytest.raises(KeyError, match="a defect"):  # not the run that diverged, which is known
        runs.train_missing(may_diverge=True)
    (hot,), (odd,), (sound,) = map(runs.folders, ("hot", "odd", "sound"))
    assert hot.diverged and not odd.finished and sound.finished
    assert "KeyError: 'a defect'" in runs.log_file(odd.path.name).read_text()
    monkeypatch.undo()
    runs.train_missing(may_diverge=True)
    assert odd.finished and not hot.finished and runs.failure(odd.path.name) is None
    with pytest.raises(DivergedError, match="nan at step"):
        runs.train_missing()


@pytest.mark.long
def test_a_run_that_another_process_trains_is_waited_for(corpus_folder, tmp_path, capsys):
    runs = run_set(tmp_path, corpus_folder, arms={"plain": []})
    (run,) = runs.runs
    second = threading.Thread(target=runs.train_missing, daemon=True)
    with exclusive(run.folder, "the run folder", inside=True):  # as training holds it
        second.start()
        second.join(1.0)
        assert second.is_alive()
    second.join(60)
    assert not second.is_alive() and runs.count()["finished"] == 1
    assert f"{run.id}: another process is training it; waiting" in " ".join(capsys.readouterr().err.split())


def test_a_model_without_a_size_has_a_name():
    assert size_name({"pretrained": "gpt2"}) == "pretrained"
    assert size_name({"family": "parity", "layers": 2}) == "parity-layers2"
    assert size_name({"family": "gpt2", "size": "nano", "layers": None}) == "nano"


def test_a_section_of_a_recipe_may_be_empty_but_nothing_else(tmp_path, corpus_folder):
    recipe = {"data": None, "model": {"size": "pico"}, "training": {"steps": 2}}
    (run,) = RunSet.of(RunSetSettings(recipe=recipe, arms={"a": []}), tmp_path, corpus=corpus_folder).runs
    assert run.recipe().data.corpus == str(corpus_folder)
    with pytest.raises(ConfigError, match="model is 'pico', but must be a mapping"):
        RunSet.of(RunSetSettings(recipe=recipe | {"model": "pico"}, arms={"a": []}), tmp_path)


@pytest.mark.parametrize(("steps", "warned"), [(4, True), (100, False)])
def test_a_set_of_short_runs_says_so(steps, warned, capsys):
    recipe = {**RECIPE, "training": {**RECIPE["training"], "steps": steps}}
    runs = run_set(recipe=recipe)
    runs.warn_of_few_steps()
    printed = " ".join(capsys.readouterr().err.split())
    assert ("in some runs, down to 4." in printed) is warned and bool(printed) is warned
