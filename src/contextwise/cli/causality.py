"""The part of ``contextwise evaluate`` behind ``--causality``: whether a model sees what it must not."""

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextwise.models.causality import Causality


def measured_causality(model: str, dtype: str, device: str) -> "Causality":
    """Load the model, in float32 unless told otherwise: in coarser types small leaks pass for rounding."""
    from contextwise.evaluation.opening import chosen_device, chosen_dtype
    from contextwise.models import load_model
    from contextwise.models.causality import measure_causality

    place = chosen_device(device)
    kind = chosen_dtype("float32" if dtype == "auto" else dtype, place)
    return measure_causality(load_model(model, dtype=kind, device=place))


def print_causality(found: "Causality", as_json: bool) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from contextwise.models.causality.effects import COLUMNS

    if as_json:
        print(json.dumps(found.to_dict(), indent=2))
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name, justify in zip(COLUMNS, ("left", "right", "right", "right", "left"), strict=True):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for row in found.rows():
        table.add_row(*row)
    printed = Console(highlight=False)
    printed.print(found.heading, markup=False)
    printed.print(table)
    for note in found.notes:
        printed.print(note, markup=False)
