"""The figures of intrinsic entropy from one measurement: verdicts on made-up laws, and a whole measurement in miniature."""

from types import SimpleNamespace

import numpy as np
import pytest

from contextwise.base.config import validate
from contextwise.base.errors import ConfigError
from contextwise.base.estimates import Estimate
from contextwise.data import prepare_corpus
from contextwise_papers.claims import Claim, exact
from contextwise_papers.intrinsic_entropy import figures_1_to_15_real_models as figures
from contextwise_papers.intrinsic_entropy.figures_1_to_15_real_models import (
    RealEntropy,
    context_view,
    dimension_view,
    entropy_view,
    regimes_view,
    spectra_view,
)
from contextwise_papers.intrinsic_entropy.fits import correlations, fit_line, fit_power
from shipped import an_item
from small import write_documents

CONTEXTS = [8, 16, 32, 64, 128, 256]


def law(noise=0.0):
    """A measurement of a model that follows the document: CE = 3 + 8/l^0.8, linear in S_N and in the dimension."""
    draw = np.random.default_rng(0)
    means = {c: 3 + 8 / c**0.8 + noise * draw.normal() for c in CONTEXTS}
    entropies = {n: {c: -n * (3 + 8 / c**0.8) for c in CONTEXTS} for n in (2, 10, 40)}
    dimensions = {0.01: {c: round(1000 - 100 * (3 + 8 / c**0.8)) for c in CONTEXTS}, 0.2: dict.fromkeys(CONTEXTS, 1.0)}
    names, matrix = correlations(
        {"−CE": {c: -v for c, v in means.items()}, **{f"S_{n}": s for n, s in entropies.items()}}
    )
    # All directions but the first grow with context by one factor.
    growth = {c: 8 - 8 / c**0.8 for c in CONTEXTS}
    spectra = {c: np.array([1e4, *(np.geomspace(10, 1, 39) * growth[c])]) for c in CONTEXTS}
    return SimpleNamespace(
        contexts=CONTEXTS,
        sizes=[2, 10, 40],
        losses={c: Estimate(v, v - 0.01, v + 0.01) for c, v in means.items()},
        differences={c: Estimate(means[c] - means[256], means[c] - means[256] - 0.001, means[c] - means[256] + 0.001)
                     for c in CONTEXTS[:-1]},
        entropies=entropies,
        dimensions=dimensions,
        spectra=spectra,
        power=fit_power(means),
        by_entropy={n: fit_line(s, means) for n, s in entropies.items()},
        by_dimension={0.01: fit_line(dimensions[0.01], means)},
        names=names,
        correlation=matrix,
        measurement=SimpleNamespace(summary={"width": 40, "samples": 10_000}, losses=lambda: means),
        least_subspace_correlation=lambda: float(matrix[1:, 1:].min()),
    )  # fmt: skip


def test_a_model_that_follows_the_document_is_told_so():
    entropy = law()
    for view in (entropy_view, context_view, spectra_view, dimension_view):
        _, claims, plots = view(entropy)
        assert [claim.holds for claim in claims] == [True] * len(claims), claims
        assert plots
    assert "γ 0.800" in context_view(entropy)[1][0].evidence


def decaying(rates, slope=0.002, grows=True):
    """Eigenvalues γ(l) exp(-i α_l) of 800 channels; a loss that falls by ``slope`` with the entropy of the regime.

    Directions 98 to 781 are in the regime: m = 684.
    """
    index, growth = np.arange(800), {c: 1.25 - 2 / c if grows else 1.0 for c in CONTEXTS}
    spectra = {c: np.append(30.0, (10 * g * np.exp(-index * rates[c]))[1:]) for c, g in growth.items()}
    losses = {c: Estimate(3 - slope * 684 * float(np.log(g))) for c, g in growth.items()}
    return SimpleNamespace(spectra=spectra, losses=losses, contexts=CONTEXTS)


def seeds(spread=1e-3, **kwargs):
    draw = np.random.default_rng(0)
    alphas = [0.01 * (1 + spread * draw.normal()) for _ in range(3)]
    return [decaying({c: alpha * (1 + spread * draw.normal()) for c in CONTEXTS}, **kwargs) for alpha in alphas]


def test_the_slope_over_the_dimension_is_the_one_that_follows_from_the_spectra():
    one = decaying(dict.fromkeys(CONTEXTS, 0.01))
    tables, claims, _ = regimes_view([one])
    # One model has no interval of γ(l).
    assert [claim.holds for claim in claims] == [True, None, True], claims
    assert "α = 0.01000" in claims[0].evidence and "s = m α = 6.840" in tables[1].title
    # Decays that differ by context.
    other = decaying({c: 1 / (60 + 15 * k) for k, c in enumerate(CONTEXTS)})
    assert regimes_view([other])[1][0].holds is False
    alike = decaying(dict.fromkeys(CONTEXTS, 0.01), grows=False)
    assert [claim.holds for claim in regimes_view([alike])[1][1:]] != [True, True]


def test_the_regimes_of_several_seeds_are_decided_by_the_spread_between_them():
    tables, claims, _ = regimes_view(seeds(1e-4))
    assert [claim.holds for claim in claims] == [True, True, True], claims
    assert "[" in tables[0].rows[0][3] and "mean of 3 seeds" in tables[0].title
    # One seed whose decay is another: no verdict for a mean that it moves.
    mixed = [*seeds(1e-4)[:2], decaying({c: 0.01 * (1 + 0.3 * (c == 64)) for c in CONTEXTS})]
    assert regimes_view(mixed)[1][0].holds is None


