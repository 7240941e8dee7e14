"""``contextwise longbench``: answers to LongBench's and L-Eval's questions, with more and more of the prompt visible."""

from pathlib import Path
from typing import Annotated

import typer

from contextwise.base.config import validate
from contextwise.cli.measuring import run_measure
from contextwise.cli.options import AsJson, BatchTokens, Chat, Device, Dtype, Model, Out


def longbench(
    model: Model,
    files: Annotated[
        list[Path],
        typer.Argument(help="Files of LongBench's or L-Eval's form, JSON Lines.", show_default=False),
    ],
    visible: Annotated[
        str | None,
        typer.Option(
            help="Tokens of a prompt that are seen, such as 512,1024,all; not given: 1/8 to all of the model's room.",
            show_default=False,
        ),
    ] = None,
    keep: Annotated[
        str, typer.Option(help="What stays of a longer prompt: its two ends, or the nearest text.")
    ] = "ends",
    lengths: Annotated[
        str | None,
        typer.Option(
            help="Only texts of so many words (field 'length'), from-below: 0-4000.", show_default=False
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(help="Only the first so many questions of a data set.", show_default=False)
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            help="Templates with {context} and {input}, as LongBench's dataset2prompt.json.",
            show_default=False,
        ),
    ] = None,
    new_tokens: Annotated[
        int | None, typer.Option(help="Most tokens of an answer; not given: the data set's own.")
    ] = None,
    rope: Annotated[
        str | None,
        typer.Option(
            help="Read beyond the model's positions: none (as they are), linear, dynamic (NTK), yarn.",
            show_default=False,
        ),
    ] = None,
    rope_factor: Annotated[
        float | None,
        typer.Option(
            help="With --rope: by how much; not given: the longest input over the trained context.",
            show_default=False,
        ),
    ] = None,
    chat: Chat = False,
    batch_tokens: BatchTokens = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Ask a model the long questions of LongBench or L-Eval files, at several visible contexts.

    The score of each data set, group and of all, by LongBench's metrics, at
    each visible context, and where more input stops helping. Inputs may be
    longer than the model was trained for, with --rope dynamic.
    """
    from contextwise.evaluation.measures.long_tasks import LongBench

    values = {"files": files, "visible": visible and [part.strip() for part in visible.split(",")], "keep": keep,
              "lengths": lengths, "limit": limit, "prompts": prompts, "new_tokens": new_tokens, "rope": rope,
              "rope_factor": rope_factor, "chat": chat}  # fmt: skip
    run_measure(model, validate(LongBench, values, "longbench"), None, "", as_json, batch_tokens=batch_tokens,
                dtype=dtype, device=device, out=out)  # fmt: skip
