"""Tables 7, 8 and 10: printed settings, attention by hand, and times in miniature."""

import pytest

from contextwise.base.config import validate
from contextwise.base.recipes import RECIPES
from contextwise.data import prepare_corpus
from contextwise.reproductions.contextlm.table_10_cost import Costs, attention_cost
from contextwise.reproductions.item import Item, Scale, find_item, measure_at
from contextwise.training.recipe import Recipe
from small import write_documents


@pytest.mark.parametrize("name", ["table7", "table8"])
def test_named_sizes_have_the_printed_settings(name, tmp_path):
    _, item = find_item(f"contextlm/{name}", RECIPES)
    outcome = measure_at(item, "tiny").measure(item, tmp_path)
    assert [claim.holds for claim in outcome.claims] == [True]
    first = next(iter(item.printed["rows"]))
    item.printed["rows"][first][1] += 64
    assert [claim.holds for claim in measure_at(item, "tiny").measure(item, tmp_path).claims] == [False]


def recipe(**model):
    values = {
        "name": "x",
        "data": {"corpus": "x", "context": 64},
        "training": {"steps": 1},
        "model": {"layers": 4} | model,
    }
    return validate(Recipe, values, "the recipe")


def test_attention_of_a_predictor_by_hand():
    assert attention_cost(recipe()) == (1, 1)
    assert attention_cost(recipe(extra_layers=2)) == (1.5, 1.5)
    # Two layers of four on a quarter of the positions: 1/16 of their attention in training, 1/4 for a token.
    predictor = {"chunk_size": 4, "predictor_layers": 2}
    assert attention_cost(recipe(context_predictor=predictor)) == (1 + 0.5 / 16, 1 + 0.5 / 4)


@pytest.mark.slow
def test_costs_in_miniature(tmp_path):
    corpus = prepare_corpus(
        write_documents(tmp_path / "text.jsonl", 60), "bytes", tmp_path / "corpus", validation=0.3
    ).path
    training = {"steps": 2, "tokens_per_step": 64, "learning_rate": 1e-3, "evaluation_tokens": 64}
    model = {"layers": 1, "width": 16, "heads": 2}
    values = {
        "recipe": {"name": "small", "data": {"context": 16}, "model": model, "training": training},
        "models": {"plain": [], "deep": ["model.extra_layers=7"]},
        "reference": "deep", "seeds": [0, 1], "rounds": 2, "new_tokens": 16, "corpus": str(corpus),
        "claims": [{"text": "less time", "better": "plain", "than": "deep"}],
    }  # fmt: skip
    measure = validate(Costs, values, "the settings")
    item = Item(title="t", source="s", measure="m", printed={}, scales={"tiny": Scale(machine="any", settings={})})
    outcome = measure.measure(item, tmp_path / "out")
    assert [row[0] for row in outcome.tables[0].rows] == ["plain", "deep"]
    assert all(len(times) == 2 and min(times) > 0 for times in outcome.figures["ms_per_token"].values())
    assert outcome.figures["flops_per_token"]["deep"] > outcome.figures["flops_per_token"]["plain"]
    assert "ms for a generated token" in outcome.claims[0].evidence
