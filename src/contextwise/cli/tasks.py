"""``contextwise tasks``: a model on the tasks of lm-evaluation-harness."""

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from contextwise.base.errors import ConfigError
from contextwise.cli.options import (
    AsJson,
    BatchTokens,
    Context,
    Device,
    Dtype,
    Limit,
    Model,
    Out,
    numbers,
)
from contextwise.cli.printing import print_measured


def tasks(
    model: Model,
    tasks: Annotated[
        str, typer.Argument(metavar="TASK,TASK,…", help="The harness's tasks or tags.", show_default=False)
    ],
    num_fewshot: Annotated[
        str, typer.Option(help="Examples before a question; each number is asked for, such as 0,5.")
    ] = "0",
    task_data: Annotated[
        Path | None,
        typer.Option(help="Folder of local files, or a mapping file, to read.", show_default="the Hub"),
    ] = None,
    skip_missing: Annotated[
        bool, typer.Option("--skip-missing", help="With --task-data: leave out tasks without a file.")
    ] = False,
    context: Context = None,
    limit: Limit = None,
    batch_tokens: BatchTokens = 16384,
    dtype: Dtype = "auto",
    device: Device = "auto",
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Measure a model on the tasks of lm-evaluation-harness.

    Prints the accuracies with their standard errors.
    """
    if importlib.util.find_spec("lm_eval") is None:
        raise ConfigError(
            "contextwise tasks needs lm-evaluation-harness, which is not installed; install it with: "
            "pip install 'contextwise[eval]'"
        )
    from contextwise.evaluation.measures.lm_eval.running import Settings, evaluate_on_tasks
    from contextwise.evaluation.measures.lm_eval.tables import tasks_table
    from contextwise.training.signals import StopRequest

    settings = Settings(
        tasks=tuple(name.strip() for name in tasks.split(",")),
        shots=numbers(num_fewshot, "--num-fewshot", "0,5"),
        task_data=task_data,
        skip_missing=skip_missing,
        limit=limit,
    )
    with StopRequest().listening() as stop:
        found = evaluate_on_tasks(
            model,
            settings,
            context=context,
            batch_tokens=batch_tokens,
            dtype=dtype,
            device=device,
            out=out,
            should_stop=lambda: bool(stop),
        )
    print_measured(found.summary, as_json, tasks_table(found.summary), f"{found.path}/")
