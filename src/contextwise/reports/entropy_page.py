"""The page on intrinsic entropy: the source's figures for one model, with their numbers, in a file that opens from disk."""

import base64
import shlex
from importlib import metadata
from pathlib import Path
from typing import Any

from contextwise.analysis.intrinsic import IntrinsicEntropy
from contextwise.base.errors import ConfigError
from contextwise.base.files import atomic_write
from contextwise.reports.entropy_figures import figures_of
from contextwise.reports.entropy_tables import csv_files, fits_csv, line_rows, measures, verdict
from contextwise.reports.rendering import render
from contextwise.reports.tables import environment_facts, text_table

FIGURES = {
    "loss": (
        "Loss against visible context",
        "The same tokens at every context. Bars: 95% intervals over documents of the difference to the longest context, which "
        "is what they tell apart. Line: the fit.",
    ),
    "spectra": (
        "Spectra",
        "Eigenvalues of the covariance of the features, each over the largest. Dotted lines: some thresholds θ of the "
        "intrinsic dimension.",
    ),
    "increments": (
        "How the spectrum changes with context",
        "By what share each relative eigenvalue lies above its value at the shortest context.",
    ),
    "entropy": (
        "Loss against intrinsic entropy",
        "S_N is the sum of ln(λ_i / λ_1) over the first N eigenvalues; a point for each context, joined in their order. Each "
        "S_N is counted from its value at the shortest context.",
    ),
    "lines": (
        "Which subspaces go with the loss",
        "Correlation over contexts of −CE with S_N, for every N. The source finds values near one.",
    ),
    "dimension": (
        "Loss against intrinsic dimension",
        "The dimension is the number of eigenvalues with λ_i / λ_1 ≥ θ; a point for each context.",
    ),
    "kde": (
        "Loss against Gaussian-KDE entropy",
        "Entropy of a Gaussian kernel density over the leading directions. Where each point counts in its own density, as in "
        "the source, the estimate comes close to the log-determinant of the covariance in many dimensions.",
    ),
    "kde_entropy": (
        "Gaussian-KDE entropy against intrinsic entropy",
        "Two estimates of one thing, at each context; both counted from the shortest context. Each point is left out of its "
        "own density.",
    ),
    "kde_dimension": (
        "Gaussian-KDE entropy against intrinsic dimension",
        "The same KDE entropy over the number of eigenvalues with λ_i / λ_1 ≥ θ.",
    ),
    "correlation": (
        "Correlations between subspaces",
        "Pearson's correlations over contexts: −CE, S_N for some N, and the KDE entropy.",
    ),
}
"""Id of its place -> headline and caption."""


def write_entropy_page(found: IntrinsicEntropy, path: Path, command: list[str] | None = None) -> None:
    """Write the page.

    Args:
        command: the words that made the measurement, to be shown.

    Raises:
        ConfigError: ``path`` is a folder.
        DataError: the file cannot be written.
    """
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; give the name of a file for the page")
    summary = found.measurement.summary
    figures, tables = figures_of(found), csv_files(found)
    head, rows = measures(found, sizes=3, thresholds=3, further=True)
    content = {
        "title": f"Intrinsic entropy of {summary['name']}",
        "subtitle": _subtitle(summary),
        "verdict": verdict(found),
        "measures": text_table("By visible context. Losses and entropies in nats.", head, rows),
        "fits": text_table(
            "The loss as a line over each measure: nats per nat of entropy, or per dimension.",
            ["loss against", "slope", "95% interval", "R²"],
            line_rows(found),
        ),
        "sections": [
            {"id": name, "headline": headline, "caption": caption, "csv": _data_uri(tables[name])}
            for name, (headline, caption) in FIGURES.items()
            if name in figures
        ],
        "notes": [*found.notes, *_standing_notes(found)],
        "command": shlex.join(command) if command else None,
        "environment": environment_facts(summary["environment"]),
        "version": metadata.version("contextwise"),
    }
    atomic_write(path, render("entropy", content, figures), "the page")


def write_csv(found: IntrinsicEntropy, folder: Path) -> list[Path]:
    """Write the CSV of each figure into a folder, and ``fits.csv``.

    Raises:
        ConfigError: ``folder`` is a file.
        DataError: a file cannot be written.
    """
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file; give a folder for the CSV files with --csv")
    written = []
    for name, text in {**csv_files(found), "fits": fits_csv(found)}.items():
        written.append(folder / f"{name}.csv")
        atomic_write(written[-1], text, "the CSV file")
    return written


def _subtitle(summary: dict[str, Any]) -> str:
    layer = (
        "what the vocabulary head reads" if summary["layer"] == "last" else f"hidden state {summary['layer']}"
    )
    corpus = Path(summary["corpus"]["path"]).name
    return (
        f"{summary['samples']:,} tokens of {summary['documents']:,} documents ({corpus}, split {summary['corpus']['split']}), "
        f"{summary['width']:,} channels of {layer}, {summary['dtype']}, covariances "
        f"{'centred' if summary['centred'] else 'not centred'}"
    )


def _standing_notes(found: IntrinsicEntropy) -> list[str]:
    notes = [
        "Intervals of fits come from the scatter of the contexts about the fit; the losses of neighbouring contexts are of the "
        "same tokens and so not independent.",
        "A covariance says nothing of the shape of a cloud of features: S_N is its entropy only as far as it is Gaussian.",
    ]
    if found.kde:
        notes.append(
            f"The kernel density is over {found.directions:,} leading directions of {found.measurement.summary['kept']:,} "
            "features. Its values are biased, and more so in more dimensions; differences between contexts are what to read."
        )
    return notes


def _data_uri(text: str) -> str:
    return f"data:text/csv;base64,{base64.b64encode(text.encode()).decode()}"
