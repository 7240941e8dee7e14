"""The context that is best for so much text: the law against its closed form, and a whole measurement in miniature."""

import itertools
import json
import math

import numpy as np
import pytest

from contextwise.base.config import validate
from contextwise.data import prepare_corpus
from contextwise_papers.intrinsic_entropy.figures_4_12_14_optimum import (
    LAW,
    CorpusOptimum,
    Optima,
    best_context_of,
    fit_law,
)
from shipped import an_item

KNOWN = {"E": 1.5, "C": 4.0, "gamma": 0.5, "A": 60.0, "alpha": 0.4, "b": 0.25}


def known_loss(tokens, context):
    k = KNOWN
    return k["E"] + k["C"] / context ** k["gamma"] + k["A"] * context ** k["b"] / tokens ** k["alpha"]


def test_the_law_is_found_again_and_its_optimum_is_that_of_eq_6():
    contexts, sizes = [16, 32, 64, 128, 256, 512, 1024], [1e5, 4e5, 1.6e6, 6.4e6]
    law = fit_law({(n, c): known_loss(n, c) for n in sizes for c in contexts})
    assert law.form is LAW
    for name, value in law.printed().items():
        assert float(value) == pytest.approx(KNOWN[name], rel=0.02), name
    k = KNOWN
    for n in sizes:
        # Eq. 6 with a constant α: A·b·l^(b-1) = γ·C·D^α / l^(γ+1).
        exact = (k["gamma"] * k["C"] * n ** k["alpha"] / (k["A"] * k["b"])) ** (1 / (k["b"] + k["gamma"]))
        assert best_context_of(law, n, (1, 1e5)) == pytest.approx(exact, rel=0.02)
    contexts = [best_context_of(law, n, (1, 1e5)) for n in sizes]
    assert contexts == sorted(contexts) and contexts[0] < contexts[-1]


@pytest.mark.parametrize(
    ("by_seed", "inner", "grows"),
    [
        ([(16, 32)], None, None),
        ([(16, 32), (16, 32)], None, None),
        ([(16, 32), (16, 32), (16, 32)], True, True),
        ([(32, 32), (32, 32), (32, 32)], True, False),
        ([(16, 64), (8, 64), (8, 64)], False, True),
        ([(16, 32), (16, 32), (32, 16)], True, None),
        ([(16, 32), (16, 32), (16, 64)], None, True),
        ([(16, 32), (16, 32), (16, math.nan)], None, None),
    ],
)
def test_a_moving_optimum_is_decided_where_the_seeds_agree(by_seed, inner, grows):
    """(100, 200) training tokens have their lowest loss at these contexts, in each seed."""
    contexts = [8, 16, 32, 64]
    losses = {
        (n, c): [abs(math.log2(c / best[index])) for best in by_seed]
        for index, n in enumerate((100, 200))
        for c in contexts
    }
    optima = Optima(losses, [100, 200], contexts)
    if not any(map(math.isnan, itertools.chain(*by_seed))):
        assert optima.best_of_seeds == dict(zip((100, 200), map(list, zip(*by_seed, strict=True)), strict=True))
    assert optima.inner("text", 2).holds is inner
    assert optima.grows("text").holds is grows


@pytest.fixture
def measure(tmp_path):
    lines = [
        json.dumps({"text": " ".join(f"chapter {i} line {j * i % 17};" for j in range(10 + i))}) for i in range(60)
    ]
    (tmp_path / "text.jsonl").write_text("\n".join(lines))
    training = {
        "tokens_per_step": 256, "steps": 12, "evaluate_every": 3, "evaluation_tokens": 512, "patience": 2,
        "curve_tokens": 1000, "schedule": "constant", "learning_rate": 1e-2, "save_every": 100,
    }  # fmt: skip
    values = {
        "name": "small",
        "corpus": str(prepare_corpus(tmp_path / "text.jsonl", "bytes", tmp_path / "corpus", validation=0.2).path),
        "recipe": {"model": {"family": "llama", "layers": 1, "width": 16, "heads": 2}, "training": training},
        "sizes": [1000, 4000],
        "contexts": [8, 32, 128],
        "seeds": [0, 1],
    }
    return validate(CorpusOptimum, values, "the settings")


@pytest.mark.slow
def test_a_measurement_in_miniature(measure, tmp_path):
    folder = tmp_path / "runs"
    outcome = measure.measure(an_item(), folder)
    runs = sorted((folder / "runs").iterdir())
    assert len(runs) == 2 * 3 * 2
    # The table has the lowest best-context loss along each run, averaged over its seeds.
    for n in measure.sizes:
        for c in measure.contexts:
            lowest = []
            for run in measure.run_set(folder).folders("small", {"data.tokens": n, "data.context": c}):
                curves = run.metrics("curve")
                assert {row["targets"] for row in curves} and curves[0]["context"] == c
                lowest.append(min(row["best_context_loss"] for row in curves))
            assert outcome.figures["best_context_loss"][str(n)][str(c)] == pytest.approx(np.mean(lowest))
        losses = outcome.figures["best_context_loss"][str(n)]
        assert losses[str(outcome.figures["optima"][n])] == min(losses.values())
    assert [len(table.rows) for table in outcome.tables] == [3, 3, 3, 2]
    # More text is better, whatever the context.
    for c in ("8", "32", "128"):
        table = outcome.figures["best_context_loss"]
        assert table["4000"][c] < table["1000"][c] + 0.05
    before = {run: (run / "summary.json").stat().st_mtime_ns for run in runs}
    measure.measure(an_item(), folder)  # nothing is trained again
    assert before == {run: (run / "summary.json").stat().st_mtime_ns for run in runs}
