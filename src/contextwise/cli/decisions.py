"""The verb ``contextwise decide``."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, cast

from typer import Argument, Option

from contextwise.base.errors import ConfigError
from contextwise.base.files import exclusive
from contextwise.cli.common import AsJson, show, show_json, show_line

PANEL = "Decide"


def decide(
    losses: Annotated[
        list[str] | None,
        Argument(
            metavar="LOSSES",
            help="Files, or folders of them, with a row for each held-out document of a run (JSON Lines, CSV, Parquet): arm, "
            "seed, document, tokens, nats. ARM:SEED=PATH labels one that names no arm and seed.",
        ),
    ] = None,
    reference: Annotated[
        str | None, Option(help="The arm that the others are compared to.", show_default="the first")
    ] = None,
    margin: Annotated[float, Option(help="The smallest difference that matters, in the unit of the losses.")] = 0.01,
    confidence: Annotated[float, Option(help="Confidence level of all intervals together.")] = 0.95,
    documents: Annotated[
        str, Option(help="Decide about these held-out documents (fixed) or any like them (random).")
    ] = "fixed",
    out: Annotated[
        Path | None,
        Option(help="Folder that keeps what was looked at, and its page.", show_default="decisions/vs-REFERENCE"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Decide from the losses of any training script whether one way to train beats another.

    Runs are paired by seed and document. The interval over seeds may be looked
    at after every seed: add the files of further seeds and run it again.
    """
    if not losses:
        raise ConfigError("there are no losses; give files with a row for each held-out document of a run")
    from contextwise import decisions
    from contextwise.base.estimates import Documents
    from contextwise.decisions.rows import read_losses

    read = read_losses(losses)
    from contextwise.reports.decided import decision_page, decision_parts  # which imports plotly

    decision = decisions.decide(
        read,
        reference,
        margin=margin,
        confidence=confidence,
        documents=cast(Documents, documents),
        out=out or Path("decisions") / decisions.default_name(read, reference),
    )
    assert decision.path is not None
    page = decision.path / "report.html"
    with exclusive(decision.path, "the decision", wait=True):
        if decisions.is_newest(decision):  # else another process has looked again, and writes the page
            decision_page(decision, shlex.join(["contextwise", *sys.argv[1:]])).write(page)
    if as_json:
        show_json(decision)
        return
    show(*decision_parts(decision))
    show_line(f"page: {page}")
