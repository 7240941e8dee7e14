"""Trials: what is equal between arms, the decision after each seed, resuming, the search over rates, and bad input."""

import dataclasses
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import contextwise
from command_line import words_of
from contextwise.base import progress
from contextwise.base.config import read_yaml
from contextwise.base.errors import ConfigError, DataError, Interrupted, NotFiniteError, TrainingError
from contextwise.base.estimates import as_json, count
from contextwise.base.files import read_sealed_json
from contextwise.base.recipes import shipped_recipes
from contextwise.base.runs import RunFolder
from contextwise.comparison import sequential
from contextwise.comparison.comparison import compare
from contextwise.comparison.decided import RESULT, Comparison
from contextwise.comparison.sequential import half_widths
from contextwise.data import Corpus, prepare_corpus
from contextwise.evaluation.kernel import measure
from contextwise.evaluation.measures.loss import Loss
from contextwise.experiments import cost, executors, run_set
from contextwise.experiments.cost import seconds_per_step
from contextwise.experiments.executors import ExecutorSettings, cores
from contextwise.experiments.trial import Trial, TrialSettings, load_trial
from contextwise.experiments.trial.arms import Arms, total_nats
from contextwise.experiments.trial.documents import ScoredDocuments
from contextwise.experiments.trial.search import Search
from contextwise.experiments.trial.settings import DEFAULT_TOKENS
from contextwise.reports.decided import overview_plots, path_plot
from contextwise.reports.trial import _path_table, plan_tables, runs_table, trial_page, trial_tables
from contextwise.training.inputs import TrainingInputs
from contextwise.training.model import starting_model
from small import save_model, small_gpt2, write_documents
from small_trials import RECIPE, SLOWER, small_trial

TRIALS = [each.path for each in shipped_recipes("trials")]


@pytest.fixture(scope="module", autouse=True)
def timed(untimed: pytest.MonkeyPatch, unscored: None) -> None:
    """Steps take a second, and twice as long with a context: the machine has no say."""

    def seconds(recipes: dict, rounds: int, executor: Any) -> dict[str, float]:
        return {name: 2.0 if "context" in name else 1.0 for name in recipes}

    untimed.setattr(cost, "seconds_per_step", seconds)


