"""Choose model size, training context, tokens and learning rates of a training run."""

import contextlib
import math
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field
from rich.console import RenderableType
from typer import Argument, Option

from contextwise.base.config import with_options
from contextwise.base.files import write_json
from contextwise.base.recipes import recipe_path
from contextwise.cli.common import AsJson, set_option, show, show_json, show_line, show_values
from contextwise.report import as_json as json_values
from contextwise.report import count, counted, duration, say
from contextwise.settings import ConfigError, DataError, Settings, read_yaml, validate

PANEL = "Choose"
BESIDE = {True: (1, 20), False: (10, 60)}
"""Whether runs are trained in this process -> seconds of a run beside its training steps, at least and at most: a curve, and a
process with its imports."""
if TYPE_CHECKING:
    from contextwise.runset import RunSet
    from contextwise_plan.scaling.observations import Observations
    from contextwise_plan.scaling.planning import Plan


def sweep(
    recipe: Annotated[
        str | None,
        Argument(
            help="A YAML file (a base recipe and a grid of settings), a name that `recipes` lists, or a sweep's folder."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None, set_option("A setting before the file's: --set base.training.weight_decay=0. Repeatable.")
    ] = None,
    out: Annotated[Path | None, Option(help="The sweep's folder.", show_default="sweeps/NAME")] = None,
    jobs: Annotated[int | None, Option(help="Runs at a time here.", show_default="1, in this process")] = None,
    executor: Annotated[str | None, Option(help="Where runs run: local, ray, or as a package offers.")] = None,
    address: Annotated[str | None, Option(help="Of a Ray cluster.", show_default="auto, of this machine")] = None,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Check and list the runs and what they cost; start none.")
    ] = False,
    status: Annotated[Path | None, Option(help="List the runs of this sweep's folder and how far they are.")] = None,
    as_json: Annotated[bool, Option("--json", help="With --dry-run or --status: the list as JSON.")] = False,
) -> None:
    """Train a grid of model sizes and contexts; run it again to resume.

    Every run keeps its tokens per step while the context grows. The runs of a
    size, context and seed share one trunk: each budget is a finished run that
    trains only its decay. Finished runs are skipped, failed ones tried again.
    contextwise report FOLDER draws the best training context at every budget.
    """
    if status is not None and recipe is not None:
        raise ConfigError(f"--status lists the sweep in the folder {status}; leave the recipe {recipe} out")
    if status is None and recipe is None:
        raise ConfigError("a sweep is missing; give its file or name, or --status and a sweep's folder")
    if as_json and not dry_run and status is None:
        raise ConfigError("--json goes with --dry-run or --status")
    if jobs is not None and jobs < 1:
        raise ConfigError(f"--jobs is {jobs}, but at least one run at a time is needed")
    from contextwise_plan.sweeps.recipe import load_sweep
    from contextwise_plan.sweeps.sweep import Sweep, run_sweep

    if recipe is None:
        _list_runs(Sweep.open(status or ""), as_json)
        return
    given = {"kind": executor, "jobs": jobs, "address": address}
    options = {f"executor.{name}": value for name, value in given.items()}
    sweep_settings = load_sweep(recipe, with_options(settings, options), out)
    if not dry_run:
        print(run_sweep(sweep_settings).path)
        return
    planned = Sweep.planned(sweep_settings)
    _list_runs(planned, as_json)
    if not as_json:
        show(*(f"note: {note}" for note in planned.notes))
        missing = len(planned.plan) - planned.count()["finished"]
        if sweep_settings.executor.kind == "local" and missing:
            steps, here = planned.seconds_left(), sweep_settings.executor.here
            starts = math.ceil(missing / sweep_settings.executor.jobs)  # one after another
            least, most = (duration(steps + starts * each) for each in BESIDE[here])
            show(
                f"The missing runs take about {least} to {most} on this machine: {duration(steps)} of training steps, and "
                f"{BESIDE[here][0]} to {BESIDE[here][1]} s each to {'start a process and to ' * (not here)}measure its curve."
            )


