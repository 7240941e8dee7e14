"""The page on intrinsic entropy, its CSV files and its words, from measurements made of numbers."""

import csv
import io
import json
import re

import numpy as np
import pytest

from contextwise.base.errors import ConfigError
from contextwise.reports.page import write_csv_files
from contextwise_papers.intrinsic_entropy import analysis as intrinsic
from contextwise_papers.intrinsic_entropy.analysis import IntrinsicEntropy
from contextwise_papers.intrinsic_entropy.entropy.covariance import RunningCovariance
from contextwise_papers.intrinsic_entropy.page import (
    FIGURES,
    MOST_POINTS,
    csv_files,
    figures_of,
    verdict,
    write_entropy_page,
)
from contextwise_papers.intrinsic_entropy.spectra import THRESHOLDS
from entropy_measurements import WIDTH, measurement, state_of


@pytest.fixture
def entropy(tmp_path):
    return IntrinsicEntropy(measurement(tmp_path, [4, 16, 64, 256, 1024]))


def rows_of(text):
    return list(csv.DictReader(io.StringIO(text)))


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
    sentences = " ".join(verdict(entropy))
    assert "Here, of 11 values of N, it falls at 11, rises at 0" in sentences
    assert "C = 2 [" in sentences and "γ = 0.5 " in sentences and "it is least with 1,024" in sentences


def test_kernel_densities_and_determinants_move_together(entropy):
    kde, whole = entropy.kde_with_own, entropy.entropies[WIDTH]
    assert entropy.directions == WIDTH
    gain = {c: kde[c] - kde[4] for c in entropy.contexts}
    assert np.corrcoef(list(gain.values()), [whole[c] for c in entropy.contexts])[0, 1] > 0.999


def test_every_figure_is_on_the_page_with_its_headline_and_numbers(entropy, tmp_path):
    write_entropy_page(entropy, tmp_path / "page.html", ["contextwise", "measure", "entropy", "runs/a model"])
    page = (tmp_path / "page.html").read_text()
    figures = json.loads(re.search(r'<script type="application/json" id="figures">(.*?)</script>', page).group(1))
    assert set(figures) == set(FIGURES) == set(csv_files(entropy))
    for name, (headline, _) in FIGURES.items():
        assert f'class="plot" id="{name}"' in page and f"<h2>{headline}</h2>" in page
        assert all(trace["meta"]["series"] is not None for trace in figures[name]["data"])
    assert "contextwise measure entropy &#x27;runs/a model&#x27;" in page
    assert "http://" not in re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    drawn = figures["kde_entropy"]["data"][0]  # the source's Figure 10, left: both from the shortest context
    assert drawn["y"] == [entropy.kde[c] - entropy.kde[4] for c in entropy.contexts]
    n = entropy.sizes[0]
    assert drawn["x"] == [entropy.entropies[n][c] - entropy.entropies[n][4] for c in entropy.contexts]
    lines = [shape["y0"] for shape in figures["spectra"]["layout"]["shapes"]]  # Figure 15, left
    assert len(lines) == 6 and set(lines) <= set(THRESHOLDS)
    points = figures["loss"]["data"][0]
    assert points["x"] == [4, 16, 64, 256, 1024]
    assert points["y"] == [entropy.losses[c].value for c in entropy.contexts]
    assert points["error_y"]["array"] == pytest.approx([0.01] * 4 + [0])


def test_csv_files_hold_the_numbers_of_the_figures(entropy, tmp_path):
    written = write_csv_files(csv_files(entropy), tmp_path / "numbers")
    tables = {path.stem: rows_of(path.read_text()) for path in written}
    assert set(tables) == set(FIGURES)
    n, context = entropy.sizes[0], 64
    (row,) = (row for row in tables["kde_entropy"] if (row["series"], row["text"]) == (f"N = {n}", f"{context} tokens"))
    assert float(row["x"]) == entropy.entropies[n][context] - entropy.entropies[n][4]
    assert float(row["y"]) == entropy.kde[context] - entropy.kde[4]
    first = tables["loss"][0]
    assert float(first["low"]) < float(first["y"]) == entropy.losses[4].value < float(first["high"])
    names = [name for name in tables["correlation"][0] if name]
    assert names == entropy.names and float(tables["correlation"][0]["−CE"]) == pytest.approx(1)


def test_two_contexts_make_a_page_without_fits(tmp_path):
    entropy = IntrinsicEntropy(measurement(tmp_path, [4, 64]))
    assert entropy.power is None and not entropy.by_entropy and not entropy.names
    write_entropy_page(entropy, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "A power law has three parameters and needs four contexts or more" in page
    both = {"kde", "kde_entropy", "kde_dimension"}
    assert {"loss", "spectra", "increments", "entropy", "dimension"} | both == set(figures_of(entropy))


def test_one_context_makes_a_page_of_its_spectrum(tmp_path):
    entropy = IntrinsicEntropy(measurement(tmp_path, [64]))
    write_entropy_page(entropy, tmp_path / "page.html")
    assert "increments" not in figures_of(entropy) and "spectra" in figures_of(entropy)
    assert verdict(entropy)[0].endswith("nats with 64 tokens visible, the only context.")


def test_further_estimates_are_on_the_page(tmp_path, monkeypatch):
    monkeypatch.setattr(intrinsic, "further_dimensions", lambda features: {"TwoNN": 7.25 + len(features)})
    entropy = IntrinsicEntropy(measurement(tmp_path, [4, 64]))
    write_entropy_page(entropy, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "dim, TwoNN" in page and page.count("<td>127.2</td>") == 2


def test_a_limit_above_all_losses_is_noted(entropy, tmp_path, monkeypatch):
    assert not any("rise" in note for note in entropy.notes)
    rising = measurement(tmp_path / "rising", [4, 16, 64, 256, 1024])
    monkeypatch.setattr(type(rising), "losses", lambda self: {c: 3 - c**-0.5 for c in rising.contexts})
    notes = IntrinsicEntropy(rising).notes
    assert sum("The losses rise with the context" in note for note in notes) == 1


def test_names_are_escaped(tmp_path):
    entropy = IntrinsicEntropy(measurement(tmp_path, [4, 64], name="<b>x", notes=["<script>alert(1)</script>"]))
    write_entropy_page(entropy, tmp_path / "page.html", ["contextwise", "<i>"])
    page = (tmp_path / "page.html").read_text()
    assert "<b>x" not in page and "<script>alert" not in page and "<i>" not in page


def test_long_spectra_are_thinned_in_figures(tmp_path):
    entropy = IntrinsicEntropy(measurement(tmp_path, [4, 64]))
    wide = {context: np.geomspace(1, 1e-4, 3000) for context in entropy.contexts}
    object.__setattr__(entropy, "spectra", wide)
    x = figures_of(entropy)["spectra"]["data"][0]["x"]
    assert len(x) <= MOST_POINTS and (x[0], x[-1]) == (1, 3000)


def test_paths_that_cannot_be_written_are_refused(entropy, tmp_path):
    with pytest.raises(ConfigError, match="is a folder; give the name of a file"):
        write_entropy_page(entropy, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is a file; give a folder for the CSV"):
        write_csv_files(csv_files(entropy), tmp_path / "file")


def test_the_made_features_have_the_spectrum_meant(tmp_path):
    """Of the helper above: its whitening gives exactly the scales."""
    state = state_of(16, 0.25, np.eye(WIDTH), np.random.default_rng(1))
    running = RunningCovariance(WIDTH)
    running.add(state.kept)
    np.testing.assert_allclose(running.eigenvalues().numpy(), np.exp(-np.arange(WIDTH) * 0.75), rtol=1e-9)
