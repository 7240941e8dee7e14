"""The part of ``contextwise evaluate`` behind ``--sentences``: sentences on their own, with their contexts."""

import json
from pathlib import Path
from typing import Any

from contextwise.base.errors import ConfigError
from contextwise.base.progress import say

NONE = "none"


def types_of(text: str) -> list[str]:
    """The names of ``title,date``; ``none`` is no name.

    Raises:
        ConfigError: a name is missing, or ``none`` stands beside others.
    """
    names = [name.strip() for name in text.split(",")]
    if names == [NONE]:
        return []
    if "" in names or NONE in names:
        raise ConfigError(
            f"--contexts is {text!r}; give names of contexts with commas between, such as title,date, or none alone"
        )
    return names


def evaluate_sentences(
    model: str,
    corpus: Path | None,
    split: str,
    contexts: str | None,
    drop_contexts: float | None,
    limit_documents: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Score sentences, print and write the results.

    Args:
        contexts: names with commas between, or ``none``.
        options: further ones of :func:`contextwise.evaluation.measures.sentences.evaluate_sentences`.
    """
    if corpus is None:
        raise ConfigError("there are no sentences to score; give a prepared corpus with --corpus")
    types = None if contexts is None else types_of(contexts)
    from rich.console import Console

    from contextwise.data import Corpus
    from contextwise.evaluation.measures import sentences as cue
    from contextwise.evaluation.measures.loss import trained_on
    from contextwise.evaluation.measures.sentences import tables
    from contextwise.evaluation.tables import evaluation_table
    from contextwise.training.signals import StopRequest

    documents = Corpus.open(corpus, split=split)
    with StopRequest().listening() as stop:
        evaluation = cue.evaluate_sentences(
            model,
            documents,
            contexts=types,
            drop_contexts=drop_contexts or 0.0,
            limit_documents=limit_documents,
            **options,
            should_stop=lambda: bool(stop),
        )
    if trained_on(model, documents):
        say("note: the run was trained on these very documents; they are not held out")
    summary = evaluation.summary
    if as_json:
        print(json.dumps(summary, indent=2, ensure_ascii=False))
        return
    printed = Console(highlight=False)
    printed.print(tables.sentences_heading(summary))
    printed.print(evaluation_table(summary, tables.SENTENCE_MEASURES))
    for part in (
        tables.against_sentence(summary),
        tables.cache_table(summary),
        tables.types_sentence(summary),
    ):
        if part is not None:
            printed.print(part)
    printed.print(f"written to {evaluation.path}/", markup=False, soft_wrap=True)
