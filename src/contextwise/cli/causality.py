"""``contextwise causality``: whether a model sees what it must not."""

import json

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from contextwise.cli.options import AsJson, Device, Dtype, Model


def causality(
    model: Model, dtype: Dtype = "float32", device: Device = "auto", as_json: AsJson = False
) -> None:
    """Check that later tokens, padding, packed neighbours and the cache do not reach the past.

    Measured on random tokens, in float32 by default: in coarser types small
    leaks pass for rounding. Exit status 1 if there is a leak.
    """
    from contextwise.evaluation.kernel import Subject
    from contextwise.models.causality import measure_causality
    from contextwise.models.causality.effects import COLUMNS

    result = measure_causality(Subject(model, dtype=dtype, device=device).model)
    if as_json:
        print(json.dumps(result.to_dict(), indent=2))
    else:
        table = Table(*COLUMNS, box=box.SIMPLE_HEAD, pad_edge=False)
        for column in table.columns[1:-1]:
            column.justify = "right"
        for row in result.rows():
            table.add_row(*row)
        printed = Console(highlight=False)
        printed.print(result.heading, markup=False)
        printed.print(table)
        for note in result.notes:
            printed.print(note, markup=False)
    if not result.causal:
        raise typer.Exit(1)
