"""``contextwise ruler``: answers to questions on long texts."""

from pathlib import Path
from typing import Annotated

import typer

from contextwise.base.config import validate
from contextwise.cli.measuring import run_measure
from contextwise.cli.options import AsJson, BatchTokens, Chat, Device, Dtype, Model, Out, numbers

SUCH_AS = "512,1024"


def ruler(
    model: Model,
    tasks: Annotated[str | None, typer.Option(help="Of qa_1, fwe, cwe, vt, with commas between.")] = None,
    qa: Annotated[Path | None, typer.Option(help="Questions for qa_1, in SQuAD's form.")] = None,
    words: Annotated[Path | None, typer.Option(help="Words for cwe, one a line.")] = None,
    length: Annotated[int, typer.Option(help="Tokens of a text, at most.")] = 4096,
    visible: Annotated[
        str | None, typer.Option(help="Nearest tokens of the text that are seen, such as 512,1024.")
    ] = None,
    gamma: Annotated[float, typer.Option(help="Of the positions, P(x) ~ (1 - x/LENGTH)^GAMMA.")] = 0.0,
    samples: Annotated[int, typer.Option(help="Questions of each task.")] = 100,
    seed: Annotated[int, typer.Option(help="Of texts, questions and positions.")] = 0,
    chat: Chat = False,
    example: Annotated[bool, typer.Option("--example/--no-example", help="A worked example first.")] = True,
    batch_tokens: BatchTokens = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Ask a model about long texts, with more and more of the text visible."""
    from contextwise.evaluation.measures.ruler import Ruler

    values = {"length": length, "gamma": gamma, "samples": samples, "seed": seed, "chat": chat}
    values |= {"tasks": tasks and tasks.split(","), "qa": qa, "words": words, "example": example}
    values["visible"] = None if visible is None else list(numbers(visible, "--visible", SUCH_AS))
    run_measure(model, validate(Ruler, values, "ruler"), None, "", as_json, batch_tokens=batch_tokens,
                dtype=dtype, device=device, out=out)  # fmt: skip
