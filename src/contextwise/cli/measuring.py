"""Run a measure from the command line, and print its result."""

import json
from pathlib import Path
from typing import Any

from rich.console import Console

from contextwise.base.progress import say
from contextwise.evaluation.kernel import Measure, Subject, measure


def run_measure(
    model: str,
    settings: Measure,
    corpus: Path | None,
    split: str,
    as_json: bool,
    extra: dict[str, Any] | None = None,
    **options: Any,
) -> None:
    """Measure, and print the result's table, or its summary as JSON.

    Args:
        extra: further content of the JSON.
        options: of :func:`contextwise.evaluation.kernel.measure`.
    """
    from contextwise.data import Corpus

    documents = None if corpus is None else Corpus.open(corpus, split=split)
    how = {name: options.pop(name) for name in ("dtype", "device", "batch_tokens") if name in options}
    subject = Subject(model, **how)
    result = measure(subject, settings, documents, **options)
    if documents is not None and subject.trained_on(documents):
        say("note: the run was trained on these very documents; they are not held out")
    if as_json:
        print(json.dumps({**result.summary, **(extra or {})}, indent=2, ensure_ascii=False))
        return
    printed = Console(highlight=False)
    printed.print(settings.table(result.summary))
    printed.print(f"written to {result.path}/", markup=False, soft_wrap=True)
