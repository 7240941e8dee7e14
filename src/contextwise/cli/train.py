"""``contextwise train``."""

from pathlib import Path
from typing import Annotated

import typer

from contextwise.cli.errors import first_process


def train(
    recipe: Annotated[
        Path,
        typer.Argument(help="A YAML file; its settings are listed in the reference.", show_default=False),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A setting in place of the recipe's: --set training.steps=500. Repeatable.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The run folder.", show_default="runs/NAME-seedN"),
    ] = None,
) -> None:
    """Train the model of a recipe; run the same command again to resume.

    Several processes: torchrun --nproc-per-node 2 -m contextwise train RECIPE
    """
    from contextwise.training import load_recipe

    loaded = load_recipe(recipe, settings or [], out)  # before torch is imported, which takes seconds
    from contextwise.training import train as train_model

    run = train_model(loaded)
    if first_process():
        print(run.path)
