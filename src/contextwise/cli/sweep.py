"""``contextwise sweep``: a grid of training runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from contextwise.base.errors import ConfigError

if TYPE_CHECKING:
    from contextwise.experiments.sweep import Sweep


def sweep(
    recipe: Annotated[
        Path | None,
        typer.Argument(help="A YAML file: a base recipe and a grid of settings.", show_default=False),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A setting before the file's: --set base.training.weight_decay=0. Repeatable.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The sweep's folder.", show_default="sweeps/NAME"),
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="Runs at a time here.", show_default=False)] = None,
    executor: Annotated[
        str | None, typer.Option(help="Where runs run: local or ray.", show_default=False)
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="Of a Ray cluster, or auto.", show_default=False)
    ] = None,
    retries: Annotated[
        int | None,
        typer.Option(help="How often a failed run is tried again in one call.", show_default=False),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check and list the runs and what they cost; start none.")
    ] = False,
    status: Annotated[
        Path | None,
        typer.Option(help="List the runs of this sweep's folder and how far they are.", show_default=False),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --dry-run or --status: the list as JSON.")
    ] = False,
) -> None:
    """Train a grid of model sizes and contexts; run it again to resume.

    Every run keeps its tokens per step while the context grows, and measures its
    best-context loss along the way, so that one run stands for every smaller one.
    Finished runs are skipped, failed ones are listed and tried again.
    """
    if status is not None:
        if recipe is not None:
            raise ConfigError(
                f"--status lists the sweep in the folder {status}; leave the recipe {recipe} out"
            )
        from contextwise.experiments.sweep import Sweep

        _list(Sweep.open(status), as_json)
        return
    if recipe is None:
        raise ConfigError("a sweep file is missing; give its path, or --status and a sweep's folder")
    if as_json and not dry_run:
        raise ConfigError("--json goes with --dry-run or --status")
    if jobs is not None and jobs < 1:
        raise ConfigError(f"--jobs is {jobs}, but at least one run at a time is needed")
    from contextwise.experiments.sweep import Sweep, load_sweep, run_sweep
    from contextwise.experiments.sweep.sweep import notes

    given = {"kind": executor, "jobs": jobs, "address": address, "retries": retries}
    options = [f"executor.{name}={value}" for name, value in given.items() if value is not None]
    wanted = load_sweep(recipe, [*(settings or []), *options], out)
    if dry_run:
        planned = Sweep.planned(wanted)
        _list(planned, as_json, notes(planned.plan))
        return
    print(run_sweep(wanted).path)


def _list(listed: "Sweep", as_json: bool, notes: list[str] | None = None) -> None:
    """The runs, what they cost and how far they are, on standard output."""
    import json
    from dataclasses import asdict

    from rich.console import Console

    from contextwise.experiments.progress import plan_table
    from contextwise.models.sizes import readable_count

    states = listed.states()
    if as_json:
        runs = [
            {**asdict(state.run), **{k: v for k, v in asdict(state).items() if k != "run"}}
            for state in states
        ]
        print(json.dumps({"sweep": str(listed.path), "flops": listed.flops, "runs": runs}, indent=2))
        return
    printed = Console(highlight=False)
    printed.print(plan_table(states))
    count = listed.count()
    tokens = readable_count(sum(run.tokens for run in listed.plan))
    parts = [f"{number} {state}" for state, number in count.items() if number]
    printed.print(
        f"{len(states)} run{'s' * (len(states) != 1)} ({', '.join(parts)}), {tokens} tokens, {listed.flops:.2e} FLOPs",
        markup=False,
    )
    for state in states:
        if state.failure is not None:
            times = f"{state.failure.attempts} time{'s' * (state.failure.attempts != 1)}"
            printed.print(
                f"{state.run.id} failed {times}: {state.failure.reason}", markup=False, soft_wrap=True
            )
    for note in notes or []:
        printed.print(f"note: {note}", markup=False)
