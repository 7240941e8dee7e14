"""Runs of multi-token models: what is minimised, what is logged, what is exported."""

import pytest
import torch
from torch.utils.data import default_collate

from contextwise.base.config import validate
from contextwise.base.errors import ConfigError
from contextwise.data import Corpus
from contextwise.models import build_model, load_model
from contextwise.models.building import parameter_count
from contextwise.training import Recipe, train
from contextwise.training.inputs import TrainingInputs
from contextwise_papers.objectives import MultiTokenForCausalLM
from small import EXACT, recipe_values
from trained import cut_back, same


def values(corpus, output, head="layer", **training):
    result = recipe_values(corpus, output, **{"log_every": 1, "steps": 4} | training)
    result["model"] = {"layers": 2, "width": 32, "heads": 2, "multi_token": {"future_tokens": 3, "head": head}}
    return result


@pytest.mark.parametrize("head", ["layer", "linear"])
def test_each_head_is_logged_and_their_sum_is_minimised(head, corpus_folder, tmp_path):
    recipe = Recipe.model_validate(values(corpus_folder, tmp_path / "run", head, **EXACT))
    run = train(recipe)
    row = run.metrics("train")[0]
    assert list(row["parts"]) == ["tokens", "head_2", "head_3"][: len(row["parts"])]
    assert row["loss"] == row["parts"]["tokens"]
    # The first step, computed here head by head from the untrained model and the first windows.
    corpus = Corpus.open(corpus_folder)
    torch.manual_seed(recipe.seed)
    model = build_model(recipe.model.config(recipe, corpus.vocab_size, corpus.end_of_text)).train()
    stream = TrainingInputs.open(recipe).stream
    batch = default_collate([stream[i] for i in range(4)])
    states = model.future_states(batch["input_ids"])
    expected = []
    for k, state in enumerate(states):
        logits = model.vocabulary_head(k + 1)(state)[:, : 32 - k]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"][:, k:].flatten())
        expected.append(loss.item())
    assert list(row["parts"].values()) == pytest.approx(expected, rel=1e-5)
    weighted = sum(loss * (32 - k) / 32 for k, loss in enumerate(expected))
    assert row["objective"] == pytest.approx(weighted, rel=1e-5)
    assert run.metrics("validation")[-1]["loss"] < 8  # of the next token alone, not of the sum
    assert isinstance(load_model(run.path, device="cpu"), MultiTokenForCausalLM)


@pytest.mark.long
def test_a_stopped_run_resumes_with_the_same_sums(corpus_folder, tmp_path):
    whole = train(Recipe.model_validate(values(corpus_folder, tmp_path / "whole", log_every=3, save_every=2)))
    again = cut_back(whole, 4, tmp_path / "again")
    run = train(Recipe.model_validate(values(corpus_folder, again, log_every=3, save_every=2)))
    keys = ("step", "loss", "objective", "parts")
    rows = [[{k: row[k] for k in keys} for row in one.metrics("train")] for one in (whole, run)]
    assert rows[0] == rows[1]
    assert same(whole, run)


def test_equal_parameters_for_a_trunk_that_is_shorter_by_the_heads(corpus_folder, tmp_path):
    plain = recipe_values(corpus_folder, tmp_path / "plain")
    plain["model"] = {"layers": 6, "width": 32, "heads": 2}
    heads = plain | {
        "model": {**plain["model"], "extra_layers": -4, "multi_token": {"future_tokens": 4, "head": "layer"}}
    }
    recipes = [Recipe.model_validate(one) for one in (plain, heads)]
    counts = [parameter_count(one.model.config(one, 300, None)) for one in recipes]
    assert counts[0] == counts[1]
    heads["model"]["extra_layers"] = -6
    with pytest.raises(ConfigError, match="extra_layers is -6, but at least one layer must remain"):
        validate(Recipe, heads, "the recipe")


def test_together_with_a_pretrained_model_it_is_refused(corpus_folder, tmp_path):
    result = values(corpus_folder, tmp_path / "run")
    result["model"] = {"pretrained": "anything", "multi_token": {}}
    with pytest.raises(ConfigError, match="multi_token does not apply to a pretrained model"):
        validate(Recipe, result, "the recipe")


def test_heads_beyond_the_window_are_refused(corpus_folder, tmp_path):
    """Head n has no target in a window of n - 1 tokens: it would stay as it began, with a loss of 0."""
    result = values(corpus_folder, tmp_path / "run")
    result["data"] |= {"context": 16, "context_stages": {}}
    for tokens, stages in ((17, {}), (9, {8: 0.5})):
        result["model"]["multi_token"]["future_tokens"] = tokens
        result["data"]["context_stages"] = stages
        with pytest.raises(ConfigError, match=f"future_tokens is {tokens}, but windows have {tokens - 1} tokens"):
            validate(Recipe, result, "the recipe")
        result["model"]["multi_token"]["future_tokens"] = tokens - 1
        validate(Recipe, result, "the recipe")
