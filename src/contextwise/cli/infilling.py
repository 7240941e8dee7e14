"""The part of ``contextwise evaluate`` behind ``--infill``: how well a model fills holes."""

import json
from pathlib import Path
from typing import Any

from contextwise.base.errors import ConfigError


def evaluate_holes(
    model: str, data: Path, split: str, seed: int, limit: int | None, as_json: bool, **options: Any
) -> None:
    """Fill the holes of a file or corpus, print and write the scores.

    Args:
        options: of :func:`contextwise.evaluation.measures.infill.scores.evaluate_infill`.
    """
    from rich.console import Console

    from contextwise.evaluation.measures.infill.scores import evaluate_infill, infill_heading, infill_table
    from contextwise.evaluation.measures.infill.tasks import open_tasks
    from contextwise.training.signals import StopRequest

    if limit is not None and limit < 1:
        raise ConfigError(f"--limit-documents is {limit}; it must be at least 1")
    tasks = open_tasks(data, split, seed, limit)
    with StopRequest().listening() as stop:
        evaluation = evaluate_infill(model, tasks, **options, should_stop=lambda: bool(stop))
    if as_json:
        print(json.dumps(evaluation.summary, indent=2, ensure_ascii=False))
        return
    printed = Console(highlight=False)
    printed.print(infill_heading(evaluation.summary))
    printed.print(infill_table(evaluation.summary))
    printed.print(f"written to {evaluation.path}", markup=False, soft_wrap=True)
