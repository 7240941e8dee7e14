"""``contextwise compare-curves``: how much of their contexts models use, side by side."""

from pathlib import Path
from typing import Annotated

import typer


def compare_curves(
    runs: Annotated[
        list[str], typer.Argument(help="Runs, or folders of contextwise curve.", show_default=False)
    ],
    out: Annotated[
        Path | None, typer.Option(help="Write the comparison to this JSON file.", show_default=False)
    ] = None,
) -> None:
    """Compare context curves: average and best-context loss.

    The models may have different training contexts; contextwise curve has
    measured them on the same documents.
    """
    from rich.console import Console

    from contextwise.base.files import write_json
    from contextwise.comparison.curves import compare_curves, open_curves
    from contextwise.comparison.tables import curves_table

    result = compare_curves(open_curves(runs))
    printed = Console(highlight=False)
    printed.print(curves_table(result))
    printed.print(
        "Below a loss: minus the first model's, with its 95% interval over documents. Lower bins: of the numbers of visible "
        "tokens that both have, so many at which it is lower than the first."
    )
    if out is not None:
        write_json(out, [curve.to_dict() for curve in result], "the comparison")
        printed.print(f"written to {out}", markup=False, soft_wrap=True)
