"""``contextwise export``."""

from pathlib import Path
from typing import Annotated

import typer

from contextwise.base.progress import say


def export(
    model: Annotated[str, typer.Argument(help="A finished run, or a model's folder.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", help="The folder to write.", show_default=False)],
    standalone: Annotated[
        bool,
        typer.Option(
            "--standalone",
            help="Add the code of the model, so that it opens with trust_remote_code=True "
            "where Contextwise is not installed.",
        ),
    ] = False,
) -> None:
    """Copy a model into a folder of its own, with a model card, ready to be shared."""
    from contextwise.base.runs import RunFolder
    from contextwise.models.standalone import export_model_folder
    from contextwise.training.card import context_encoder_card, model_card

    run = RunFolder(model)
    card = model_card(run, standalone) if run.finished else context_encoder_card(model)
    export_model_folder(model, out, standalone, card)
    say(f"{out}")
