"""The part of ``contextwise evaluate`` behind ``--sentences``: sentences on their own, with their contexts."""

from pathlib import Path
from typing import Any

from contextwise.base.errors import ConfigError

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
    from contextwise.cli.measuring import run_measure
    from contextwise.evaluation.measures.sentences import SentenceLoss

    settings = SentenceLoss(contexts=types, drop_contexts=drop_contexts or 0.0, limit=limit_documents)
    run_measure(model, settings, corpus, split, as_json, **options)
