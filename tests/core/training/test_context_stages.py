"""Stages of shorter windows at the beginning of a run: what is read, what it costs, and what is refused."""

import pytest
import torch
from torch.utils.data import default_collate

from contextwise.base.config import validate
from contextwise.base.errors import ConfigError
from contextwise.data import Corpus
from contextwise.data.windows import Windows
from contextwise.experiments.cost import cost_of
from contextwise.models import ContextLMConfig, ContextLMForCausalLM
from contextwise.training import Recipe, train
from contextwise.training.batches import divided
from contextwise.training.inputs import TrainingInputs
from small import recipe_values, save_model, small_gpt2
from trained import trained

STAGES = {8: 0.25, 16: 0.5}
"""Of 12 steps with windows of 32: three of 8, six of 16."""


def staged(corpus, run, stages=STAGES, data=None, **training):
    values = recipe_values(corpus, run, **training)
    values["data"] |= {"context_stages": stages} | (data or {})
    values["model"]["max_context"] = 32
    return values


@pytest.mark.parametrize("separate", [False, True])
def test_parts_of_a_window_are_the_windows_of_the_shorter_context(corpus_folder, separate):
    corpus = Corpus.open(corpus_folder)
    long, short = (Windows(corpus, context, separate_documents=separate) for context in (32, 8))
    parts = divided(default_collate([long[i] for i in range(3, 60)]), 8)
    expected = default_collate([short[i] for i in range(4 * 3, 4 * 60)])  # some have the end of a document in them
    assert set(parts) == set(expected)
    assert all(torch.equal(parts[name], expected[name]) for name in expected if name != "window")
    assert parts["window"].tolist() == [window for window in range(3, 60) for _ in range(4)]


def test_a_step_of_a_stage_is_a_step_with_the_shorter_context(corpus_folder, tmp_path):
    all_in_one_step = {"steps": 4, "tokens_per_step": 128, "schedule": "constant", "warmup_steps": 0, "log_every": 1}
    data = {"tokens": 128, "cross_documents": True}
    long = trained(staged(corpus_folder, tmp_path / "long", {16: 0.5}, data, **all_in_one_step))
    short = train(
        Recipe.model_validate(staged(corpus_folder, tmp_path / "short", {}, data | {"context": 16}, **all_in_one_step))
    )
    rows = [run.metrics("train") for run in (long, short)]
    losses = [[row["loss"] for row in each] for each in rows]
    assert losses[0][:2] == pytest.approx(losses[1][:2], rel=1e-5)
    assert losses[0][2:] != pytest.approx(losses[1][2:], rel=1e-4)  # windows of 32
    assert rows[0][1]["flops"] == rows[1][1]["flops"]


@pytest.mark.long
def test_a_staged_run_costs_what_was_planned(corpus_folder, tmp_path):
    values = staged(corpus_folder, tmp_path / "whole")
    recipe = Recipe.model_validate(values)
    assert recipe.windows == [(12, 8), (24, 16), (12, 32)]
    whole = train(recipe)
    plain = cost_of(Recipe.model_validate(staged(corpus_folder, tmp_path / "plain", {})))
    assert whole.summary()["flops"] == pytest.approx(cost_of(recipe).flops, rel=1e-12)
    assert whole.summary()["flops"] < plain.flops and whole.summary()["tokens"] == plain.tokens
    per_token = [round(row["flops_per_second"] / row["tokens_per_second"]) for row in whole.metrics("train")]
    assert per_token == sorted(per_token) and len(set(per_token)) > 2  # of each row, not of the run


@pytest.mark.parametrize(
    ("stages", "change", "words"),
    [
        ({12: 0.5}, {}, "growing contexts that divide data.context .32., such as {16: 0.5}"),
        ({16: 0.2, 8: 0.2}, {}, "growing contexts"),
        ({32: 0.2}, {}, "growing contexts"),
        ({16: 1.0}, {}, "leave some of the run for data.context"),
        ({16: -0.5}, {}, "shares must be above 0"),
        ({16: 0.01}, {}, "the run has only 12 steps, too few for these shares"),
        ({16: 0.5}, {"metadata": {"columns": ["title"]}}, "only the objective causal without data.metadata"),
    ],
)
def test_stages_that_do_not_fit_are_refused(tmp_path, stages, change, words):
    values = staged(tmp_path / "corpus", tmp_path / "run", stages, change)
    with pytest.raises(ConfigError, match=words):
        validate(Recipe, values, "the recipe")


def test_stages_shorter_than_a_pretrained_models_chunks_are_refused(corpus_folder, tmp_path):
    save_model(tmp_path / "model", ContextLMForCausalLM(ContextLMConfig(small_gpt2().config, chunk_size=4)))
    values = staged(corpus_folder, tmp_path / "run", {2: 0.5}) | {"model": {"pretrained": str(tmp_path / "model")}}
    with pytest.raises(ConfigError, match="context_stages is .* but .* has chunks of 4 tokens, more than the first"):
        TrainingInputs.open(validate(Recipe, values, "the recipe"))
