"""The page on intrinsic entropy and its words, from measurements made of numbers."""

import json
import re

import numpy as np
import pytest

from contextwise_papers.intrinsic_entropy.analysis import IntrinsicEntropy
from contextwise_papers.intrinsic_entropy.figures_1_to_15_real_models import MOST_POINTS, eigenvalues
from contextwise_papers.intrinsic_entropy.page import claims, measures, write_entropy_page
from contextwise_papers.intrinsic_entropy.spectra import THRESHOLDS
from entropy_measurements import WIDTH, measurement


@pytest.fixture
def entropy(tmp_path):
    return IntrinsicEntropy(measurement(tmp_path, [4, 16, 64, 256, 1024]))


COMMAND = ["contextwise", "measure", "entropy", "runs/a model"]


def page_of(entropy, folder, command=COMMAND):
    """The text of a page, and the figures in it."""
    write_entropy_page(entropy, folder / "page.html", command)
    page = (folder / "page.html").read_text()
    return page, json.loads(re.search(r'<script type="application/json" id="figures">(.*?)</script>', page).group(1))


def test_the_analysis_finds_what_was_put_in(entropy):
    growth = {c: 0.5 - c**-0.5 for c in entropy.contexts}
    for n, values in entropy.entropies.items():
        for context, value in values.items():
            # ln(λ_i / λ_1) = −(i − 1)(1 − growth)
            assert value == pytest.approx(-(1 - growth[context]) * n * (n - 1) / 2, abs=1e-6)
    for context, value in entropy.dimensions[THRESHOLDS[0]].items():
        exact = np.exp(-np.arange(WIDTH) * (1 - growth[context]))
        assert value == (exact >= 0.002).sum()
    # CE = 3 − 2 growth is linear in every S_N: slope −2 / (N (N − 1) / 2).
    for n, fit in entropy.by_entropy.items():
        assert fit.slope.value == pytest.approx(-4 / (n * (n - 1)), rel=1e-3)
        assert fit.r_squared == pytest.approx(1, abs=1e-6)
    assert entropy.power is not None and entropy.power.exponent.value == pytest.approx(0.5, rel=1e-3)
    assert entropy.least_subspace_correlation() == pytest.approx(1, abs=1e-6)
    sentences = claims(entropy)
    assert any(s.startswith("Holds: the loss falls as the context grows, as C0 + C/l^γ (R² 1.0") for s in sentences)
    assert any(
        s.startswith("Holds: at every shorter context the loss is above that at 1,024 tokens") for s in sentences
    )
    assert any("with a correlation above 0.97" in s and "least correlation 1.000" in s for s in sentences)


def test_kernel_densities_and_determinants_move_together(entropy):
    kde, whole = entropy.kde_with_own, entropy.entropies[WIDTH]
    assert entropy.directions == WIDTH
    gain = {c: kde[c] - kde[4] for c in entropy.contexts}
    assert np.corrcoef(list(gain.values()), [whole[c] for c in entropy.contexts])[0, 1] > 0.999


def test_figures_are_on_the_page_with_their_numbers(entropy, tmp_path):
    page, figures = page_of(entropy, tmp_path)
    assert all(f'class="plot" id="{name}"' in page for name in figures)
    for title in (
        "Loss against intrinsic entropy",
        "Loss against context",
        "Their growth",
        "Kernel density against S_N",
    ):
        assert f"<h2>{title}</h2>" in page
    assert all(sentence.split(" (")[0] in page for sentence in claims(entropy))
    assert "contextwise measure entropy &#x27;runs/a model&#x27;" in page
    assert "http://" not in re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    drawn = [trace for figure in figures.values() for trace in figure["data"]]
    losses = [entropy.losses[c].value for c in entropy.contexts]
    assert any(trace["x"] == [4, 16, 64, 256, 1024] and trace["y"] == losses for trace in drawn)
    n = entropy.sizes[0]  # S_N is counted from its value at the shortest context
    since = [entropy.entropies[n][c] - entropy.entropies[n][4] for c in entropy.contexts]
    assert any(trace["x"] == since and trace["y"] == losses for trace in drawn)


def test_the_table_by_context_has_the_numbers_of_the_analysis(entropy):
    table = measures(entropy, 2, 2)
    names = [head.title.replace("\n", " ") for head in table.heads]
    numbers = {
        name: dict(zip(entropy.contexts, column, strict=True)) for name, *column in zip(names, *table.rows, strict=True)
    }
    assert numbers.pop("context") == {context: context for context in entropy.contexts}
    assert numbers.pop("loss") == {context: entropy.losses[context].value for context in entropy.contexts}
    assert numbers.pop("KDE") == entropy.kde
    assert [name.split("=")[0] for name in numbers] == ["S, N", "S, N", "dim, θ", "dim, θ"]
    *sizes, few, many = numbers
    assert all(numbers[name] == entropy.entropies[int(name.split("=")[1])] for name in sizes)
    assert all(numbers[name] in entropy.dimensions.values() for name in (few, many)) and numbers[few] != numbers[many]


def test_two_contexts_make_a_page_without_fits(tmp_path):
    entropy = IntrinsicEntropy(measurement(tmp_path, [4, 64]))
    assert entropy.power is None and not entropy.by_entropy and not entropy.names
    page, figures = page_of(entropy, tmp_path)
    assert "A power law has three parameters and needs four contexts or more" in page and len(figures) > 4


def test_one_context_makes_a_page_of_its_spectrum(tmp_path):
    entropy = IntrinsicEntropy(measurement(tmp_path, [64]))
    page, figures = page_of(entropy, tmp_path)
    assert "<h2>Relative eigenvalues</h2>" in page and len(figures) == 1 and not claims(entropy)


def test_a_limit_above_all_losses_is_noted(entropy, tmp_path, monkeypatch):
    assert not any("rise" in note for note in entropy.notes)
    rising = measurement(tmp_path / "rising", [4, 16, 64, 256, 1024])
    monkeypatch.setattr(type(rising), "losses", lambda self: {c: 3 - c**-0.5 for c in rising.contexts})
    found = IntrinsicEntropy(rising)
    assert sum("The losses rise with the context" in note for note in found.notes) == 1
    assert any(each.startswith("Does not hold: the loss falls as the context grows") for each in claims(found))


def test_long_spectra_are_thinned_in_figures(tmp_path):
    entropy = IntrinsicEntropy(measurement(tmp_path, [4, 64]))
    wide = {context: np.geomspace(1, 1e-4, 3000) for context in entropy.contexts}
    object.__setattr__(entropy, "spectra", wide)
    x = [point["x"] for point in eigenvalues(entropy).series["4 tokens"]]
    assert len(x) <= MOST_POINTS and (x[0], x[-1]) == (1, 3000)
