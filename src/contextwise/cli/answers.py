"""``contextwise answers``: a model's answers to MT-Bench or AlpacaEval."""

from pathlib import Path
from typing import Annotated

import typer

from contextwise.base.errors import ConfigError
from contextwise.base.progress import say
from contextwise.cli.options import Device, Dtype, Model


def answers(
    model: Model,
    questions: Annotated[
        Path,
        typer.Option(
            help="MT-Bench's questions (question.jsonl), or AlpacaEval's (alpaca_eval.json); also as .gz.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="File to write; not given: with the run's evaluations.", show_default=False),
    ] = None,
    model_id: Annotated[
        str | None,
        typer.Option(help="The model's name in the file; not given: its folder's.", show_default=False),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Most tokens of an answer.")] = 1024,
    temperature: Annotated[
        str,
        typer.Option(help="0: the likeliest token; published: MT-Bench's of each category; or a number."),
    ] = "0",
    seed: Annotated[int, typer.Option(min=0, help="Of the draws, anew for each question.")] = 0,
    template: Annotated[
        str,
        typer.Option(
            help="chat: the tokenizer's own; alpaca: the published prompt; auto: its own, if it has one."
        ),
    ] = "auto",
    limit: Annotated[
        int | None, typer.Option(min=1, help="The first so many questions only.", show_default=False)
    ] = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
) -> None:
    """Let a model answer the questions of MT-Bench or AlpacaEval, in their file formats.

    The turns of a question are one conversation, whose cache is used again.

    The same command again goes on where a stopped one was.
    """
    from contextwise.evaluation.measures.judging.answers import Answering, answer_questions
    from contextwise.training.signals import StopRequest

    try:
        chosen = "published" if temperature == "published" else float(temperature)
    except ValueError:
        raise ConfigError(f"--temperature is {temperature!r}; give a number, or published") from None
    settings = Answering(max_new_tokens, chosen, template, seed)  # type: ignore[arg-type]
    with StopRequest().listening() as stop:
        place, rows = answer_questions(
            model,
            questions,
            settings,
            out=out,
            model_id=model_id,
            limit=limit,
            dtype=dtype,
            device=device,
            should_stop=lambda: bool(stop),
        )
    wrong = [row["errors"] for row in rows if "errors" in row]
    if wrong:
        first = next(error for error in wrong[0] if error is not None)
        say(
            f"note: {len(wrong):,} of {len(rows):,} questions have a turn without an answer; the first: {first}"
        )
    say(f"answers to {len(rows):,} questions: {place}")
