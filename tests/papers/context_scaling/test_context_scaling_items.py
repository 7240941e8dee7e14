"""Contextwise curves, document lengths and a small sweep: verdicts on worked cases, and each measure in miniature."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from contextwise.base.config import validate
from contextwise.base.errors import ConfigError
from contextwise.base.estimates import Estimate
from contextwise.data import Corpus, prepare_corpus
from contextwise_papers.claims import share_error
from contextwise_papers.context_scaling import section_3_optimum
from contextwise_papers.context_scaling.section_3_optimum import OptimalContext, context_claims, optimum_plots
from contextwise_papers.context_scaling.sections_1_2_curves import (
    Change,
    ContextCurve,
    DocumentLengths,
    TrainingLossMisleads,
    bins_difference,
    curve_claim,
    misleading_claims,
)
from contextwise_papers.intrinsic_entropy.figures_5_9_long_texts import NeedleCurves
from contextwise_plan.optimum import Cell, Landscape, Optimum
from contextwise_plan.sweeps.points import SweepPoint
from shipped import an_item
from small import write_documents

ITEM = an_item()
TRAINING = {"steps": 4, "tokens_per_step": 128, "learning_rate": 1e-2, "evaluation_tokens": 256}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("contexts")
    return prepare_corpus(write_documents(folder / "text.jsonl", 80), "bytes", folder / "corpus", validation=0.3).path


def recipe(**changes):
    model = {"family": "llama", "layers": 1, "width": 16, "heads": 2}
    return {"data": {"context": 32}, "model": model, "training": TRAINING} | changes


def test_a_difference_of_bins_is_paired_by_document():
    # Each document's second bin is one nat below its first, whatever its own level is.
    nats = np.array([[2.0, 1.0], [7.0, 6.0], [4.0, 3.0]])
    documents = pa.table({"nats": nats.ravel(), "targets": np.ones(6, int)})
    result = bins_difference(SimpleNamespace(documents=documents, bins=[{}, {}]), 0, 1)
    assert [result.value, result.low, result.high] == pytest.approx([1.0, 1.0, 1.0])


def test_a_loss_without_an_interval_is_drawn_without_one():
    cells = [Cell("pico", 1000, context, 3.0, half, 1) for context, half in ((64, 0.1), (128, None))]
    result = SimpleNamespace(
        last_decided=0, cells=[cells], budgets=np.array([1e15]), contexts={"pico": [64]}, pairs=[None]
    )
    losses, _ = optimum_plots(result, {"pico": [64, 128]})
    known, unknown = losses.series["pico"]
    assert (known["low"], known["high"]) == pytest.approx((2.9, 3.1)) and unknown == {"x": 128, "y": 3.0}


def test_a_curve_within_and_beyond_the_training_context(corpus, tmp_path):
    values = {"corpus": str(corpus), "recipe": recipe(), "context": 32}
    within = validate(ContextCurve, values, "the settings").measure(ITEM, tmp_path / "out")
    assert [claim.text for claim in within.claims] == ["the loss improves throughout the training context"]
    beyond = validate(ContextCurve, values | {"context": 128}, "the settings").measure(ITEM, tmp_path / "out")
    assert len(beyond.claims) == 2 and "in this one run, from 31 to 128 tokens" in beyond.claims[1].evidence
    assert beyond.figures["bins"][0][-1]["visible_to"] == 128
    assert len(list((tmp_path / "out/runs").iterdir())) == 1
    two = validate(ContextCurve, values | {"seeds": [0, 1]}, "the settings").measure(ITEM, tmp_path / "out")
    assert len(two.runs) == len(two.figures["bins"]) == 2 and len(two.tables) == 3
    assert two.figures["bins"][0] != two.figures["bins"][1]
    assert two.claims[0].holds is None and "takes 3 seeds or more" in two.claims[0].evidence


@pytest.mark.parametrize(
    ("lows", "holds", "reason"),
    [([0.1], True, ""), ([0.1, 0.1, 0.1], True, ""), ([0.1, 0.1, -0.1], None, "2 of 3 seeds decide it")],
)
def test_a_claim_on_curves_is_decided_where_all_seeds_agree(lows, holds, reason):
    curves = [Estimate(0.2, low, 0.3) for low in lows]
    claim = curve_claim(lambda curve, trained: Change("c", 31, trained, "falls", curve, ".1f"), curves, 64, "here, ")
    assert (
        claim.holds is holds
        and claim.evidence.startswith("here, from 31 to 64 tokens it falls ")
        and reason in claim.evidence
    )
    assert ("falls by, seed by seed, 0.2 [0.1, 0.3], 0.2" in claim.evidence) is (len(lows) > 1)


def test_seeds_of_an_item_that_measures_one_model_are_refused():
    with pytest.raises(ConfigError, match="seeds has 2, but this item measures one model; give one seed"):
        validate(NeedleCurves, {"recipe": recipe(), "seeds": [0, 1]}, "the settings")


@pytest.mark.slow
def test_two_contexts_are_ranked_by_average_and_by_best_context(corpus, tmp_path):
    values = {"corpus": str(corpus), "recipe": recipe(name="two"), "contexts": [64, 16], "seeds": [0, 1]}
    outcome = validate(TrainingLossMisleads, values, "the settings").measure(ITEM, tmp_path / "out")
    names = [run.name.rpartition("-")[0] for run in outcome.runs]
    assert names == [f"two-context{c}-s{s}" for s in (0, 1) for c in (16, 64)]
    assert len(outcome.tables) == 4 and len(outcome.claims) == 3
    ends = [row[0] for row in outcome.tables[0].rows]
    assert ends[0] == "1" and ends[-1].endswith("64")
    short, long, difference = (row.cells for row in outcome.tables[1].lines)
    assert "to 16 tokens" in short[0][1] and "to 64 tokens" in long[0][1] and difference[0][0] == "minus the first"
    assert difference[1].value == pytest.approx(long[1].value - short[1].value)


def curve_difference(average, best, below):
    """A curve of a long context, with its differences to that of a short one: clear, and of the signs of these numbers."""
    bins = {(i, i): Estimate(0.1, 0.05, 0.15) for i in range(3)}
    clear = [Estimate(value, value - 0.01, value + 0.01) for value in (average, best)]
    return SimpleNamespace(
        average_difference=clear[0], lowest_difference=clear[1], below=(below, 3), bin_differences=bins
    )


@pytest.mark.parametrize(("seeds", "signs", "holds"), [(1, 1, None), (2, 1, None), (3, 1, True), (3, -1, None)])
def test_a_model_of_a_longer_context_misleads_where_three_seeds_agree(seeds, signs, holds):
    """Intervals over documents that exclude zero decide nothing about other seeds."""
    pairs = [[None, curve_difference(-0.1, 0.1, 0)] for _ in range(seeds)]
    pairs[-1] = [None, curve_difference(-0.1 * signs, 0.1 * signs, 0)]
    claims = share_error(misleading_claims(pairs))
    assert [claim.holds for claim in claims] == [holds, True if seeds == 3 else None, holds]
    assert claims[0].evidence.startswith("long minus short, seed by seed: −0.1")


def test_lengths_are_counted_over_all_splits(corpus, tmp_path):
    settings = {"corpus": str(corpus), "lengths": [100, 400], "claimed": 400}
    outcome = validate(DocumentLengths, settings, "the settings").measure(ITEM, tmp_path / "out")
    lengths = np.concatenate([Corpus.open(corpus, split=split).lengths for split in ("train", "validation")])
    assert outcome.figures == {"documents": 80, "tokens": lengths.sum()}
    assert outcome.tables[0].rows[1][:2] == ["400", f"{(lengths < 400).mean():.1%}"]
    assert f"{(lengths < 400).mean():.3f}" in outcome.claims[0].evidence
    silent = validate(DocumentLengths, {"corpus": str(corpus)}, "the settings").measure(ITEM, tmp_path / "out")
    assert silent.claims == []


def scene(contexts, edge="", decided=True, noise=0.1, runs=3):
    """A sweep of two sizes with these smoothed optima by budget; all other contexts of 16, 64, 256 are 1 ± noise behind."""
    sizes = list(contexts)
    cells = [Cell(size, i + 1, 64, 4.0 - i, 0.01, runs) for i, size in enumerate(sizes)]
    behind = Estimate(1.0, 1.0 - noise, 1.0 + noise, documents=30, seeds=2)

    def optimum(cell, best):
        differences = {context: behind for context in (16, 64, 256) if context != best}
        return Optimum(replace(cell, context=best or 64), decided, (), edge, differences, (16, 256))

    steps = len(next(iter(contexts.values())))
    optima = [{cell.size: optimum(cell, contexts[cell.size][step]) for cell in cells} for step in range(steps)]
    pairs = [None if context is None else (sizes[min(i, 1)], context) for i, context in enumerate(contexts[sizes[0]])]
    budgets = np.geomspace(1e9, 1e12, steps)
    values = {"cells": [cells] * steps, "optima": optima, "overall": [None] * steps, "pairs": pairs}
    values["lead"] = lambda step, pair, other: behind
    return SimpleNamespace(budgets=budgets, contexts=contexts, last_decided=steps - 1, **values)


def verdicts(contexts, **options):
    claims = context_claims(scene(contexts, **options), {"pico": [16, 64, 256], "nano": [16, 64, 256]})
    return [claim.holds for claim in claims]


def test_growth_is_read_off_the_decided_optima():
    assert verdicts({"pico": [16, 64, 64], "nano": [None, 16, 64]}) == [True, True, None, True]
    assert verdicts({"pico": [16, 64, 256], "nano": [None, 16, 64]}) == [True, True, True, True]
    assert verdicts({"pico": [64, 64, 64], "nano": [16, 64, 256]}, edge="longest") == [None, False, False, False]
    assert verdicts({"pico": [16, 16, 16], "nano": [16, 64, 256]}) == [True, None, None, False]
    assert verdicts({"pico": [None, None, 64], "nano": [None] * 3}, decided=False) == [None, None, None, None]


def test_what_is_within_the_noise_decides_nothing():
    assert verdicts({"pico": [16, 64, 64], "nano": [None, 16, 64]}, noise=1.5)[:3] == [None, None, None]
    assert verdicts({"pico": [64, 64, 64], "nano": [16, 64, 64]}, noise=1.5) == [None] * 4
    assert verdicts({"pico": [16, 64, 64], "nano": [None, 16, 64]}, runs=2) == [None] * 4


def test_best_contexts_that_were_not_both_measured_decide_no_growth():
    result = scene({"pico": [16, 64, 64], "nano": [None, 16, 64]})
    result.lead = lambda step, pair, other: None if step == 0 else Estimate(1.0, 0.9, 1.1, documents=30, seeds=3)
    claims = context_claims(result, {"pico": [16, 64, 256], "nano": [16, 64, 256]})
    assert [claim.holds for claim in claims] == [True, None, None, None]


@pytest.mark.long
def test_best_pairs_that_differ_by_noise_decide_nothing():
    """Two sizes and two contexts with equal losses but for noise, three seeds: nothing is shown, whatever pairs are best."""
    draw = np.random.default_rng(0)
    for _ in range(5):
        points = [
            SweepPoint(
                f"{size}-{context}-{seed}", size, n, context, seed, step, 8 * step, n * step, 1.0 * step, loss=4 - step / 9,
                standard_error=None, document_targets=(64,) * 8,
                document_nats=tuple(64 * (4 - step / 9) + draw.normal(0, 0.5, 8)),
            )
            for n, size in ((100, "pico"), (200, "nano")) for context in (16, 64) for seed in range(3) for step in (2, 4, 8)
        ]  # fmt: skip
        points = [replace(point, loss=sum(point.document_nats) / 512) for point in points]
        planned = {"pico": [16, 64], "nano": [16, 64]}
        result = Landscape(points, "tokens", planned)
        assert [claim.holds for claim in share_error(context_claims(result, planned))] == [None] * 4


def test_the_lead_of_one_pair_over_another_is_paired_by_document():
    """Documents differ by far more than the pairs; the difference is 0.1 in each, so its interval has no width."""
    nats = 64 * np.array([2.0, 3.0, 4.0, 5.0, 6.0, 7.0])
    points = [
        SweepPoint(
            size, size, n, context, 0, 4, 64, 64.0, 1.0, loss=float(own.sum() / 384), standard_error=None,
            document_targets=(64,) * 6, document_nats=tuple(own),
        )
        for n, size, context, own in ((1, "pico", 16, nats), (2, "nano", 64, nats + 6.4))
    ]  # fmt: skip
    result = Landscape(points, "tokens", {"pico": [16], "nano": [64]})
    lead = result.lead(0, ("pico", 16), ("nano", 64))
    assert lead.value == pytest.approx(0.1) and lead.limits == pytest.approx((0.1, 0.1))
    assert result.lead(0, ("pico", 16), ("nano", 16)) is None


def test_a_best_pair_that_comes_back_shows_no_growth():
    """Also where nothing else was measured at the last budget."""
    result = SimpleNamespace(pairs=[("B", 32), ("A", 32), ("B", 32)])
    assert "cannot be compared" in section_3_optimum._both_grow(result, ["A", "B"]).reason


@pytest.mark.slow
def test_a_sweep_in_miniature(corpus, tmp_path):
    values = {
        "corpus": str(corpus),
        "base": {"model": {"family": "llama"}, "training": {"tokens_per_step": 128, "curve_tokens": 512}},
        "grid": {"model.layers": [1], "data.context": [16, 32], "training.tokens": [512]},
        "measurements": 2,
    }
    measure = validate(OptimalContext, values, "the settings")
    assert len(measure.recipes(tmp_path / "out")) == 2
    outcome = measure.measure(ITEM, tmp_path / "out")
    assert len(outcome.runs) == 2 and all((run / "metrics.jsonl").is_file() for run in outcome.runs)
    assert [row[0] for row in outcome.tables[0].rows] == ["16", "32"]
    assert len(outcome.claims) == 4
