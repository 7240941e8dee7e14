"""The batch-size ramp-up: which step reads which examples, and runs with steps of several sizes."""

import itertools
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from contextwise.base.config import validate
from contextwise.base.errors import ConfigError
from contextwise.base.runs import RunFolder
from contextwise.training import Recipe
from contextwise.training.batches import BatchSizes, StepIndices
from contextwise.training.run import examples_per_pass
from processes import finish_training
from small import recipe_values
from trained import trained, write_recipe

RAMP = {"steps": None, "tokens": 12 * 128, "rampup_batch_size": 32, "rampup_tokens": 0.5}
"""12 full steps of 4 windows, 6 of them as 12 steps of one window and 6 of two: 24 steps."""


def test_sizes_by_hand():
    sizes = BatchSizes.doubling(first=1, full=4, rampup=6, full_steps=12)
    assert sizes.stages == ((12, 1), (6, 2), (6, 4))
    assert (sizes.steps, sizes.first, sizes.full) == (24, 1, 4)
    assert [sizes.before(step) for step in (0, 12, 13, 18, 19, 24)] == [0, 12, 14, 24, 28, 48]
    assert BatchSizes.doubling(first=1, full=8, rampup=1, full_steps=3).stages == ((8, 1), (2, 8))


@given(
    first=st.sampled_from([1, 3]),
    doublings=st.integers(1, 4),
    full_steps=st.integers(1, 40),
    share=st.floats(0.01, 1),
    processes=st.sampled_from([1, 2, 4]),
    limit=st.integers(1, 9),
)
def test_processes_share_every_example_once_in_order(first, doublings, full_steps, share, processes, limit):
    first, full = first * processes, (first * processes) << doublings
    sizes = BatchSizes.doubling(first, full, rampup=-int(-share * full_steps), full_steps=full_steps)
    assert sizes.before(sizes.steps) == sizes.before(sizes.steps + 1) == full * full_steps
    shares = [list(StepIndices(sizes, rank, processes, limit)) for rank in range(processes)]
    assert {len(share) for share in shares} == {sizes.steps}
    for step, indices in enumerate(zip(*shares, strict=True)):
        assert sorted(itertools.chain(*indices)) == list(range(sizes.before(step), sizes.before(step + 1)))
        assert len({len(share) for share in indices}) == 1
        assert sizes.step_at(sizes.before(step)) == step


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rampup_batch_size": 48}, "rampup_batch_size is 48, which is not .* possible sizes are 64, 32"),
        ({"rampup_batch_size": 128}, "possible sizes are 64, 32"),
        ({"rampup_tokens": 5000}, "rampup_tokens is 5000, but the run has only 1536 tokens"),
        ({"rampup_tokens": 12 * 128}, "rampup_tokens is 1536, but the run has only 1536 tokens"),
        ({"tokens": None, "steps": 12}, "set training.tokens=1536 instead of training.steps"),
    ],
)
def test_ramps_that_do_not_fit_are_refused(tmp_path, change, words):
    with pytest.raises(ConfigError, match=words):
        validate(Recipe, recipe_values(tmp_path / "corpus", tmp_path / "run", **RAMP | change), "the recipe")


@pytest.fixture(scope="module")
def ramped(corpus_folder, tmp_path_factory):
    run = tmp_path_factory.mktemp("ramped") / "run"
    options = RAMP | {"schedule": "linear", "keep_checkpoints": 9}
    return trained(recipe_values(corpus_folder, run, **options))


def test_a_ramp_keeps_tokens_flops_and_the_schedule_of_the_run(ramped, corpus_folder, tmp_path):
    plain = trained(recipe_values(corpus_folder, tmp_path / "run", schedule="linear"))
    for name in ("tokens", "input_tokens", "target_tokens", "flops"):
        assert ramped.summary()[name] == pytest.approx(plain.summary()[name], rel=1e-12)
    assert (ramped.summary()["steps"], plain.summary()["steps"]) == (24, 12)
    rows = {row["step"]: row for row in ramped.metrics("train")}
    assert [rows[step]["tokens"] // 32 for step in (12, 14, 18, 20, 24)] == [12, 16, 24, 32, 48]
    for row in plain.metrics("train")[3:]:
        step = row["step"] + 12
        assert rows[step]["tokens"] == row["tokens"]
        assert rows[step]["learning_rate"] == pytest.approx(row["learning_rate"])


@pytest.mark.long
def test_the_first_stage_is_a_run_of_small_steps(corpus_folder, tmp_path):
    constant = {"schedule": "constant", "warmup_steps": 0, "keep_checkpoints": 9}
    small = constant | {"steps": 12, "tokens_per_step": 32}
    for name, options in {"ramped": RAMP | constant, "small": small}.items():
        trained(recipe_values(corpus_folder, tmp_path / name, **options))
    a, b = (load_file(tmp_path / name / "checkpoints/step-12/weights.safetensors") for name in ("ramped", "small"))
    assert all(torch.equal(a[name], b[name]) for name in b)


@pytest.mark.slow
def test_two_processes_ramp_as_one(corpus_folder, tmp_path):
    options = RAMP | {"rampup_batch_size": 64, "micro_batch_tokens": 32}
    one = trained(recipe_values(corpus_folder, tmp_path / "one", **options))
    code, output = finish_training(
        write_recipe(tmp_path, recipe_values(corpus_folder, tmp_path / "two", **options)), processes=2
    )
    assert code == 0, output
    for a, b in zip(one.metrics(), RunFolder(tmp_path / "two").metrics(), strict=True):
        assert (a["step"], a["tokens"]) == (b["step"], b["tokens"])
        assert a["loss"] == pytest.approx(b["loss"], abs=1e-4)


def test_a_first_step_that_processes_cannot_share_is_refused(corpus_folder, tmp_path):
    recipe = Recipe.model_validate(recipe_values(corpus_folder, tmp_path / "two", **RAMP))
    two = SimpleNamespace(num_processes=2, device=torch.device("cpu"))
    with pytest.raises(ConfigError, match="training.rampup_batch_size is 32: its windows cannot be divided evenly"):
        examples_per_pass(recipe, two)