@pytest.fixture(scope="module")
def finished(corpus_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trial of an arm like the reference and one that hardly learns; 4 seeds decide both."""
    folder = tmp_path_factory.mktemp("trial") / "three"
    result = Trial(three(corpus_folder, folder)).run()
    assert result.stopped == "decided"
    return folder


def three(corpus: Path, folder: Path, **changes: Any) -> TrialSettings:
    return small_trial(corpus, folder, **{"arms": {"gpt2": None, "alike": [], "slower": SLOWER}} | changes)


AGAIN = """
import json, sys
from contextwise import cli

for words in json.loads(sys.argv[1]):
    sys.argv = ["contextwise", *words]
    try:
        cli.main()
    except SystemExit as end:
        assert end.code == 0, words
    assert "torch" not in sys.modules, words
"""


def test_finished_work_is_found_again_before_torch_is_imported(finished, corpus_folder, tmp_path):
    """Torch takes seconds to import, and the files alone tell that nothing is left to do."""
    run, home = next((finished / "runs").glob("gpt2-s0-*")), tmp_path / "home"
    corpus = Corpus.open(corpus_folder, split="validation")
    measured = measure(run, Loss(limit=7), corpus, out=home)
    commands = [["trial", str(finished)], ["train", str(run)]]
    commands.append(["evaluate", str(run), "--corpus", str(corpus_folder), "--limit", "7", "--out", str(home)])
    done = subprocess.run([sys.executable, "-c", AGAIN, json.dumps(commands)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "decided" in done.stdout and "nothing to do" in done.stderr and f"{measured.path}/" in done.stdout


# ---- decisions ----


@pytest.mark.long
def test_an_arm_like_the_reference_is_equivalent_and_one_that_hardly_learns_is_worse(finished):
    result = json.loads((finished / "result.json").read_text())
    alike, slower = result["comparisons"]
    assert (alike["decision"], slower["decision"]) == ("equivalent", "worse")
    assert [alike["difference"][name] for name in ("value", "low", "high")] == [0, 0, 0]
    # Two comparisons share the error: the first interval comes after four seeds.
    assert alike["decided_after"] == 4 and slower["decided_after"] == 4
    assert [look["fixed"]["low"] is None for look in slower["looks"]] == [True, True, True, False]
    losses = {arm: np.array(each["256"]) for arm, each in result["losses"].items()}
    differences = losses["slower"] - losses["gpt2"]
    half = half_widths(4, 0.975)[-1] * differences.std(ddof=1)
    assert slower["difference"]["value"] == pytest.approx(differences.mean())
    assert slower["difference"]["high"] == pytest.approx(differences.mean() + half)
    assert result["sentences"][1].startswith("slower is worse than gpt2 at the FLOPs of 256 tokens: +")


def test_the_losses_are_those_of_the_held_out_documents(finished, corpus_folder):
    result = json.loads((finished / "result.json").read_text())
    held_out = Corpus.open(corpus_folder, split="validation")
    assert result["held_out"]["documents"] == len(held_out)
    run = next((finished / "runs").glob("gpt2-s0-*"))
    summary = json.loads(next(run.glob("evaluation/evaluate-*/summary.json")).read_text())
    assert result["losses"]["gpt2"]["256"][0] == pytest.approx(summary["loss"]["value"])
    assert result["held_out"]["tokens"] == summary["tokens"]


def test_arms_of_a_seed_share_their_windows_and_their_first_values(finished, corpus_folder, tmp_path):
    rows = {}
    for arm, seed in (("gpt2", 1), ("slower", 1), ("gpt2", 2)):
        run = RunFolder(next((finished / "runs").glob(f"{arm}-s{seed}-*")))
        assert run.recipe()["seed"] == seed
        rows[arm, seed] = run.metrics("train")[0]
    assert rows["gpt2", 1]["loss"] == rows["slower", 1]["loss"] != rows["gpt2", 2]["loss"]
    trial = Trial(small_trial(corpus_folder, tmp_path / "t", arms=["gpt2", "pm"]))
    values, windows = [], []
    for run in trial.arms.run_set(trial.lengths(), 1, {}).runs:
        recipe = run.recipe()
        inputs = TrainingInputs.open(recipe)
        windows.append([inputs.stream[i]["input_ids"].tolist() for i in range(8)])
        torch.manual_seed(recipe.seed)
        values.append(starting_model(recipe, inputs.config).state_dict())
    assert windows[0] == windows[1]
    # The arm of 3 layers scales the ends of its branches by its depth.
    shared = [name for name in values[0] if not name.endswith("c_proj.weight")]
    assert all(torch.equal(values[0][name], values[1][name]) for name in shared)


def test_a_decided_trial_trains_no_more_seeds(finished, corpus_folder, monkeypatch):
    before = (finished / "result.json").read_text()
    monkeypatch.setattr(run_set, "schedule", None)
    result = Trial(three(corpus_folder, finished, seeds=12)).run()
    assert as_json(result)["comparisons"] == json.loads(before)["comparisons"]
    words = words_of(trial_tables(result))
    assert "stopped after" in words and "every comparison is decided" in words
    rates = "Learning rates: those of the arms' recipes, none searched."  # the trial has rates: fixed
    html = unescape(trial_page(result).render())
    assert rates in words and rates in html
    assert Corpus.open(corpus_folder).fingerprint in html and torch.__version__ in html


def test_each_row_of_the_page_is_a_seed_with_its_own_difference(finished, corpus_folder):
    result = Trial(three(corpus_folder, finished)).run()
    for comparison in result.comparisons:
        rows = _path_table(comparison, result).rows
        assert len(rows) == len(comparison.looks) == 4
        differences = [row[3] for row in rows]
        assert differences == [row[1] - row[2] for row in rows]
        for number, row in enumerate(rows, start=1):
            assert row[4].value == pytest.approx(sum(differences[:number]) / number)


def test_runs_of_a_trial_have_a_note_that_it_has_an_answer(finished):
    runs = [str(path) for arm in ("gpt2", "slower") for path in sorted((finished / "runs").glob(f"{arm}-s?-*"))]
    (note,) = [note for note in compare(runs).notes if note.startswith("These runs")]
    assert f"the trial {finished}. Its own answer (report.html there) stays valid" in note


WILD = """
import torch

class Wild(torch.nn.Module):
    def __init__(self, model):
        super().__init__()

    def forward(self, model, hidden, input_ids, labels):
        return {"own": hidden.square().mean() * (float("nan") if torch.initial_seed() == SEED else 0.0)}
"""


@pytest.mark.parametrize("seed", [0, 2])
def test_an_arm_that_diverges_ends_no_other_comparison(corpus_folder, tmp_path, seed):
    (tmp_path / "wild.py").write_text(WILD.replace("SEED", str(seed)))
    arms = {"gpt2": None, "slower": SLOWER, "wild": [f"{tmp_path}/wild.py:Wild"]}
    settings = small_trial(corpus_folder, tmp_path / "t", arms=arms, equal="tokens")
    for _ in range(2):  # and the same command again
        result = Trial(settings).run()
        decided = {each.arm: (each.decision, len(each.looks)) for each in result.comparisons}
        assert decided == {"slower": ("worse", 4)} | ({"wild": ("undecided", seed)} if seed else {})
        assert result.stopped == ("diverged" if seed else "decided")
        (note,) = [note for note in result.notes if "diverged" in note]
        assert note.startswith(f"wild diverged with seed {seed} ({tmp_path}/t/runs/wild-s{seed}-") and "is nan" in note


def test_without_another_arm_a_divergence_is_an_error_that_names_it(corpus_folder, tmp_path):
    (tmp_path / "wild.py").write_text(WILD.replace("SEED", "0"))
    own = [f"{tmp_path}/wild.py:Wild"]
    for arms, wanted in (
        ({"gpt2": None, "wild": own}, "wild diverged with seed 0 .*; no arm is left to compare"),
        ({"wild": own, "gpt2": None}, "wild diverged with seed 0 .*; it is the reference of all comparisons"),
    ):
        trial = Trial(small_trial(corpus_folder, tmp_path / next(iter(arms)), arms=arms, equal="tokens"))
        with pytest.raises(TrainingError, match=wanted):
            trial.run()


@pytest.mark.parametrize(
    "settings", [{"rates": "fixed"}, {"rates": {"factors": [1, 1e6], "share": 1.0, "widenings": 0}}]
)
def test_a_last_step_that_is_too_long_is_a_divergence(corpus_folder, tmp_path, monkeypatch, settings):
    """All losses of training are finite, and the loss on the held-out documents is not."""

    def spoilt(scores, folder, documents):
        if "wild" in folder.name:
            raise NotFiniteError("the model's loss is not finite at token 0 of document 0")
        return scored(scores, folder, documents)

    scored = ScoredDocuments.evaluation
    monkeypatch.setattr(ScoredDocuments, "evaluation", spoilt)
    arms = {"gpt2": None, "slower": SLOWER, "wild": ["training.weight_decay=0.2"]}
    trial = Trial(small_trial(corpus_folder, tmp_path / "t", arms=arms, equal="tokens", **settings))
    if settings["rates"] != "fixed":
        with pytest.raises(TrainingError, match="wild diverges at every learning rate that was tried"):
            trial.run()
        return
    result = trial.run()
    assert [(each.arm, each.decision) for each in result.comparisons] == [("slower", "worse")]
    assert any(
        note.startswith("wild diverged with seed 0") and "not finite at token 0" in note for note in result.notes
    )
    again = Trial(small_trial(corpus_folder, tmp_path / "t", arms=arms, equal="tokens", seeds=3, **settings))
    with pytest.raises(ConfigError, match="has an answer after 4 seeds, which fewer cannot replace"):
        again.run()


def test_another_question_names_a_free_folder(finished, corpus_folder, tmp_path):
    folder = Path(shutil.copytree(finished, tmp_path / "the trial"))
    (tmp_path / "the trial-2").mkdir()
    with pytest.raises(
        ConfigError, match=r"other settings \(tokens\); .* --out, such as --out '\S*/the trial-3': after"
    ):
        Trial(three(corpus_folder, folder, tokens=512))


@pytest.mark.long
def test_a_trial_that_was_stopped_anywhere_ends_like_one_that_was_not(finished, corpus_folder, tmp_path, stop_at):
    given = small_trial(corpus_folder, tmp_path / "stopped", seeds=2)
    stops = 0
    for looks in (1, 9, 14, 23):
        stop_at(looks)
        try:
            Trial(given).run()
        except Interrupted:
            stops += 1
    stop_at(0)
    result = Trial(given).run()
    whole = json.loads((finished / "result.json").read_text())["losses"]
    assert stops >= 3 and result.stopped == "seeds"
    more = Trial(small_trial(corpus_folder, tmp_path / "stopped", seeds=4)).run()  # continues the same sequence
    assert as_json(more)["comparisons"][0]["looks"][:2] == as_json(result)["comparisons"][0]["looks"]
    assert {arm: losses[256] for arm, losses in result.losses.items()} == {
        arm: whole[arm]["256"][:2] for arm in ("gpt2", "slower")
    }


def with_losses(trial: Trial, losses: Any, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Give the runs of a trial made-up losses, by arm and seed; returns the arms of each seed as they are trained."""
    trained: list[list[str]] = []

    def seed(lengths: Any, number: int) -> None:
        chosen, _ = trial._run_set(lengths, number)
        trained.append(sorted(length.arm for length in chosen))
        trial._tokens_N = np.ones(8)
        for length in chosen:
            trial._nats[length.arm, length.budget, number] = np.zeros(8) + losses(length, number)
            trial._seconds[length.arm, length.budget, number] = 1.0 if length.arm == "gpt2" else 1.5

    monkeypatch.setattr(trial, "_seed", seed)
    return trained


@pytest.mark.long
def test_a_decided_arm_gets_no_further_seeds(corpus_folder, tmp_path, monkeypatch):
    trial = Trial(three(corpus_folder, tmp_path / "t"))
    luck = np.random.default_rng(0).normal(0, 0.02, (5, 2))
    worse = {"gpt2": luck[:, 0] * 0, "alike": luck[:, 0], "slower": 1 + luck[:, 1]}
    trained = with_losses(trial, lambda length, number: worse[length.arm][number], monkeypatch)
    result = trial.run()
    assert trained == [["alike", "gpt2", "slower"]] * 4 + [["alike", "gpt2"]]
    assert result.stopped == "seeds"
    assert (
        "Undecided at the FLOPs of 256 tokens after 5 seeds" in result.sentences[0]
        and "seeds in all" in result.sentences[0]
    )


@pytest.mark.long
def test_documents_that_differ_leave_any_text_open(corpus_folder, tmp_path, monkeypatch):
    own, luck = np.linspace(-1, 1.2, 8), np.random.default_rng(0).normal(0, 0.005, 6)

    def losses(length: Any, number: int) -> Any:
        return own + luck[number] if length.arm == "slower" else np.zeros(8)

    decisions = {}
    for documents in ("fixed", "random"):
        trial = Trial(small_trial(corpus_folder, tmp_path / documents, documents=documents, seeds=6))
        with_losses(trial, losses, monkeypatch)
        decisions[documents] = trial.run().comparisons[0]
    assert decisions["fixed"].decision == "worse"
    assert decisions["random"].decision == "undecided" and decisions["random"].further_seeds == (None, None)
    assert "hold out more of them" in decisions["random"].sentence


def test_seeds_that_differ_are_not_said_to_be_documents(corpus_folder, tmp_path, monkeypatch):
    def losses(length: Any, number: int) -> Any:
        return (np.linspace(0.009, 0.011, 8) + (-1) ** number * 0.5) * (length.arm == "slower")

    trial = Trial(small_trial(corpus_folder, tmp_path / "t", documents="random", seeds=4))
    with_losses(trial, losses, monkeypatch)
    assert "More than 1000 seeds would be needed" in trial.run().comparisons[0].sentence


# ---- what is equal ----


def test_equal_flops_time_and_tokens(corpus_folder, tmp_path):
    arms = ["gpt2", "contextlm"]
    by_equal = {}
    for equal in ("flops", "time", "tokens"):
        trial = Trial(small_trial(corpus_folder, tmp_path / equal, arms=arms, tokens=64_000, equal=equal))
        by_equal[equal] = {length.arm: length for length in trial.lengths()}
    flops, time, tokens = (by_equal[equal] for equal in ("flops", "time", "tokens"))
    assert flops["contextlm"].flops == pytest.approx(flops["gpt2"].flops, rel=0.002)
    assert flops["contextlm"].tokens < 64_000 == flops["gpt2"].tokens
    assert time["contextlm"].tokens == 32_000 and time["contextlm"].seconds == time["gpt2"].seconds
    assert tokens["contextlm"].tokens == 64_000 and tokens["contextlm"].flops > tokens["gpt2"].flops


def test_steps_are_timed_by_dry_runs_that_leave_nothing(corpus_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(progress, "LINE_EVERY_SECONDS", 0)
    arms = Arms(small_trial(corpus_folder, tmp_path / "t", arms=["gpt2", "contextlm"]))
    seconds = seconds_per_step(arms.recipes, 2, ExecutorSettings())
    assert seconds.keys() == {"gpt2", "contextlm"} and min(seconds.values()) > 0
    assert "timing: 1 of 4 dry runs" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_stages_of_shorter_windows_are_timed_each(corpus_folder, tmp_path, monkeypatch):
    """A step takes the square of its context here; half of the tokens are read at 8, and the rest at 16."""
    timed = []

    def run(recipe, saves):
        timed.append((recipe.data.context, recipe.data.context_stages))
        return SimpleNamespace(step_seconds=float(recipe.data.context**2))

    monkeypatch.setattr("contextwise.training.dry_run.dry_run", run)
    arms = {"gpt2": None, "growing": ["data.context_stages={8: 0.5}", "data.context=16"]}
    recipes = Arms(small_trial(corpus_folder, tmp_path / "t", arms=arms)).recipes
    seconds = seconds_per_step(recipes, 1, ExecutorSettings())
    assert seconds["growing"] == pytest.approx((8**2 + 16**2) / 2)
    assert timed[1:] == [(8, {}), (16, {})]


def test_steps_are_timed_with_the_threads_of_the_runs(corpus_folder, tmp_path, monkeypatch):
    threads = []

    def step(name, recipe):
        threads.append(torch.get_num_threads())
        return 1.0

    monkeypatch.setattr(cost, "_step", step)
    recipes = Arms(small_trial(corpus_folder, tmp_path / "t", arms=["gpt2", "contextlm"])).recipes
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    here = torch.get_num_threads()
    for executor in (ExecutorSettings(), ExecutorSettings(jobs=2), ExecutorSettings(threads=2)):
        seconds_per_step(recipes, 1, executor)
    assert threads[::2] == [here, 3, 2] and torch.get_num_threads() == here
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert ExecutorSettings(jobs=2).run_threads == max(1, cores() // 2)
    assert ExecutorSettings(jobs=2, threads=5).run_threads == 5
    assert ExecutorSettings().here
    assert not ExecutorSettings(threads=5).here  # this process has other threads
    monkeypatch.setattr(executors, "visible_gpus", lambda: ["0", "1"])
    assert not ExecutorSettings().here  # a run takes one


def test_what_is_not_equal_is_noted(corpus_folder, tmp_path):
    arms = {"gpt2": None, "contextlm": None, "wide": ["training.tokens_per_step=128"]}
    notes = Trial(small_trial(corpus_folder, tmp_path / "t", arms=arms, tokens=64)).plan().notes
    assert any("wide reads other batches than gpt2" in note for note in notes)
    assert any("contextlm at 64 tokens have" in note and "more FLOPs than those of gpt2" in note for note in notes)
    far = Trial(small_trial(corpus_folder, tmp_path / "t", arms=["gpt2", "contextlm"], tokens=640_000)).plan().notes
    compute = [note for note in far if "documents that decide" not in note]  # one document of ten is long
    assert len(compute) == 1 and "read the corpus" in compute[0]
    part = {**RECIPE, "data": {"context": 16, "tokens": 640}}
    given = small_trial(corpus_folder, tmp_path / "t", recipe=part, tokens=6400)
    plan = Trial(given).plan()
    assert [length.epochs for length in plan.lengths] == [10, 10]
    assert any("The longest runs read the corpus 10.0 times" in note for note in plan.notes)
    long = {**RECIPE, "data": {"context": 4096}, "training": RECIPE["training"] | {"tokens_per_step": 4096}}
    given = small_trial(corpus_folder, tmp_path / "t", arms=["gpt2", "pm"], recipe=long, tokens=4096)
    assert "data.context is 4,096 tokens, but no document" in Trial(given).plan().notes[-1]


def test_each_run_ends_with_its_own_schedule(corpus_folder, tmp_path):
    trial = Trial(small_trial(corpus_folder, tmp_path / "t", arms=["gpt2", "contextlm"], tokens=6400))
    lengths = trial.lengths()
    runs = trial.arms.run_set(lengths, 3, {"contextlm": 2.0})
    recipes = {run.arm: run.recipe() for run in runs.runs}
    assert {arm: recipe.total_tokens for arm, recipe in recipes.items()} == {x.arm: x.tokens for x in lengths}
    assert recipes["contextlm"].learning_rate == pytest.approx(6e-3)
    assert recipes["gpt2"].learning_rate == pytest.approx(3e-3)
    assert {recipe.seed for recipe in recipes.values()} == {3}


def test_several_budgets_are_several_comparisons_that_share_the_error(corpus_folder, tmp_path):
    trial = Trial(small_trial(corpus_folder, tmp_path / "t", tokens=[1280, 320, 320]))
    assert [(length.arm, length.budget) for length in trial.lengths()] == [
        ("gpt2", 320),
        ("slower", 320),
        ("gpt2", 1280),
        ("slower", 1280),
    ]
    assert trial.confidence == pytest.approx(0.975)


@pytest.mark.long
def test_a_head_start_that_is_lost_is_found_along_the_budgets(corpus_folder, tmp_path, monkeypatch):
    trial = Trial(small_trial(corpus_folder, tmp_path / "t", tokens=[640, 1280, 2560], seeds=8))
    luck = np.random.default_rng(0).normal(0, 0.002, (8, 3, 2))

    def loss(length: Any, number: int) -> float:
        doublings = np.log2(length.budget / 640)
        own = luck[number, int(doublings), int(length.arm == "slower")]
        return 4 - 0.3 * doublings + own + (length.arm == "slower") * (-0.04 + 0.032 * doublings)

    with_losses(trial, loss, monkeypatch)
    result = trial.run()
    assert [each.decision for each in result.comparisons][::2] == ["better", "worse"]
    along = result.along_budgets[0]
    assert along.trend.slope.value == pytest.approx(0.032, abs=0.003)
    low, high = along.trend.crossing.limits
    assert low < 640 * 2**1.25 < high
    # 0.04 nats at 0.3 nats a doubling
    assert along.speedups[640].value == pytest.approx(2 ** (0.04 / 0.3), rel=0.02)
    assert along.speedups[2560].limits[1] < 1
    assert "it is zero at" in result.sentences[3] and "times its FLOPs of gpt2" in result.sentences[4]
    html = trial_page(result, "arms: {}", "contextwise trial").render()
    assert "Along the budgets" in html and json.dumps(as_json(result))


# ---- learning rates ----


def test_short_runs_have_the_same_schedule(corpus_folder, tmp_path):
    training = RECIPE["training"] | {"schedule": "wsd", "decay_steps": 20, "warmup_steps": 8}
    recipe = {**RECIPE, "training": training}
    trial = Trial(small_trial(corpus_folder, tmp_path / "t", recipe=recipe, tokens=40 * 64, rates="search"))
    lengths = trial.plan().lengths
    short = Search(trial.arms, lengths).short_runs(lengths, [1.0])["gpt2", 1.0].runs[0].recipe()
    assert (short.total_steps, short.training.decay_steps, short.training.warmup_steps) == (10, 5, 2)
    training["decay_steps"] = 60
    trial = Trial(small_trial(corpus_folder, tmp_path / "t", recipe=recipe, tokens=40 * 64, rates="search"))
    with pytest.raises(ConfigError, match="decay_steps"):
        trial.run()
    assert not (tmp_path / "t").exists()


@pytest.mark.long
def test_the_search_uses_documents_and_seeds_that_no_decision_uses(corpus_folder, tmp_path):
    rates = {"factors": [1.0, 2.0], "share": 0.5, "widenings": 0}
    arms = {"gpt2": None, "slower": SLOWER}
    given = small_trial(corpus_folder, tmp_path / "t", arms=arms, rates=rates, seeds=2)
    result = Trial(given).run()
    held_out = Corpus.open(corpus_folder, split="validation")
    reserved = len(held_out) // 4
    assert result.held_out["documents"] == len(held_out) - reserved
    searched = list((tmp_path / "t/runs").glob("rates-*"))
    assert len(searched) == 4
    for run in searched:
        recipe = RunFolder(run).recipe()
        assert recipe["seed"] >= 1_000_000 and recipe["training"]["tokens"] == 128
        summary = json.loads(next(run.glob("evaluation/*/summary.json")).read_text())
        assert summary["documents"] == reserved
    run = next((tmp_path / "t/runs").glob("gpt2-s0-*"))
    folder = next(run.glob("evaluation/evaluate-*"))
    from contextwise.evaluation.measures.loss import Evaluation

    nats, tokens = total_nats(Evaluation.open(folder))
    assert result.losses["gpt2"][256][0] == pytest.approx(nats[reserved:].sum() / tokens[reserved:].sum())
    assert "none searched" not in words_of(trial_tables(result)) + trial_page(result).render()
    chosen = {row.arm: row.learning_rate for row in result.rates if row.chosen}
    assert RunFolder(run).recipe()["training"]["learning_rate"] == pytest.approx(chosen["gpt2"])


# ---- plans, tables and pages ----


def test_a_plan_trains_no_run_and_writes_nothing(corpus_folder, tmp_path, capsys):
    from contextwise.cli.common import show

    trial = Trial(small_trial(corpus_folder, tmp_path / "t", arms=["gpt2", "contextlm"], rates="search"))
    show(plan_tables(trial.plan(), "flops"))
    assert "At most 5 seeds: 16 runs (6 of them short, for the rates)" in " ".join(capsys.readouterr().out.split())
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("spread", [0.0, 3.0])
def test_a_figure_shows_one_interval_where_both_readings_have_the_same(spread):
    tokens_N, document_N = np.full(8, 100.0), np.linspace(-spread, spread, 8)
    path = sequential.looks(np.arange(5.0)[:, None] + document_N, tokens_N)
    comparison = Comparison("a", "b", 256, 0.01, "fixed", path, 0.0)
    plot = path_plot(comparison, 0, SimpleNamespace(comparisons=[comparison]))
    names = [trace["name"] for trace in plot.figure["data"]]
    both = ["on these held-out documents", "on any text like these documents"]
    assert names == ["each seed", *(both if spread else ["interval"])]
    assert ("The interval is the same for these held-out documents and" in plot.caption) != bool(spread)


@pytest.mark.long
def test_page_and_tables_say_the_decision_first(finished, corpus_folder, capsys):
    from contextwise.cli.common import show

    result = Trial(three(corpus_folder, finished)).run()
    arm = {"settings": ["model.extra_layers=2"], "recipe": None, "model": ""}
    arms = {"pm": arm, "own": arm, "plain": arm | {"settings": []}, "<b>": arm | {"settings": [], "recipe": {}}}
    html = trial_page(result, json.dumps({"arms": arms}), "contextwise trial three").render()
    assert html.index("alike and gpt2 are equivalent within 0.01") < html.index("Comparisons")
    assert "&lt;b&gt;" in html and "<b>" not in html
    assert "as many parameters as contextlm has with its predictor (model.extra_layers=2)" in html
    assert html.count("model.extra_layers=2</div>") == 1 and "the trial&#x27;s recipe, unchanged" in html
    assert html.count('class="plot"') == 3 and "<button" not in html
    overview, *_ = overview_plots(result)
    assert html.index('id="overview"') < html.index('id="path-0"')
    alike, seeds, slower, _ = overview.figure["data"]
    assert seeds["y"] == [1.78] * len(result.comparisons[0].looks)
    assert [each["text"] for each in overview.figure["layout"]["annotations"]] == ["alike", "slower"]
    for drawn, each in zip((alike, slower), result.comparisons, strict=True):
        assert drawn["x"] == [each.last.fixed.value]
        assert drawn["error_x"]["array"] == pytest.approx([each.last.fixed.high - each.last.fixed.value])
    show(trial_tables(result))
    printed = capsys.readouterr().out
    assert printed.index("slower is worse than gpt2") < printed.index("decision")
    assert max(map(len, printed.splitlines())) <= 80


def test_arms_of_a_file_are_names_recipes_and_settings(corpus_folder, tmp_path):
    recipe = tmp_path / "own.yaml"
    recipe.write_text(yaml.safe_dump({"name": "own", "seed": 3, **RECIPE}))
    arms = {"gpt2": None, "pm": ["model.width=32", "model.extra_layers=2"], "small": "contextlm", "own": str(recipe)}
    trial = Trial(small_trial(corpus_folder, tmp_path / "t", arms=arms))
    models = {name: each.model for name, each in trial.arms.recipes.items()}
    assert (models["pm"].extra_layers, models["pm"].width) == (2, 32)
    assert models["small"].context_predictor is not None and models["gpt2"].context_predictor is None
    assert models["own"] == models["gpt2"]
    assert trial.settings.arms["pm"].settings == ["model.extra_layers=2", "model.width=32"]
    again = TrialSettings.model_validate(trial.settings.model_dump(mode="json"))
    assert again == trial.settings


def test_the_time_of_a_trial_is_that_of_its_runs(finished, corpus_folder):
    (finished / RESULT).unlink()  # as if it had been killed before the look
    result = Trial(three(corpus_folder, finished)).run()
    runs = [RunFolder(path).summary()["seconds"] for path in (finished / "runs").iterdir()]
    assert result.trained_for == pytest.approx(sum(runs)) and result.stopped


# ---- bad input ----


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arms": ["gpt2", "gpt3"]}, "'gpt3' is not an arm; did you mean 'gpt2'"),
        ({"arms": ["gpt2", "contextml"]}, "'contextml' is not an arm; did you mean 'contextlm'"),
        ({"arms": ["gpt2", "training.schedule=cosine"]}, r"arms: \{gpt2: , mine: \[training.schedule=cosine\]\}"),
        ({"arms": {"gpt2": None}}, "arms has nothing to compare; give two arms or more"),
        ({"arms": {"gpt2": None, "b": {"model": "gpt2"}}}, "is a model that exists already"),
        ({"margin": 0}, "margin is 0, but"),
        ({"margin": -0.1}, "margin is -0.1, but"),
        ({"tokens": True}, "tokens is True, but"),
        ({"seeds": 1}, "seeds is 1, but"),
        ({"reference": "pm"}, "which is none of the arms"),
        ({"comparisons": 2}, "comparisons is an unknown key"),
        ({"limit": 5}, "a decision needs 6"),
        ({"rates": "search", "limit": 6}, "is scored on 6 held-out documents (limit.*, 1 of them for the rates"),
        ({"recipe": {"training": 5}}, "training is 5, but must be a mapping"),
        ({"arms": {"gpt2": None, "b": ["training=5"]}}, "training is 5, but must be a mapping"),
        ({"arms": {"gpt2": None, "b": ["training.patience=1", "training.evaluate_every=1"]}}, "stops early"),
        (
            {"arms": {"gpt2": None, "b": ["training.tokens=512"]}},
            "the arm 'b' sets training.tokens, but the runs of all arms",
        ),
        (
            {"arms": {"gpt2": None, "b": ["training.epochs=2"]}},
            "the arm 'b' sets training.epochs, but the runs of all arms",
        ),
        ({"arms": {"gpt2": None, "b": ["seed=7"]}}, "the arm 'b' sets seed, but all arms have the seeds of the trial"),
        ({"score": {"limit": 3}}, "limit is no setting of a score; give the trial's own limit"),
        ({"arms": {"gpt2": None, "b": ["objective=sentence"]}}, "model of single sentences"),
        ({"tokens": 9}, r"tokens is 9, but one step of gpt2 reads \d+ tokens, and a run takes hundreds"),
        ({"score": {"context": 4096}}, "score.context is 4096, but the arm 'gpt2' has only .* positions; give at most"),
        *(
            (
                {"arms": {name: [f"data.{split}"] for name in ("gpt2", "b")}},
                "holds out the documents that the arms are trained",
            )
            for split in ("split=validation", "validation_split=train")
        ),
    ],
)
def test_bad_input_is_refused_before_anything_is_trained(changes, message, corpus_folder, tmp_path):
    with pytest.raises((ConfigError, DataError), match=message.replace("(", r"\(")):
        Trial(small_trial(corpus_folder, tmp_path / "t", **changes)).plan()
    assert not (tmp_path / "t").exists()


def test_a_file_without_splits_holds_nothing_out(tmp_path):
    zarr = pytest.importorskip("zarr")
    zarr.save_array(tmp_path / "rows.zarr", np.random.default_rng(0).integers(0, 64, (40, 300), dtype=np.uint16))
    recipe = {"data": {"context": 16, "cross_documents": False}, "model": RECIPE["model"] | {"vocab_size": 64}}
    with pytest.raises(DataError, match="holds out the documents that the arms are trained on"):
        Trial(small_trial(tmp_path / "rows.zarr", tmp_path / "t", recipe=recipe))


def test_an_empty_section_is_none(corpus_folder, tmp_path):
    recipe = {"data": None, "model": RECIPE["model"], "training": {"tokens_per_step": 256}}
    trial = Trial(small_trial(corpus_folder, tmp_path / "t", recipe=recipe))
    assert trial.arms.recipes["gpt2"].data.context == 256


@pytest.mark.long
def test_damaged_files_of_a_trial_are_named(finished, corpus_folder, tmp_path):
    folder = Path(shutil.copytree(finished, tmp_path / "plan" / "three"))
    (folder / "plan.json").write_text("{}")
    with pytest.raises(DataError, match="plan.json is damaged: it has no hash"):
        Trial(three(corpus_folder, folder)).run()
    folder = Path(shutil.copytree(finished, tmp_path / "result" / "three"))
    (folder / "result.json").write_text('{"comparisons": [{}]}')
    Trial(three(corpus_folder, folder)).run()
    assert read_sealed_json(folder / "result.json", "the result")["stopped"] == "decided"


def test_arms_with_another_tokenizer_or_corpus_are_refused(corpus_folder, tmp_path):
    write_documents(tmp_path / "other.jsonl", 40, seed=1)
    prepare_corpus(tmp_path / "other.jsonl", "bytes", tmp_path / "other", validation=0.2)
    prepare_corpus(tmp_path / "other.jsonl", "train:300", tmp_path / "pieces", validation=0.2)
    for name, message in (("other", "different documents"), ("pieces", "another tokenizer")):
        arms = {"gpt2": None, "b": [f"data.corpus={tmp_path / name}"]}
        with pytest.raises(ConfigError, match=message):
            Trial(small_trial(corpus_folder, tmp_path / "t", arms=arms))


def test_a_recipe_whose_corpus_is_an_example_reads_the_trials(corpus_folder, tmp_path, monkeypatch):
    """Recipes of the package name ``corpora/stdlib``; here another text lies there, which a recipe of one's own names."""
    monkeypatch.chdir(tmp_path)
    write_documents(tmp_path / "other.jsonl", 40, seed=1)
    prepare_corpus(tmp_path / "other.jsonl", "train:300", tmp_path / "corpora" / "stdlib", validation=0.2)
    arms = ["gpt2-nano", "contextlm-nano"]
    for given in ({"arms": arms}, {"arms": {"gpt2": None, "contextlm": None}, "recipe": "gpt2-nano"}):
        loaded = load_trial(None, given | {"corpus": str(corpus_folder)}, [], tmp_path / "t")
        assert {each.data.corpus for each in Arms(loaded).recipes.values()} == {str(corpus_folder)}
    Path("trial").write_text(yaml.safe_dump({"arms": ["gpt2", "pm"], "corpus": str(corpus_folder)}))
    assert list(load_trial("trial", {}).arms) == ["gpt2", "pm"]
    Path("own.yaml").write_text(yaml.safe_dump({**RECIPE, "data": {"context": 16, "corpus": "corpora/stdlib"}}))
    with pytest.raises(ConfigError, match="has another tokenizer"):
        Arms(load_trial(None, {"arms": ["gpt2-nano", "own.yaml"], "corpus": str(corpus_folder)}))


def test_after_a_look_the_question_stays(finished, corpus_folder):
    for changes, what in (
        ({"margin": 0.02}, "margin"),
        ({"tokens": 512}, "tokens"),
        ({"arms": {"gpt2": None, "alike": []}}, r"arms\.slower"),
        ({"arms": {"gpt2": None, "alike": [], "slower": SLOWER, "pm": None}}, r"arms\.pm"),
    ):
        with pytest.raises(ConfigError, match=f"looked at with other settings .*{what}"):
            Trial(three(corpus_folder, finished, **changes))
    Trial(three(corpus_folder, finished, seeds=50))
    training = {"micro_batch_tokens": 64, "workers": 1}  # how the runs execute is no part of the question
    Trial(three(corpus_folder, finished, recipe=RECIPE | {"training": RECIPE["training"] | training}))


def test_other_files_are_refused(corpus_folder, tmp_path):
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(ConfigError, match="holds no trial"):
        Trial(small_trial(corpus_folder, tmp_path))


def test_the_written_settings_open_the_trial_again(finished, corpus_folder):
    again = load_trial(finished / "trial.yaml", {})
    assert again.folder == finished and again.question() == three(corpus_folder, finished).question()
    assert read_yaml(finished / "trial.yaml")["tokens"] == [256]


def test_a_trial_with_settings_that_are_no_more_is_refused(finished, corpus_folder, tmp_path):
    folder = Path(shutil.copytree(finished, tmp_path / "three"))
    stored = read_yaml(folder / "trial.yaml")
    (folder / "trial.yaml").write_text(yaml.safe_dump(stored | {"keep_going": True}, sort_keys=False))
    with pytest.raises(ConfigError, match="keep_going is an unknown key"):
        Trial(three(corpus_folder, folder))


def test_the_corpus_may_be_named_by_another_path(finished, corpus_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(corpus_folder.parent)
    Trial(three(Path("corpus"), finished))
    moved = shutil.copytree(corpus_folder, tmp_path / "moved")
    Trial(three(Path(moved), finished))


@pytest.mark.long
@pytest.mark.parametrize("file", TRIALS, ids=lambda file: file.stem)
def test_the_trials_that_ship_fit_a_corpus(file, corpus_folder, tmp_path):
    shipped = tmp_path / file.name
    pretrained = save_model(tmp_path / "pretrained", small_gpt2(positions=512))
    ours = {"[title, date, topics, places]": "[title, year]", "pretrained: smollm2": f"pretrained: {pretrained}"}
    text = file.read_text()
    for theirs, replacement in ours.items():
        text = text.replace(theirs, replacement)
    shipped.write_text(text)
    trial = Trial(load_trial(shipped, {"corpus": str(corpus_folder), "limit": 8}, output=tmp_path / "t"))
    lengths = {(each.arm, each.budget): each for each in trial.lengths()}
    assert set(trial.settings.arms) == {arm for arm, _ in lengths}
    for (_, budget), length in lengths.items():
        if trial.settings.equal == "flops":
            assert length.flops == pytest.approx(lengths[trial.settings.baseline, budget].flops, rel=0.02)
            assert trial.arms.recipes[length.arm].training.optimizer == "muon"


def test_a_notebook_shows_a_trial(finished, tmp_path, monkeypatch):
    monkeypatch.chdir(finished.parent)
    result = contextwise.trial(f"{finished.name}/trial.yaml")
    monkeypatch.chdir(tmp_path)
    assert result.path == finished and result.stopped == "decided"
    assert "alike and gpt2 are equivalent" in result._repr_html_()
    assert all(f"{each.arm} " in str(result) for each in result.comparisons) and "\n" in str(result)
    frame = result.to_pandas()
    assert len(frame) == 2 and result.plot().data
    assert list(frame["difference"]) == [each.difference.value for each in result.comparisons]
    assert list(frame["tokens"]) == [result.held_out["tokens"]] * 2 and frame["decided_after"].dtype != object
    assert len(repr(result)) <= 160 and "alike − gpt2 = " in repr(result)
    assert "</html>" in result.page(tmp_path / "page.html").read_text()


# ---- the command line ----


def test_the_command_prints_the_decision_and_leaves_a_page(finished, contextwise):
    status, printed, _ = contextwise(f"trial {finished} --json")
    assert status == 0
    result = json.loads(printed)
    assert [each["decision"] for each in result["comparisons"]] == ["equivalent", "worse"]
    page = (finished / "report.html").read_text()
    assert result["sentences"][0] in page and f"contextwise trial {finished}/trial.yaml" in page
    assert contextwise(f"report {finished}") == (0, f"{finished}/report.html\n", "")
    contextwise.refused(
        f"report {finished} --out page.html", f"its page already, {finished}/report.html; leave --out out"
    )


def test_an_undecided_trial_names_the_command_that_would_decide_it(finished, contextwise, monkeypatch):
    run, known = Trial.run, (5, 18)

    def seeds(self) -> tuple[int | None, int | None] | None:
        return known

    def undecided(self) -> str:
        return "undecided"

    monkeypatch.setattr(Comparison, "decision", property(undecided))
    monkeypatch.setattr(Comparison, "seeds_to_decide", property(seeds))
    monkeypatch.setattr(
        Trial, "run", lambda self, *given, **more: dataclasses.replace(run(self, *given, **more), stopped="seeds")
    )
    status, printed, errors = contextwise(f"trial {finished}")
    command = f"next: contextwise trial {finished}/trial.yaml --seeds"
    assert status == 0, errors
    assert printed.splitlines()[-1] == f"{command} 18"
    known = (200, 914)  # at most four times the seeds that were trained: the next look may say less
    assert contextwise(f"trial {finished}")[1].splitlines()[-1] == f"{command} 20"
    known = None  # before seeds give an interval
    assert contextwise(f"trial {finished}")[1].splitlines()[-1] == f"{command} 10"


def test_the_command_plans(corpus_folder, contextwise):
    line = f"trial gpt2 contextlm --corpus {corpus_folder} --tokens 8192 --rates fixed --dry-run --json"
    status, printed, errors = contextwise(
        f"{line} --set recipe.model.size=pico --set recipe.training.tokens_per_step=512"
    )
    assert status == 0, errors
    plan = json.loads(printed)
    assert plan["seeds"] == 20 and plan["runs"] == 40
    assert [length["arm"] for length in plan["lengths"]] == ["gpt2", "contextlm"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("trial", "there is nothing to compare"),
        ("trial gpt2 --corpus corpus", "one arm (gpt2) has nothing to be compared to"),
        ("trial gpt2 models.py:Other --corpus corpus", "models.py cannot be read"),
        ("trial trials/nope", "there is no trial at trials/nope; give its folder, a YAML file, or two arms"),
        ("trial stdlib-quik", "(a YAML file, its name or its folder); did you mean stdlib-quick?"),
        ("trial gpt2 pm", "corpus is missing"),
        ("trial gpt2 pm --corpus nowhere", "there is no corpus at"),
        ("trial gpt2 pm --corpus CORPUS --rates guess", "rates is 'guess', but must be search or fixed"),
        ("trial gpt2 pm --corpus CORPUS --set model.size=pico", "key; did you mean 'recipe.model.size'?"),
        ("trial gpt2 pm --corpus CORPUS --set modle.size=pico", "key; did you mean 'recipe.model.size'?"),
        ("trial gpt2 gpt2 --corpus CORPUS", "two arms have the same name"),
    ],
)
def test_bad_commands(line, message, contextwise, corpus_folder):
    contextwise.refused(line.replace("CORPUS", str(corpus_folder)), message)


# ---- steps and validations ----


def test_a_trial_prints_the_steps_of_its_runs_and_warns_where_they_are_few(finished, corpus_folder, tmp_path):
    """256 tokens in steps of 64 are 4 steps, of which a decision says little."""
    warning = "Fewer than 100 optimizer steps in some runs, down to 4."
    result = json.loads((finished / "result.json").read_text())
    assert [length["steps"] for length in result["lengths"]] == [4, 4, 4]
    assert result["sentences"][-1].startswith(warning)
    shown = Trial(three(corpus_folder, finished)).run()
    assert warning in words_of(trial_tables(shown)) and warning in trial_page(shown, "arms: {}", "").render()
    plan = Trial(three(corpus_folder, tmp_path / "new")).plan()
    assert plan.warning.startswith(warning) and warning in words_of(plan_tables(plan, "flops"))
    assert "steps" in words_of(trial_tables(shown)) and "steps" in words_of(plan_tables(plan, "flops"))
    longer = Trial(three(corpus_folder, tmp_path / "longer", tokens=6400)).plan()
    assert [length.steps for length in longer.lengths] == [100] * 3 and longer.warning == ""


@pytest.mark.long
def test_every_output_says_how_long_the_runs_are(finished, corpus_folder, tmp_path):
    """256 tokens in 4 steps of 64, of a text of about 50,000 tokens."""
    text = Corpus.open(corpus_folder, split="train").tokens
    result = json.loads((finished / "result.json").read_text())
    for length in result["lengths"]:
        assert (length["steps"], length["tokens_per_step"], length["tokens"]) == (4, 64, 256)
        assert length["epochs"] == pytest.approx(256 / text)
        assert length["tokens_per_parameter"] == pytest.approx(256 / result["parameters"][length["arm"]])
    shown = Trial(three(corpus_folder, finished)).run()
    plan = Trial(three(corpus_folder, tmp_path / "new")).plan()
    html = trial_page(shown, "arms: {}", "").render()
    row = f"256 4 {256 / text:.3g} {256 / result['parameters']['gpt2']:.3g} "
    for words in (words_of(trial_tables(shown)), words_of(plan_tables(plan, "flops"))):
        assert "tokens steps epochs parameter" in words and row in words
    assert all(title in html for title in ("tokens", "steps", "epochs", "tokens a parameter"))
    first, further = plan.lengths[0], replace(plan.lengths[0], budget=8192)
    several = words_of(runs_table("", [first, further], plan.parameters))
    assert "8.19k tokens" in several and f"{count(first.budget)} tokens" in several
    assert "8.19k" not in words_of(runs_table("", [first], plan.parameters))


def test_short_runs_of_a_search_have_a_warning_of_their_own(corpus_folder, tmp_path):
    plan = Trial(three(corpus_folder, tmp_path / "search", tokens=6400, rates="search")).plan()
    assert plan.warning == ""
    assert any(
        note.startswith("The runs of the search over rates have 25 steps: the best rates") for note in plan.notes
    )
    whole = three(corpus_folder, tmp_path / "whole", tokens=640, rates={"share": 1.0})
    assert not any("search over rates have" in note for note in Trial(whole).plan().notes)


def test_the_default_trial_takes_hundreds_of_steps_and_a_search_a_hundred():
    given = load_trial(None, {"arms": ["gpt2", "pm"], "corpus": "corpus"})
    steps = DEFAULT_TOKENS / given.recipe["training"]["tokens_per_step"]
    assert steps >= 300 and given.rates.share * steps >= 100


def test_runs_of_a_trial_have_no_validation_loss_of_their_own(finished):
    """The trial scores whole documents; a window or two beside that would be another number for one run."""
    for folder in (finished / "runs").iterdir():
        run = RunFolder(folder)
        assert run.metrics("validation") == [] and run.summary()["validation_loss"] is None


@pytest.mark.parametrize("shared", [None, False])
def test_arms_start_alike_unless_the_shared_recipe_says_otherwise(corpus_folder, tmp_path, shared):
    given = {} if shared is None else {"paired_initialization": shared}
    recipe = RECIPE | {"training": RECIPE["training"] | given}
    own = {"gpt2": None, "alike": ["training.paired_initialization=true"], "own": {"recipe": RECIPE}}
    recipes = Arms(three(corpus_folder, tmp_path / "trial", arms=own, recipe=recipe)).recipes
    assert [each.training.paired_initialization for each in recipes.values()] == [shared is None, True, shared is None]


@pytest.mark.parametrize(("tokens", "budgets"), [("131k", [131_000]), (["2M", 1e6], [1_000_000, 2_000_000])])
def test_tokens_may_be_given_as_in_recipes(tokens, budgets):
    settings = load_trial(None, {"arms": ["gpt2", "pm"], "corpus": "c", "tokens": tokens}, [], None)
    assert settings.tokens == budgets
