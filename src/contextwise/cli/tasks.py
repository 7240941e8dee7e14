"""``contextwise evaluate --tasks``: a model on the tasks of lm-evaluation-harness."""

import importlib.util
from pathlib import Path

from contextwise.base.errors import ConfigError
from contextwise.cli.options import numbers
from contextwise.cli.printing import print_measured


def evaluate_tasks(
    model: str,
    tasks: str,
    shots: str | None,
    task_data: Path | None,
    skip_missing: bool,
    limit: int | None,
    as_json: bool,
    *,
    batch_tokens: int | None,
    dtype: str,
    device: str,
    out: Path | None,
    context: int | None,
) -> None:
    """Ask the tasks and print their table, or the summary as JSON; the options are those of ``contextwise evaluate``.

    Raises:
        ConfigError: lm-evaluation-harness is not installed, or an option is wrong.
    """
    if importlib.util.find_spec("lm_eval") is None:
        raise ConfigError(
            "--tasks needs lm-evaluation-harness, which is not installed; install it with: pip install 'contextwise[eval]'"
        )
    from contextwise.evaluation.measures.lm_eval.running import Settings, evaluate_on_tasks
    from contextwise.evaluation.measures.lm_eval.tables import tasks_table
    from contextwise.training.signals import StopRequest

    settings = Settings(
        tasks=tuple(name.strip() for name in tasks.split(",")),
        shots=(0,) if shots is None else numbers(shots, "--shots", "0,5"),
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