def _list_runs(sweep: "RunSet", as_json: bool) -> None:
    """Print the runs, what they cost and how far they are."""
    from contextwise_plan.sweeps.sweep import plan_table

    states = sweep.states()
    if as_json:
        show_json({"path": sweep.path, "flops": sweep.flops, "runs": states})
        return
    parts = ", ".join(f"{number} {state}" for state, number in sweep.count().items() if number)
    runs = counted(len(states), "run")
    show(plan_table(states), f"{runs} ({parts}), {count(sweep.tokens)} tokens, {sweep.flops:.2e} FLOPs")
    for state in states:
        if state.failure:
            show_line(f"{state.run.id} failed: {state.failure}")


def transfer(
    recipe: Annotated[
        str, Argument(help="A recipe with a model of a named size: a YAML file, or a name that `recipes` lists.")
    ],
    widths: Annotated[str, Option(metavar="<int>,…", help="Widths that are trained.")] = "64,128,256",
    factors: Annotated[
        str, Option(metavar="<float>,…", help="Of the recipe's rates: 3 or more, at most 4 times apart.")
    ] = "0.25,0.5,1,2,4",
    seeds: Annotated[int, Option(min=2, max=1000, help="Seeds of each run.")] = 2,
    to: Annotated[
        int | None, Option(help="The width whose rate is asked for.", show_default="twice the largest")
    ] = None,
    settings: Annotated[
        list[str] | None,
        set_option("A setting in place of the recipe's: --set training.parametrization=mup. Repeatable."),
    ] = None,
    corpus: Annotated[
        str | None,
        Option(help="The prepared corpus: --set data.corpus=PATH.", metavar="<path>", show_default="the recipe's"),
    ] = None,
    jobs: Annotated[int, Option(help="Runs at a time.")] = 1,
    out: Annotated[Path | None, Option(help="Folder of the runs.", show_default="transfer/NAME")] = None,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Check and list the runs and what they cost; start none.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Find whether a model's learning rates hold at other widths, and the rates of a larger one.

    Trains the recipe at each width and factor of its rates. Run the same
    command again to resume.
    """
    file = recipe_path(recipe)
    values = {
        "recipe": {"name": file.stem, **read_yaml(file)},
        "widths": widths.split(","),
        "factors": factors.split(","),
        "seeds": list(range(seeds)),
        "to": to,
        "executor": {"jobs": jobs},
        "output": "" if out is None else str(out),
    }
    from contextwise_plan.transfer import load_transfer, planned_runs, run_transfer, transfer_table

    loaded = load_transfer(values, with_options(settings, {"data.corpus": corpus}))
    if dry_run:
        _list_runs(planned_runs(loaded), as_json)
        return
    result = run_transfer(loaded)
    write_json(loaded.folder / "transfer.json", json_values(result), "the result")
    show_values(result, as_json, transfer_table(result), *result.sentences)


def _passes(folder: Path, observed: "Observations", tokens: float) -> list[str]:
    """A note on a plan that reads the sweep's corpus more than once; none where the corpus is elsewhere."""
    from contextwise.data import Corpus
    from contextwise_plan.sweeps.sweep import Sweep

    data = Sweep.open(folder).run_folder(observed.points[0].run).recipe()["data"]
    with contextlib.suppress(DataError):
        texts = Corpus.open(data["corpus"], split=data.get("split", "train")).tokens
        if tokens > texts:
            most = float(observed.tokens.max()) / texts
            return [
                f"{count(tokens)} tokens are {tokens / texts:.1f} passes over the sweep's corpus, of which its runs read "
                f"{most:.1f} at most. Text that is read again teaches less than new text."
            ]
    return []


def training_line(folder: Path, plan: "Plan", observed: "Observations") -> str | None:
    """The line with the command that trains what a plan recommends, with the settings of the sweep's longest run of that size.

    The context is the nearest power of two. For a size between the sweep's own, the line names the nearest of these, whose own
    best context and tokens it trains. None if a step's tokens do not divide into windows of that context, or the run has no
    recipe.
    """
    from contextwise_plan.sweeps.sweep import Sweep

    best, which = plan.best, ""
    if best.size is None and best.parameters is not None:
        size = best.parameters.value
        each = [row for row in plan.each_size if row.parameters is not None]
        best = min(each, key=lambda row: abs(math.log(row.parameters.value / size)) if row.parameters else math.inf)
        which = f" ({best.size}, the sweep's nearest size)"
    context, digits = 2 ** round(math.log2(best.context.value)), 2 - math.floor(math.log10(best.tokens.value))
    longest = max((point for point in observed.points if point.size == best.size), key=lambda point: point.tokens)
    run = Sweep.open(folder).run_folder(longest.run)
    if not run.recipe_file.exists() or (training := run.recipe()["training"])["tokens_per_step"] % context:
        return None
    name = f"{folder.absolute().name}-planned"
    settings = [f"name={name}", f"data.context={context}", f"training.tokens={round(best.tokens.value, digits):.0f}"]
    settings += [f"training.curve_longest={context}"] * (context > (training.get("curve_longest") or context))
    settings += ["training.branches=[]"] * bool(training.get("branches"))
    words = ["contextwise", "train", str(run.path), *(word for each in settings for word in ("--set", each))]
    return f"next{which}: {shlex.join([*words, '--out', f'runs/{name}'])}"


class Spent(Settings):
    """What a run may spend: FLOPs, or hours."""

    budget: float | None = Field(default=None, gt=0)
    hours: float | None = Field(default=None, gt=0)


def budget(
    sweep: Annotated[Path, Argument(help="Folder of a sweep, or the table of one (JSON).")],
    budget: Annotated[
        str | None, Option(metavar="<float>", help="FLOPs of the training run to plan, such as 4e12 or 4T.")
    ] = None,
    hours: Annotated[
        str | None,
        Option(
            metavar="<float>", help="Hours of training instead: on the sweep's machine, at the speeds measured there."
        ),
    ] = None,
    far: Annotated[bool, Option("--far", help="Answer beyond 30 times the sweep's largest run too.")] = False,
    partial: Annotated[bool, Option("--partial", help="Use the measurements of unfinished runs too.")] = False,
    details: Annotated[bool, Option("--details", help="Show what was measured, other sizes, and the law too.")] = False,
    table: Annotated[
        Path | None, Option(metavar="FILE", help="Write the sweep's points to one JSON file, from which it plans too.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Recommend model size, training context and tokens for a budget, from a sweep.

    A law of the loss over context, size and tokens is fitted to the sweep, its
    form chosen by held-out runs; every number has an interval over runs. Where
    the sweep does not determine an answer, the plan is refused, with the reason.
    """
    from contextwise_plan.scaling.analysis import Analysis
    from contextwise_plan.scaling.observations import read_observations, read_table, write_table
    from contextwise_plan.scaling.planning import Budget, make_plan
    from contextwise_plan.tables import detail_tables, plan_tables

    planned = budget is not None or hours is not None
    if (budget is not None and hours is not None) or not (planned or table is not None):
        raise ConfigError("a plan has one budget; give either --budget (FLOPs) or --hours")
    spent = validate(Spent, {"budget": budget, "hours": hours}, "contextwise plan budget")
    if sweep.is_file() and (table is not None or partial):
        raise ConfigError(f"{sweep} is a table already; --table and --partial take the folder of a sweep")

    observations = read_table(sweep) if sweep.is_file() else read_observations(sweep, partial=partial)
    if table is not None:  # before the plan, which takes minutes and may be refused
        write_table(observations, table, sweep)
        (say if as_json else show_line)(f"written to {table}")
    values: dict[str, Any] = {}
    tables: list[RenderableType] = []
    if planned:
        analysis = Analysis(observations)
        if spent.budget is not None:
            allowed = Budget("flops", spent.budget, f"{spent.budget:.3g} FLOPs")
        else:
            seconds = 3600 * (spent.hours or 0)
            words = f"{duration(seconds)} on the sweep's machine, at the speeds it measured"
            allowed = Budget("seconds", seconds, words)
        answer = make_plan(analysis, allowed, far=far)
        if not sweep.is_file():
            answer.notes.extend(_passes(sweep, observations, answer.best.tokens.value))
        values = {"plan": answer, "law": analysis}
        more = detail_tables(answer, analysis) if details else " --details shows more, --json everything."
        tables = [plan_tables(answer, analysis), more]
    show_values(values, as_json, *tables)
    if planned and not as_json and not sweep.is_file() and (line := training_line(sweep, answer, observations)):
        show_line(line)
