"""``contextwise answers``: a model's answers to MT-Bench or AlpacaEval."""

from pathlib import Path
from typing import Annotated

import typer

from contextwise.base.config import validate
from contextwise.cli.measuring import run_measure
from contextwise.cli.options import AsJson, Device, Dtype, Model, Out


def answers(
    model: Model,
    questions: Annotated[Path, typer.Argument(help="MT-Bench's questions, or AlpacaEval's; also as .gz.")],
    model_id: Annotated[str | None, typer.Option(help="The model's name in the file.")] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Most tokens of an answer.")] = 1024,
    temperature: Annotated[str, typer.Option(help="0: the likeliest token; published; or a number.")] = "0",
    seed: Annotated[int, typer.Option(help="Of the draws, anew for each question.")] = 0,
    template: Annotated[str, typer.Option(help="chat, alpaca, or auto.")] = "auto",
    limit: Annotated[int | None, typer.Option(help="Answer only the first N questions.")] = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Let a model answer the questions of MT-Bench or AlpacaEval, in their file formats."""
    from contextwise.evaluation.measures.answers import Answers

    values = {"questions": questions, "model_id": model_id, "max_new_tokens": max_new_tokens, "seed": seed,
              "temperature": temperature, "template": template, "limit": limit}  # fmt: skip
    run_measure(model, validate(Answers, values, "answers"), None, "", as_json, dtype=dtype, device=device,
                out=out)  # fmt: skip