def test_a_loss_that_scatters_about_the_line_leaves_it_open_or_denies_it():
    _, claims, _ = entropy_view(law(noise=0.3))
    assert claims[0].holds is not True
    entropy = law()
    entropy.by_entropy = {
        n: fit_line(s, {c: -v.value for c, v in entropy.losses.items()}) for n, s in entropy.entropies.items()
    }
    _, claims, _ = entropy_view(entropy)
    assert claims[0].holds is False


def test_uneven_growth_and_shrinking_are_denied_and_no_power_law_leaves_it_open():
    uneven, shrinking, without = law(), law(), law()
    uneven.spectra[256][1:20] *= 8
    shrinking.spectra = dict(zip(CONTEXTS, reversed(shrinking.spectra.values()), strict=True))
    without.power = None
    assert [claim.holds for claim in spectra_view(uneven)[1]] == [True, False]
    assert [claim.holds for claim in spectra_view(shrinking)[1]] == [False, False]
    assert context_view(without)[1][0].holds is None


def test_a_small_model_refutes_nothing():
    claims = [Claim("the law", holds, "R² 0.5") for holds in (True, False, None)]
    kept = [claim.without_refutation("the document does not speak of it") for claim in claims]
    assert [claim.holds for claim in kept] == [True, None, None]
    assert kept[1].evidence.endswith("does not speak of it: R² 0.5")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    text = write_documents(folder / "text.jsonl", 60)
    return str(prepare_corpus(text, "bytes", folder / "corpus", validation=0.3).path)


def settings(**changes):
    values = {
        "show": "entropy",
        "contexts": [2, 4, 8, 16],
        "samples": 60,
        "kept": 50,
        "recipe": {
            "data": {"context": 16},
            "model": {"family": "llama", "layers": 1, "width": 16, "heads": 2},
            "training": {"steps": 4, "tokens_per_step": 64, "learning_rate": 1e-2, "evaluation_tokens": 128},
        },
    }
    return values | changes


@pytest.mark.long
def test_all_figures_are_of_one_measurement_in_miniature(corpus, tmp_path):
    made = set()
    regimes = validate(RealEntropy, settings(show="regimes", seeds=[0, 1], corpus=corpus), "the settings")
    assert len(regimes.measure(an_item(), tmp_path / "several").runs) == 2
    (planned, *_) = regimes.passes(tmp_path / "several")
    assert planned.flops == 2 * 2 * planned.parameters * 60 * 30
    for show in ("entropy", "context", "spectra", "density", "dimension"):
        measure = validate(RealEntropy, settings(show=show, corpus=corpus), "the settings")
        outcome = measure.measure(an_item(), tmp_path / "out")
        assert outcome.tables and outcome.claims and outcome.plots
        (run,) = outcome.runs
        assert run.parent == tmp_path / "out/runs" and run.name.startswith("model-s0-")
        # Written once: the later figures read it.
        made.add((run / "evaluation" / outcome.figures["measurement"] / "summary.json").stat().st_mtime_ns)
    assert len(made) == 1
    assert measure.tokens_read() == 60 * 30
    (planned,) = measure.passes(tmp_path / "out")
    assert planned.flops == 2 * planned.parameters * 60 * 30


def test_a_model_that_is_given_needs_no_training(corpus, tmp_path, monkeypatch):
    first = validate(RealEntropy, settings(corpus=corpus), "the settings")
    run = first.subject(tmp_path / "one")
    given = validate(RealEntropy, settings(corpus=corpus, model=run, parameters=10), "the settings")
    assert given.recipes(tmp_path / "two") == []
    outcome = given.measure(an_item(), tmp_path / "two")
    assert outcome.runs == [] and not (tmp_path / "two/runs").exists()
    # A claim that holds does so for a model that is given, and is open for one that was trained here with one seed.
    monkeypatch.setitem(figures.VIEWS, "entropy", lambda *_: ([], [Claim.of("it holds", exact(True, 1.0))], []))
    (held,), (open_,) = (each.measure(an_item(), tmp_path / to).claims for each, to in ((given, "two"), (first, "one")))
    assert held.holds is True and open_.holds is None and "one seed decides nothing" in open_.evidence
    assert given.passes(tmp_path / "two")[0].flops == 2 * 10 * 60 * 30


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"recipe": None}, "neither model nor recipe is given"),
        ({"contexts": [4, 4, 8, 16]}, "give different lengths"),
        ({"show": "figure1"}, "show is 'figure1'"),
        ({"seeds": [0, 1]}, "seeds are several, but show: entropy is of one model"),
    ],
)
def test_a_wrong_setting_gets_one_sentence(changes, words):
    with pytest.raises(ConfigError, match=words):
        validate(RealEntropy, settings(**changes), "the settings")


@pytest.mark.parametrize(
    ("medians", "holds"),
    [
        ([0.0, 0.1, 0.2, 0.3], True),
        ([0.0, 0.2, 0.15, 0.3], True),  # a fall within chance
        ([0.0, 0.2, 0.15, 0.1], False),  # two of them are more than chance
        ([0.0, 0.02, 0.01, 0.04], None),
    ],
)
def test_eigenvalues_that_rise_and_fall_again_do_not_grow(medians, holds):
    assert figures._grows(medians, 0.06).holds is holds
