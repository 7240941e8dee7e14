"""The verb ``contextwise train``."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from contextwise.base.config import with_options
from contextwise.base.estimates import count, counted, duration
from contextwise.base.progress import say
from contextwise.base.recipes import recipe_path
from contextwise.base.runs import RunFolder, measured_on
from contextwise.base.stopping import first_process
from contextwise.cli.common import set_option, show_json, show_line

if TYPE_CHECKING:
    from contextwise.training import Recipe

PANEL = "Train"


def train(
    recipe: Annotated[
        str,
        Argument(
            help="A YAML file (its settings are listed in the reference), a name that `recipes` lists, or a run's folder."
        ),
    ],
    settings: Annotated[
        list[str] | None, set_option("A setting in place of the recipe's: --set training.steps=500. Repeatable.")
    ] = None,
    corpus: Annotated[
        str | None,
        Option(help="The prepared corpus: --set data.corpus=PATH.", metavar="<path>", show_default="the recipe's"),
    ] = None,
    device: Annotated[
        str | None,
        Option(help="auto, cpu or cuda: --set training.device=NAME.", show_default="the recipe's, else auto"),
    ] = None,
    out: Annotated[Path | None, Option(help="The run folder.", show_default="runs/NAME-seedN")] = None,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Measure time and memory on a few steps, and report them; write no run.")
    ] = False,
    as_json: Annotated[
        bool, Option("--json", help="Print the run's folder and summary as JSON; with --dry-run: the report.")
    ] = False,
) -> None:
    """Train the model of a recipe; run the same command again to resume.

    Several processes: torchrun --nproc-per-node 2 -m contextwise train RECIPE
    """
    from contextwise.training import load_recipe

    overrides = with_options(settings, {"data.corpus": corpus, "training.device": device})
    loaded = load_recipe(recipe, overrides, out)  # before torch is imported, which takes seconds
    if dry_run:
        _show_dry_run(loaded, recipe_path(recipe).parent, as_json)
        return
    _check_files(loaded)
    from contextwise.training.identity import finished_run

    if (run := finished_run(loaded)) is None:
        from contextwise.experiments.causality import refuse_leaking_variant
        from contextwise.training import train as train_model

        refuse_leaking_variant(loaded)
        run = train_model(loaded)
    if first_process():
        _say_result(loaded, run)
        if as_json:
            show_json({"folder": str(run.path), **run.summary()})
        else:
            print(run.path)


def _say_result(recipe: "Recipe", run: RunFolder) -> None:
    """Print a finished run's validation loss and time, and a command that measures it."""
    from contextwise.training.recipe import few_steps, validation_loss
    from contextwise.training.settings import CorpusData

    summary = run.summary()
    if warning := few_steps([summary["steps"]]):
        say(f"note: {warning}")
    if not summary["target_tokens"] and not recipe.objective.whole_steps:
        say(f"note: no window had a target of the objective {recipe.objective.name!r}, so nothing was trained")
    loss = validation_loss(recipe, summary)
    words, validated = ["report", str(run.path)], "no validation"
    if loss is not None:
        validated = f"validation loss {loss}{measured_on(run.recipe(), summary.get('validation_examples'))}"
        if isinstance(recipe.data, CorpusData) and recipe.objective.name == "causal":
            words = ["curve", str(run.path), "--corpus", recipe.data.corpus]
            words += ["--split", recipe.data.validation_split] * (recipe.data.validation_split != "validation")
    say(f"{recipe.name}: {summary['tokens']:,} tokens in {duration(summary['seconds'])} of training\n  {validated}")
    say(f"next: {shlex.join(['contextwise', *words])}", command=True)


def _check_files(recipe: "Recipe") -> None:
    """Raise the errors of training that need no torch: a run folder that is taken, and a corpus or split that is missing."""
    from contextwise.data import Corpus
    from contextwise.training.settings import CorpusData

    RunFolder(recipe.folder).check_free(recipe.resolved())
    if isinstance(recipe.data, CorpusData):
        Corpus.open(recipe.data.corpus, recipe.data.split)


def _show_dry_run(recipe: "Recipe", folder: Path, as_json: bool) -> None:
    """Measure the first steps of a run, and print what it takes; the recipes in ``folder`` may be those it builds on."""
    from contextwise.experiments.cost import cost_of
    from contextwise.training.dry_run import dry_run
    from contextwise.training.parameters import recipe_modules
    from contextwise.training.recipe import few_steps

    cost, settings = cost_of(recipe), recipe.training
    parts = {module.name: module.parameters for module in recipe_modules(recipe, folder)}
    taken = dry_run(recipe)
    if not first_process():
        return
    if as_json:
        run = {name: getattr(cost, name) for name in ("name", "parameters", "tokens", "steps", "flops")}
        run |= {"folder": recipe.folder, "parts": parts, "tokens_per_step": recipe.tokens_per_step}
        run |= {"optimizer": settings.optimizer, "learning_rate": recipe.learning_rate, "schedule": settings.schedule}
        show_json(vars(taken) | run | {"warmup_steps": settings.warmup(recipe.total_steps)})
        return
    listed = ", ".join(f"{name} {count(number)}" for name, number in parts.items())
    on_cpu, in_each = taken.device == "cpu", " in each process" * (taken.processes > 1)
    passes = f"{taken.micro_batches} micro-batch{'es' * (taken.micro_batches > 1)}"
    warmup = counted(settings.warmup(recipe.total_steps), "step")
    threads = f", {counted(taken.threads, 'thread')}" * on_cpu
    processes = f", {taken.processes} processes" * bool(in_each)
    precision = taken.precision + " (auto)" * (settings.precision == "auto")
    time, how = "not measured: the machine has too little free memory", "estimated"
    if taken.step_seconds is not None and taken.training_seconds is not None:
        speed = f"{recipe.tokens_per_step / taken.step_seconds:,.0f} tokens/s"
        time = f"about {duration(taken.training_seconds)} ({speed} over {counted(taken.timed_steps, 'timed step')})"
        time, how = f"{time}, and about {duration(taken.validation_seconds or 0)} of validation", "measured"
    where = in_each or ("" if on_cpu else " of the GPU")
    start = f", {taken.start_bytes / 1e9:.2f} GB before the model" * on_cpu
    rows = {
        "parameters": f"{cost.parameters:,}" + f" ({listed})" * (len(parts) > 1),
        "tokens": f"{cost.tokens:,}: {cost.steps:,} steps of {recipe.tokens_per_step:,}",
        "a step": f"{passes} of up to {taken.micro_batch_tokens:,} tokens{in_each}",
        "FLOPs": f"{cost.flops:.2e}",
        "optimizer": f"{settings.optimizer}, {recipe.rates_in_words}; {settings.schedule}, {warmup} of warm-up",
        "device": f"{taken.device}{threads}{processes}; precision {precision}",
        **taken.notes,
        "time": time,
        "peak memory": f"{taken.peak_bytes / 1e9:.2f} GB{where} ({how}{start}); {taken.free_bytes / 1e9:.1f} GB are free",
        "warning": few_steps([cost.steps]),
    }
    show_line(f"{recipe.name}, to be written to {recipe.folder}:")
    for name, value in rows.items():
        if value:
            show_line(f"  {name:<12} {value}")
