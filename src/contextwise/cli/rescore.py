"""The part of ``contextwise evaluate`` behind ``--rescore``: lists of candidates, ranked."""

import json
from pathlib import Path
from typing import Any


def evaluate_rescore(
    model: str, file: Path, as_json: bool, *, weight: float | None = None, **options: Any
) -> None:
    """Rank the candidates of each line of a file, print and write them.

    Args:
        weight: share of the model in what is ranked by; all of it, if not given.
        options: further ones of :func:`contextwise.evaluation.measures.rescoring.files.rescore_file`.
    """
    from rich.console import Console

    from contextwise.base.progress import interruption
    from contextwise.evaluation.measures.rescoring.files import rescore_file
    from contextwise.evaluation.measures.rescoring.tables import ranking_sentence, ranking_table
    from contextwise.evaluation.measures.sentences.conditioning import trained_types
    from contextwise.models.loading import load_config

    with interruption.listening():
        found = rescore_file(model, file, weight=1.0 if weight is None else weight, **options)
    if as_json:
        print(json.dumps(found.rows(), indent=2, ensure_ascii=False))
        return
    printed = Console(highlight=False)
    takes_contexts = bool(trained_types(load_config(model)))
    printed.print(ranking_sentence(model, found.lists, found.with_contexts, takes_contexts))
    printed.print(ranking_table(found))
    if len(found.lists) > 5:
        printed.print(f"and {len(found.lists) - 5:,} more lists")
    printed.print(f"written to {found.path}", markup=False, soft_wrap=True)
