"""``contextwise plan``: model size, training context and tokens for a budget, from a sweep; and whether to believe it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from contextwise.base.errors import ConfigError

if TYPE_CHECKING:
    from contextwise.analysis.scaling import Budget, Observations


def plan(
    sweep: Annotated[Path, typer.Argument(help="Folder of a sweep.", show_default=False)],
    budget: Annotated[
        float | None, typer.Option(help="FLOPs of the training run to plan.", show_default=False)
    ] = None,
    hours: Annotated[
        float | None,
        typer.Option(
            help="Hours of it instead: on the sweep's machine, at the speeds measured there, or with --tokens-per-second.",
            show_default=False,
        ),
    ] = None,
    tokens_per_second: Annotated[
        float | None, typer.Option(help="Training speed of another machine.", show_default=False)
    ] = None,
    measured_at: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE:CONTEXT",
            help="What that speed was measured with.",
            show_default="the sweep's largest size at its shortest context",
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Hide the largest budgets, predict them, and compare with what was measured."
        ),
    ] = False,
    hide_above: Annotated[
        float | None,
        typer.Option(help="The same, hiding what lies above so many FLOPs.", show_default=False),
    ] = None,
    far: Annotated[
        bool,
        typer.Option(
            "--far",
            help="Answer beyond 30 times the sweep's largest run too, and where it shows no best context.",
        ),
    ] = False,
    partial: Annotated[
        bool, typer.Option("--partial", help="Use what there is of runs that are not finished.")
    ] = False,
    early: Annotated[
        float, typer.Option(help="Share of a run's tokens before which its points are left out.")
    ] = 0.05,
    resamples: Annotated[int, typer.Option(help="Of whole runs, for the intervals.")] = 200,
    confidence: Annotated[float, typer.Option(help="Of the intervals.")] = 0.9,
    seed: Annotated[int, typer.Option(min=0, help="Of the resamples.")] = 0,
    residuals: Annotated[
        bool, typer.Option("--residuals", help="Show how far each run lies off the law.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Recommend model size, training context and tokens for a budget, from a sweep.

    A law of the loss over context, size and tokens is fitted to the sweep, its
    form chosen by held-out runs; every number has an interval over runs. Where
    the sweep cannot carry an answer, it is refused, with the reason.
    """
    import json

    from rich.console import Console

    from contextwise.analysis.scaling import analyse, hindcast, make_plan, read_observations
    from contextwise.reports.scaling import hindcast_tables, law_tables, plan_tables, residual_table

    checking = check or hide_above is not None
    _check_options(budget, hours, tokens_per_second, measured_at, hide_above, checking)
    _check_numbers(early, resamples, confidence)
    found = read_observations(sweep, early=early, partial=partial)
    console = Console(highlight=False)
    printed: dict[str, Any] = {}
    shown: list[Any] = []
    if budget is not None or hours is not None:
        given = _budget(found, budget, hours, tokens_per_second, measured_at)
        analysis = analyse(found, resamples, confidence, seed)
        answer = make_plan(analysis, given, far=far)
        printed |= {"plan": answer.to_dict(), "law": analysis.to_dict()}
        shown += [plan_tables(answer, analysis), law_tables(analysis)]
        shown += [residual_table(analysis)] if residuals else []
    if checking:
        compared = hindcast(found, hide_above, resamples, confidence, seed)
        printed["check"] = compared.to_dict() | {"law": compared.analysis.to_dict()}
        shown.append(hindcast_tables(compared))
        shown += [residual_table(compared.analysis)] if residuals and len(shown) == 1 else []
    if as_json:
        print(json.dumps(printed, indent=2, allow_nan=False))
        return
    for part in shown:
        console.print(part)


def _check_options(
    budget: float | None,
    hours: float | None,
    tokens_per_second: float | None,
    measured_at: str | None,
    hide_above: float | None,
    checking: bool,
) -> None:
    if budget is not None and hours is not None:
        raise ConfigError("--budget and --hours both say what may be spent; give one of them")
    if budget is None and hours is None and not checking:
        raise ConfigError(
            "there is no budget; give --budget (FLOPs) or --hours, or --check to see how well the sweep predicts itself"
        )
    if tokens_per_second is not None and hours is None:
        raise ConfigError("--tokens-per-second says how fast the --hours pass; give both")
    if measured_at is not None and tokens_per_second is None:
        raise ConfigError("--measured-at belongs to --tokens-per-second; give both")
    for name, value in {
        "--budget": budget,
        "--hours": hours,
        "--tokens-per-second": tokens_per_second,
        "--hide-above": hide_above,
    }.items():
        if value is not None and not 0 < value < float("inf"):
            raise ConfigError(f"{name} is {value:g}, but must be a positive number")


def _check_numbers(early: float, resamples: int, confidence: float) -> None:
    if not 0 <= early < 1:
        raise ConfigError(f"--early is {early:g}, but must be a share: 0 or more, below 1")
    if not 0 < confidence < 1:
        raise ConfigError(f"--confidence is {confidence:g}, but must be between 0 and 1")
    if resamples < 20:
        raise ConfigError(f"--resamples is {resamples}, but intervals need 20 at least")


def _budget(
    found: "Observations",
    budget: float | None,
    hours: float | None,
    tokens_per_second: float | None,
    measured_at: str | None,
) -> "Budget":
    """What may be spent, in FLOPs, or in seconds of the sweep's machine."""
    from contextwise.analysis.scaling import Budget
    from contextwise.analysis.scaling.optimum import measured_cost
    from contextwise.base.estimates import count, duration

    if budget is not None:
        return Budget("flops", budget, f"{budget:.3g} FLOPs")
    assert hours is not None
    seconds = 3600 * hours
    if tokens_per_second is None:
        return Budget(
            "seconds", seconds, f"{duration(seconds)} on the sweep's machine, at the speeds it measured"
        )
    size, context = _cell(found, measured_at)
    each = float(measured_cost(found, "flops").per_token(found.size_parameters[size], context))
    flops = seconds * tokens_per_second * each
    return Budget(
        "flops",
        flops,
        f"{flops:.3g} FLOPs: {duration(seconds)} at {count(tokens_per_second)} tokens/s of {found.sizes[size]} "
        f"with a context of {context:.0f} ({each:.2g} FLOPs a token)",
    )


def _cell(found: "Observations", measured_at: str | None) -> tuple[int, float]:
    """Index of the size, and the context, that a speed was measured with."""
    if measured_at is None:
        return len(found.sizes) - 1, float(found.context.min())
    name, colon, context = measured_at.rpartition(":")
    if not colon or not context.isdigit() or int(context) < 1:
        raise ConfigError(
            f"--measured-at is {measured_at!r}, but must be SIZE:CONTEXT, such as {found.sizes[-1]}:512"
        )
    if name not in found.sizes:
        raise ConfigError(
            f"--measured-at names the size {name!r}, but the sweep's are {', '.join(found.sizes)}"
        )
    return found.sizes.index(name), float(context)
