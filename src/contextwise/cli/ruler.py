"""``contextwise ruler``: answers to questions on long texts, with more and more of the text visible."""

from pathlib import Path
from typing import Annotated, Any

import typer

from contextwise.base.errors import ConfigError
from contextwise.cli.options import AsJson, BatchTokens, Chat, Device, Dtype, Model, Out, numbers
from contextwise.cli.printing import print_measured

SUCH_AS = "512,1024"


def ruler(
    model: Model,
    tasks: Annotated[
        str | None,
        typer.Option(
            help="Some of qa_1, fwe, cwe, vt, with commas between; not given: all, qa_1 if --qa is given.",
            show_default=False,
        ),
    ] = None,
    qa: Annotated[
        Path | None,
        typer.Option(help="Questions for qa_1: SQuAD's JSON, or JSON Lines.", show_default=False),
    ] = None,
    words: Annotated[
        Path | None,
        typer.Option(help="Words for cwe, one a line; not given: made-up ones.", show_default=False),
    ] = None,
    length: Annotated[
        int | None,
        typer.Option(
            help="Tokens of a text, at most; not given: 4096, with --needles 1024.", show_default=False
        ),
    ] = None,
    visible: Annotated[
        str | None,
        typer.Option(
            help="Nearest tokens of the text that are seen, such as 512,1024; not given: 1/16 to all of it.",
            show_default=False,
        ),
    ] = None,
    gamma: Annotated[
        float | None,
        typer.Option(
            help="Of the places, P(x) ~ (1 - x/LENGTH)^GAMMA; not given: 0, all alike.", show_default=False
        ),
    ] = None,
    samples: Annotated[int, typer.Option(help="Questions of each task.")] = 100,
    seed: Annotated[int, typer.Option(help="Of texts, questions and places.")] = 0,
    chat: Chat = False,
    example: Annotated[
        bool, typer.Option("--example/--no-example", help="A worked example before questions of vt and cwe.")
    ] = True,
    needles: Annotated[
        bool, typer.Option("--needles", help="Measure an answer that depends on two needles, instead.")
    ] = False,
    masked: Annotated[
        str | None,
        typer.Option(
            help="With --needles: how many of the first tokens are cut off, such as 0,256; not given: 17 steps.",
            show_default=False,
        ),
    ] = None,
    batch_tokens: BatchTokens = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Ask a model about long texts, with more and more of the text visible.

    Position-weighted RULER: documents and a question on one of them (qa_1),
    frequent and common words (fwe, cwe), variable tracking (vt). The accuracy
    at each visible context, and the best one with how sure that is.

    The same command again goes on where a stopped one was.
    """
    from contextwise.evaluation.measures.ruler.settings import Settings

    shared: dict[str, Any] = {"batch_tokens": batch_tokens, "dtype": dtype, "device": device, "out": out}
    if needles:
        given = {"--tasks": tasks, "--qa": qa, "--words": words, "--visible": visible, "--gamma": gamma}
        given |= {"--chat": chat or None, "--no-example": None if example else True}
        for name, value in given.items():
            if value is not None:
                raise ConfigError(f"{name} is given together with --needles; leave one of the two out")
        _needles(model, masked, length, samples, seed, as_json, **shared)
        return
    if masked is not None:
        raise ConfigError("--masked is of use with --needles only; for RULER give --visible")
    settings = Settings(
        tasks=() if tasks is None else tuple(name.strip() for name in tasks.split(",")),
        length=4096 if length is None else length,
        visible=() if visible is None else numbers(visible, "--visible", SUCH_AS),
        gamma=0.0 if gamma is None else gamma,
        samples=samples,
        seed=seed,
        chat=chat,
        example=example,
        qa=qa,
        words=words,
    )
    from contextwise.evaluation.measures.ruler.running import evaluate_ruler
    from contextwise.evaluation.measures.ruler.tables import ruler_tables
    from contextwise.training.signals import StopRequest

    with StopRequest().listening() as stop:
        found = evaluate_ruler(model, settings, **shared, should_stop=lambda: bool(stop))
    print_measured(found.summary, as_json, ruler_tables(found.summary), f"{found.path}/")


def _needles(
    model: str,
    masked: str | None,
    length: int | None,
    samples: int,
    seed: int,
    as_json: bool,
    **options: Any,
) -> None:
    from contextwise.evaluation.measures.needles import measure_needles, needles_table
    from contextwise.training.signals import StopRequest

    with StopRequest().listening() as stop:
        found = measure_needles(
            model,
            length=1024 if length is None else length,
            masked=() if masked is None else numbers(masked, "--masked", SUCH_AS),
            samples=samples,
            seed=seed,
            **options,
            should_stop=lambda: bool(stop),
        )
    print_measured(found.summary, as_json, needles_table(found.summary), str(found.path))
