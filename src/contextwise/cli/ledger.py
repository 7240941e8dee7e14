"""``contextwise ledger``: what runs under different objectives read, predicted and cost."""

from pathlib import Path
from typing import Annotated

import typer


def ledger(
    runs: Annotated[list[str], typer.Argument(help="Runs.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option(help="Write the ledger to this JSON file.", show_default=False)
    ] = None,
) -> None:
    """List objectives side by side: tokens read and predicted, FLOPs, own losses.

    The losses are each objective's own, at equal tokens and at equal FLOPs.
    """
    from rich.console import Console

    from contextwise.comparison.ledger import ledger
    from contextwise.comparison.tables import ledger_table

    result = ledger(runs)
    printed = Console(highlight=False)
    printed.print(ledger_table(result))
    if out is not None:
        result.write(out)
        printed.print(f"written to {out}", markup=False, soft_wrap=True)
