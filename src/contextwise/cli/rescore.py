"""``contextwise rescore``: lists of candidates, ranked."""

import json
from pathlib import Path
from typing import Annotated

import typer

from contextwise.cli.options import AsJson, BatchTokens, Device, Dtype, Model, Out


def rescore(
    model: Model,
    file: Annotated[Path, typer.Argument(help="JSON Lines with lists of candidates.", show_default=False)],
    weight: Annotated[
        float, typer.Option(min=0, max=1, help="Share of the model beside the candidates' own scores.")
    ] = 1.0,
    batch_tokens: BatchTokens = 16384,
    dtype: Dtype = "auto",
    device: Device = "auto",
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Rank the candidates of each line of a file by their log-probability."""
    from rich.console import Console

    from contextwise.base.progress import interruption
    from contextwise.evaluation.measures.rescoring.files import rescore_file
    from contextwise.evaluation.measures.rescoring.tables import ranking_sentence, ranking_table
    from contextwise.evaluation.measures.sentences.conditioning import trained_types
    from contextwise.models.loading import load_config

    with interruption.listening():
        found = rescore_file(
            model, file, weight=weight, batch_tokens=batch_tokens, dtype=dtype, device=device, out=out
        )
    if as_json:
        print(json.dumps(found.rows(), indent=2, ensure_ascii=False))
        return
    printed = Console(highlight=False)
    takes_contexts = bool(trained_types(load_config(model)))
    printed.print(ranking_sentence(model, found.lists, found.with_contexts, takes_contexts))
    printed.print(ranking_table(found))
    if len(found.lists) > 5:
        printed.print(f"and {len(found.lists) - 5:,} more lists")
    printed.print(f"written to {found.path}", markup=False, soft_wrap=True)
