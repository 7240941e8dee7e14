"""Page and terminal report of a measurement of intrinsic entropy: the document's figures and claims, for one model."""

import shlex
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from contextwise.base.tables import spread
from contextwise.report import Column, Page, Section, Table, terminal
from contextwise.reports import page
from contextwise_papers.claims import VERDICTS
from contextwise_papers.intrinsic_entropy.analysis import IntrinsicEntropy
from contextwise_papers.intrinsic_entropy.figures_1_to_15_real_models import VIEWS, View, eigenvalues
from contextwise_papers.page import sections_of

NOTES = (
    "Intervals of fits come from the scatter of the contexts about the fit; the losses of neighbouring contexts are of the "
    "same tokens and so not independent.",
    "A covariance does not determine the shape of a distribution: S_N is the entropy of the features only if it is Gaussian.",
    "The values of the kernel density are biased, and more so in more dimensions: read their differences between contexts.",
)


def write_entropy_page(entropy: IntrinsicEntropy, path: Path, command: list[str]) -> None:
    """Write the page (:meth:`~contextwise.reports.page.Page.write`); ``command``: the command line that made it."""
    summary = entropy.measurement.summary
    by_context = measures(entropy, 3, 3, "By visible context. Losses and entropies in nats.")
    sections = [Section("Measures", [by_context])]
    for tables, _, plots in _views(entropy):
        sections += sections_of(tables, plots, first=len(sections))
    made = [page.commands([shlex.join(command)])]
    made.append(page.details("Environment", page.facts(page.environment_facts(summary["environment"]))))
    sections += [Section("Notes", [page.bullets([*entropy.notes, *NOTES])]), Section("How it was made", made)]
    title, settings, corpus = f"Intrinsic entropy of {summary['name']}", summary["settings"], summary["corpus"]
    layer = "what the vocabulary head reads" if settings["layer"] == "last" else f"hidden state {settings['layer']}"
    subtitle = (
        f"{summary['samples']:,} tokens of {summary['documents']:,} documents ({Path(corpus['path']).name}, split "
        f"{corpus['split']}), {summary['width']:,} channels of {layer}, {summary['dtype']}"
    )
    Page(title, sections, subtitle, claims(entropy), __file__).write(path)


def terminal_report(entropy: IntrinsicEntropy) -> RenderableType:
    """The table by context, the claims and the notes, for 80 columns."""
    summary = entropy.measurement.summary
    heading = (
        f"{summary['model']} on {summary['label']}: {summary['samples']:,} tokens of {summary['documents']:,} documents, each "
        f"predicted from the nearest tokens only; {summary['width']:,} channels."
    )
    notes = (f"Note: {note}" for note in entropy.notes)
    return terminal(heading, measures(entropy, 2, 2), *claims(entropy), *notes)


def claims(entropy: IntrinsicEntropy) -> list[str]:
    """The document's claims with their verdicts for this model, a sentence each."""
    every = [claim for _, of_view, _ in _views(entropy) for claim in of_view]
    evidence = [f" ({claim.evidence})." if claim.evidence else "." for claim in every]
    return [f"{VERDICTS[c.holds].capitalize()}: {c.text}{more}" for c, more in zip(every, evidence, strict=True)]


def measures(entropy: IntrinsicEntropy, sizes: int, thresholds: int, title: str = "") -> Table:
    """The table by context: the loss, S_N for some N, the dimension at some thresholds, the KDE entropy."""
    some_n, some_theta = spread(entropy.sizes, sizes), spread(spread(list(entropy.dimensions), 6), thresholds)
    columns: dict[Column, dict[int, Any]] = {
        Column("context", "integer", align="right"): {c: c for c in entropy.contexts},
        Column("loss", "estimate", ".4f"): {c: entropy.losses[c].value for c in entropy.contexts},
        **{Column(f"S,\nN={n}", "estimate", ".2f"): entropy.entropies[n] for n in some_n},
        **{Column(f"dim,\nθ={t:.2g}", "estimate", ".0f"): entropy.dimensions[t] for t in some_theta},
        **({Column("KDE", "estimate", ".2f"): entropy.kde} if entropy.kde else {}),
    }
    rows = [[values.get(context) for values in columns.values()] for context in entropy.contexts]
    return Table(title, list(columns), rows)


def _views(entropy: IntrinsicEntropy) -> list[View]:
    """Tables, claims and plots of Figures 1, 2, 3, 10 and 15; of one context, its spectrum alone."""
    if len(entropy.contexts) < 2:
        return [([], [], [eigenvalues(entropy)])]
    return [view(entropy) for view in VIEWS.values()]
