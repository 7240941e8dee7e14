"""``contextwise needles``: an answer that depends on two needles."""

from typing import Annotated

import typer

from contextwise.base.config import validate
from contextwise.cli.measuring import run_measure
from contextwise.cli.options import AsJson, BatchTokens, Device, Dtype, Model, Out, numbers


def needles(
    model: Model,
    length: Annotated[int, typer.Option(help="Tokens of a text, at most.")] = 1024,
    masked: Annotated[
        str | None, typer.Option(help="Numbers of first tokens that are cut off, such as 0,256.")
    ] = None,
    samples: Annotated[int, typer.Option(help="Texts.")] = 50,
    seed: Annotated[int, typer.Option(help="Of the texts.")] = 0,
    batch_tokens: BatchTokens = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Measure an answer that depends on two needles, with more and more of the text cut off."""
    from contextwise.evaluation.measures.needles import Needles

    values = {"length": length, "samples": samples, "seed": seed}
    values["masked"] = None if masked is None else list(numbers(masked, "--masked", "0,256"))
    run_measure(model, validate(Needles, values, "needles"), None, "", as_json, batch_tokens=batch_tokens,
                dtype=dtype, device=device, out=out)  # fmt: skip
