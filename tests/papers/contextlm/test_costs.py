"""Tables 7, 8 and 10: printed settings, attention by hand, and times in miniature."""

import numpy as np
import pytest
import torch

from contextwise.base.config import validate
from contextwise.base.errors import ConfigError
from contextwise.base.intervals import mean_estimate
from contextwise.data import prepare_corpus
from contextwise.data.tokenizers import byte_tokenizer
from contextwise.training.recipe import Recipe
from contextwise_papers.claims import Better, above, below
from contextwise_papers.contextlm import table_10_cost
from contextwise_papers.contextlm.table_10_cost import (
    COMPONENTS,
    PLAIN,
    THROUGHPUT,
    TIME,
    WITH_PREDICTOR,
    Costs,
    attention_cost,
    decided,
    generation_rounds,
    log_ratio,
)
from contextwise_papers.item import RECIPES, find_item, measure_at
from shipped import an_item
from small import small_gpt2, write_documents


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


def test_generation_is_timed_in_alternation(monkeypatch):
    models = {"a": small_gpt2(positions=48), "b": small_gpt2(positions=48, seed=1)}
    names = {id(model): name for name, model in models.items()}
    seconds = iter([9.0, 9.0, 1.0, 4.0, 5.0, 3.0, 2.0, 6.0])  # two of warm-up, then three rounds
    order = []

    def timed(model, prompt, new):
        order.append((names[id(model)], prompt, new))
        return next(seconds)

    monkeypatch.setattr(table_10_cost, "_generation_seconds", timed)
    found = generation_rounds(models, new_tokens=20, rounds=3)
    assert [name for name, _, _ in order] == list("ab" + "ab" + "ba" + "ab")
    assert set(order[2:]) == {("a", 28, 20), ("b", 28, 20)}
    assert found == {"a": [50.0, 150.0, 100.0], "b": [200.0, 250.0, 300.0]}


def test_every_model_generates_the_same_number_of_tokens(monkeypatch):
    end = byte_tokenizer().tokenizer.eos_token_id
    ends = {"bos_token_id": end, "eos_token_id": end, "initializer_range": 0.5}
    ending, going = small_gpt2(positions=48, **ends), small_gpt2(positions=30, **ends)
    with torch.no_grad():  # this one would end its text at once
        ending.transformer.wte.weight[end] *= 100
    lengths = []
    for model in (ending, going):
        own = model.generate

        def counted(*arguments, own=own, **settings):
            out = own(*arguments, **settings)
            lengths.append(out.shape[1])
            return out

        monkeypatch.setattr(model, "generate", counted)
    generation_rounds({"ending": ending, "going": going}, new_tokens=40, rounds=1)
    assert lengths[2:] == [30, 30]  # the shorter model's positions


def test_models_are_compared_within_each_round():
    # Every round is twice as slow as the one before; the ratio stays near a half.
    slow, noise = 2.0 ** np.arange(6), np.array([1.01, 0.99, 1.02, 0.98, 1.01, 0.99])
    times = {"ours": 5 * slow * noise, "theirs": 10 * slow}
    assert mean_estimate(times["ours"] - times["theirs"]).above(0) is None  # the rounds hide the difference
    ratio = log_ratio(times["ours"], times["theirs"])
    logarithms = np.log(0.5 * noise)
    half = 2.570581836 * logarithms.std(ddof=1) / 6**0.5  # Student's t with five degrees of freedom
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx(
        (logarithms.mean(), logarithms.mean() - half, logarithms.mean() + half)
    )
    better = Better(text="less", better="ours", than="theirs")
    claim = decided(better, times, below, TIME)
    assert (
        claim.holds is True
        and "ours minus theirs: −50.0% [−50.8%, −49.2%] time for a generated token" in claim.evidence
    )
    assert decided(better, times, above, THROUGHPUT).holds is False  # as tokens a second they would be half of theirs
    assert decided(better, {name: 1 / values for name, values in times.items()}, above, THROUGHPUT).holds is True
    one = {name: values[:1] for name, values in times.items()}
    assert (
        decided(better, one, below, TIME).holds is None
        and "1 round; there is no interval" in decided(better, one, below, TIME).evidence
    )


@pytest.mark.long
def test_costs_in_miniature(tmp_path):
    corpus = prepare_corpus(
        write_documents(tmp_path / "text.jsonl", 60), "bytes", tmp_path / "corpus", validation=0.3
    ).path
    training = {"steps": 2, "tokens_per_step": 64, "learning_rate": 1e-3, "evaluation_tokens": 64}
    claim, model = {"better": "ctx", "than": "deep"}, {"layers": 1, "width": 16, "heads": 2}
    values = {
        "recipe": {"name": "small", "data": {"context": 16}, "model": model, "training": training},
        "models": {"plain": [], "deep": ["model.extra_layers=3"],
                   "ctx": ["model.context_predictor.chunk_size=4", "model.context_predictor.predictor_layers=1"]},
        "reference": "deep", "seeds": [0, 1], "rounds": 2, "new_tokens": 8, "corpus": str(corpus),
        "claims": [{"text": "less time", **claim}], "throughput_claims": [{"text": "more tokens", **claim}],
    }  # fmt: skip
    measure = validate(Costs, values, "the settings")
    outcome = measure.measure(an_item(), tmp_path / "out")
    measured, ratios, counted = (table.rows for table in outcome.tables)
    models = ["plain", "deep", "ctx", "ctx, gate"]
    assert [row[0] for row in measured] == ["token decoder", "context predictor", *models]
    assert measured[1] == ["context predictor", "O((T/w)²d)", "O((T/w)d)", "", ""]
    assert measured[3][1:3] == ["O(T²d)", "O(Td)"] and "[" in measured[3][3] and "[" in measured[3][4]
    assert measured[5][1:3] == ["≈ O((1 + 1/w²) T²d)", "≈ O((1 + 1/w) Td)"]
    assert [row[:2] for row in ratios] == [[name, than] for name in models[2:] for than in models[:2]]
    assert [row[2:] for row in counted] == [["1.000"] * 2, ["4.000"] * 2, ["1.062", "1.250"], ["1.062", "1.250"]]
    for name in ("ms_per_token", "tokens_per_second"):
        assert all(len(rounds) == 2 and min(rounds) > 0 for rounds in outcome.figures[name].values())
    assert outcome.figures["flops_per_token"]["deep"] > outcome.figures["flops_per_token"]["plain"]
    about = ["time for a generated token"] * 2 + ["training throughput"] * 2
    assert all(words in claim.evidence for words, claim in zip(about, outcome.claims, strict=True))


def test_a_throughput_claim_about_an_unknown_model_is_refused():
    values = {"recipe": {}, "models": {"plain": []}, "reference": "plain",
              "throughput_claims": [{"text": "more", "better": "plain", "than": "other"}]}  # fmt: skip
    with pytest.raises(ConfigError, match="throughput_claims names 'other', which is none of plain"):
        validate(Costs, values, "the settings")


@pytest.mark.parametrize("scale", ["tiny", "gpu", "paper"])
def test_table_10_has_the_printed_complexities_and_both_claims(scale):
    _, item = find_item("contextlm/table10", RECIPES)
    rows = list(item.printed["rows"].values())
    assert [tuple(row[:2]) for row in rows] == [*COMPONENTS.values(), PLAIN, WITH_PREDICTOR]
    measure = measure_at(item, scale)
    assert measure.rounds >= 20
    assert [claim.names for claim in measure.claims] == [claim.names for claim in measure.throughput_claims]
