"""The recipes that ship: each builds its model, and the paper's state what the paper states."""

import math

import pytest

from contextwise.experiments.run_set import FAST_TRAINING
from contextwise.models import ContextLMConfig, backbone_config
from contextwise.models.building import parameter_count
from contextwise.models.sizes import named_size
from contextwise.training import load_recipe
from contextwise_papers.contextlm.tables_7_8_settings import TRAINING
from contextwise_papers.item import RECIPES
from contextwise_papers.objectives import MultiTokenConfig
from shipped import ALL_FILES, RUNS

SWEEPS = RECIPES / "context_scaling"  # grids of runs: tests/experiments
ITEMS = RECIPES / "intrinsic_entropy"  # tables and figures: tests/papers/test_reproduce.py
CUE = RECIPES / "cue"  # made of the parts of earlier runs: tests/papers/cue/test_cue_recipes.py
SHIPPED = sorted(path for path in RUNS if not {SWEEPS, ITEMS, CUE} & set(path.parents))
PAPER = [path for path in SHIPPED if path.stem.endswith("-paper")]
# Windows and further settings of the papers' training. ContextLM, Section 7.1: windows, AdamW's betas, clipping, warm-up;
# neither the decay of the learning rate nor weight decay is given. Section 3.1: windows of 2048 tokens, "following the original
# Pythia ... training configuration"; the rest is from EleutherAI/pythia, models/160M/pythia-160m.yml and similar: warm-up over
# 1% of 143,000 steps (299.9 billion tokens), a cosine to 10%, betas, clipping, weight decay.
STATED = {
    "gpt2": (1024, {"warmup_steps": 1000}),
    "gpt_neox": (2048, {"warmup_steps": 1430, "weight_decay": 0.1, "minimum_learning_rate": 0.1}),
}


def recipe_of(path, folder, monkeypatch):
    """The recipe, read in an empty folder with the model in it that an earlier recipe leaves."""
    monkeypatch.chdir(folder)
    start = ALL_FILES[path]["model"].get("pretrained")
    if start:
        backbone_config("gpt2", named_size("gpt2", "nano"), 4096, 256).save_pretrained(f"{start}/model")
    return load_recipe(path)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_recipe_builds_its_model(path, tmp_path, monkeypatch):
    recipe = recipe_of(path, tmp_path, monkeypatch)
    assert recipe.name == path.stem and recipe.total_steps > 0
    config = recipe.model.config(recipe, getattr(recipe.model, "vocab_size", None) or 4096, 0)
    # T5 has relative positions, and as many as one likes.
    assert getattr(config, "max_position_embeddings", math.inf) >= recipe.data.context
    assert parameter_count(config) > 0
    if getattr(recipe.model, "multi_token", None) is not None:
        assert isinstance(config, MultiTokenConfig)
        config = config.backbone_config
    assert isinstance(config, ContextLMConfig) == (recipe.model.sections.get("context_predictor") is not None)


@pytest.mark.parametrize("path", PAPER, ids=lambda path: path.stem)
def test_the_papers_recipes_agree_with_its_tables(path, tmp_path, monkeypatch):
    recipe = recipe_of(path, tmp_path, monkeypatch)
    size = named_size(recipe.model.family, recipe.model.size)
    assert recipe.model.shape.learning_rate == recipe.learning_rate == size.learning_rate
    tokens_per_step, tokens = TRAINING[recipe.model.family]
    stated = {"tokens_per_step": tokens_per_step, "tokens": tokens, "beta1": 0.9, "beta2": 0.95, "clip": 1.0}
    context, further = STATED[recipe.model.family]
    assert recipe.data.context == context
    assert {name: getattr(recipe.training, name) for name in stated | further} == stated | further
    # ContextLM, Section 3.1; the form of the injection is that of the code of its authors.
    predictor = recipe.model.sections.get("context_predictor")
    assert (predictor.chunk_size, predictor.predictor_layers, predictor.pooling) == (4, 2, "mean")
    assert (predictor.injection, predictor.injection_layer, predictor.inject_every_layer) == ("paper", 0, False)


@pytest.mark.parametrize(
    ("name", "backbone", "block", "steps"),
    [
        # an untied head; and a norm at the end of the predictor
        ("gpt2-base-paper", 124_439_808 + 50_257 * 768, 7_087_872, 17_167),
        ("pythia-160m-paper", 162_322_944 + 2 * 768, 7_087_872, 143_052),
    ],
)
def test_the_papers_models_have_the_published_parameters_and_two_blocks(
    name, backbone, block, steps, tmp_path, monkeypatch
):
    recipe = recipe_of(RECIPES / "contextlm" / f"{name}.yaml", tmp_path, monkeypatch)
    assert parameter_count(recipe.model.config(recipe, None, None)) == backbone + 2 * block
    assert recipe.total_steps == steps


def test_the_nano_recipes_train_as_the_demo_and_trials_do_at_a_rate_for_longer_runs():
    shared = {name: value for name, value in FAST_TRAINING.items() if name != "learning_rate"}
    for name in ("gpt2", "pm", "contextlm"):
        training = ALL_FILES[RECIPES / "contextlm" / f"{name}-nano.yaml"]["training"]
        assert training.items() >= shared.items()


def test_there_are_recipes_of_the_paper_for_both_of_its_families():
    assert {path.stem for path in PAPER} >= {"gpt2-base-paper", "pythia-160m-paper"}
