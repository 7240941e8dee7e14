"""What a finished measurement prints."""

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType


def print_measured(summary: dict[str, Any], as_json: bool, table: "RenderableType", where: str) -> None:
    """Print the table and where the whole was written, or the summary as JSON."""
    from rich.console import Console

    if as_json:
        print(json.dumps(summary, indent=2, ensure_ascii=False))
        return
    printed = Console(highlight=False)
    printed.print(table)
    printed.print(f"written to {where}", markup=False, soft_wrap=True)
