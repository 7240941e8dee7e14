"""Lists of candidates (n-best lists of a recogniser, of a translator) ranked by a sentence model, given their contexts.

A candidate's score is log P(w1 ... wn end | contexts) in nats, as :mod:`contextwise_papers.cue.scoring` has it. A text is
tokenized unchanged: with a tokenizer that keeps spaces (GPT-2's, ``train:N``) a sentence out of running text begins with one.
"""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BeforeValidator, Field
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from contextwise.base.errors import ConfigError, DataError
from contextwise.base.progress import progress_bar, say
from contextwise.data.input_files import Form, checked, read_objects
from contextwise.evaluation.kernel import Subject, Work
from contextwise.evaluation.scoring.windows import check_tokens
from contextwise_papers.cue.contexts import context_texts, encoded_sets, trained_types
from contextwise_papers.cue.scoring import Rows, score_rows

LISTS = "one list of candidates a line, as JSON objects"
SHOWN = 5
"""Lists whose best candidates are in the summary."""


class Candidate(Form):
    """A text to rank, with the score that it came with: a log-probability, or another number that is higher for better ones."""

    text: str
    score: float | None = Field(default=None, allow_inf_nan=False)


class CandidateList(Form):
    """A line of a file: candidates, the contexts that all of them share, by type, and the name of the list."""

    candidates: list[Annotated[Candidate, BeforeValidator(lambda v: {"text": v} if isinstance(v, str) else v)]] = Field(
        min_length=1
    )
    contexts: dict[str, Any] | None = None
    id: Any = None


def rank_file(subject: Subject, file: Path, weight: float, work: Work) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rank the candidates of each line of a file: a row for each, ``id`` (if it has one) and ``ranked``; and the summary.

    ``ranked`` are the candidates, the best first: ``index`` in the given list, from 0; ``rank``, from 1; ``log_probability``
    of tokens and end, nats; ``tokens`` of the text; ``per_token``, over tokens and end; ``score``, its own if it has one; and
    ``total``, ``weight * log_probability + (1 - weight) * score``, which determines the rank. Equal ones stay in their order.
    """
    wanted = "the texts to rank as 'candidates', or objects with 'text' and 'score'"
    lists = {where: checked(CandidateList, row, where, wanted) for where, row in read_objects(file, LISTS)}
    if not lists:
        raise DataError(f"{file} is empty; give {LISTS}")
    tokens = [ids for where, group in lists.items() for ids in _token_ids(where, group, subject.tokenizer, weight)]
    check_tokens(max(int(ids.max()) for ids in tokens), subject.model)
    types, given = trained_types(subject.config), sum(bool(group.contexts) for group in lists.values())
    further = None
    if given and types:
        sets = [
            texts
            for where, group in lists.items()
            for texts in [context_texts(group.contexts or {}, types, where)] * len(group.candidates)
        ]
        further = encoded_sets(subject.model, subject.source, sets).on(subject.model)
    elif given:
        what = "was trained without contexts" if subject.spec.takes_contexts else "is not a CUE model"
        say(f"note: {subject.source} {what}; the contexts of {given:,} of {len(lists):,} lists are ignored")
    with progress_bar(f"rescore {subject.name}", None, "tokens") as advance:
        rows = Rows(tokens, end_of_text(subject.model, subject.tokenizer))
        options: dict[str, Any] = {"batch_tokens": subject.batch_tokens, "on_progress": advance, "work": work}
        log_probabilities = iter((-score_rows(subject.model, rows, further, **options).document_sums()).tolist())
    sizes = iter(map(len, tokens))
    ranked = [
        {**({} if group.id is None else {"id": group.id}), "ranked": _ranked(group, log_probabilities, sizes, weight)}
        for group in lists.values()
    ]
    summary = {
        "lists": len(ranked),
        "candidates": len(tokens),
        "takes_contexts": bool(types),
        "with_contexts": given,
        "changed": sum(row["ranked"][0]["index"] != 0 for row in ranked),
        "best": [{"id": i, **row, **row["ranked"][0]} for i, row in enumerate(ranked[:SHOWN], start=1)],
    }
    return ranked, summary


def _ranked(group: CandidateList, log_probabilities: Any, sizes: Any, weight: float) -> list[dict[str, Any]]:
    rows = []
    for index, candidate in enumerate(group.candidates):
        log_p, size, score = next(log_probabilities), next(sizes), candidate.score
        total = log_p if weight == 1 else weight * log_p + (1 - weight) * (score or 0.0)
        row = {"text": candidate.text, "index": index, "log_probability": log_p, "tokens": size}
        row |= {"per_token": log_p / (size + 1)} | ({} if score is None else {"score": score}) | {"total": total}
        rows.append(row)
    rows.sort(key=lambda row: -row["total"])
    return [row | {"rank": rank} for rank, row in enumerate(rows, start=1)]


def _token_ids(where: str, group: CandidateList, tokenizer: Any, weight: float) -> list[np.ndarray]:
    without = [i for i, candidate in enumerate(group.candidates, start=1) if candidate.score is None]
    if weight < 1 and without:
        raise DataError(
            f"{where}: candidate {without[0]} has no score, which a weight of {weight:g} needs; give all of them one, or "
            "leave the weight out"
        )
    texts = [candidate.text for candidate in group.candidates]
    # Special tokens that a candidate spells are text, as in the documents of a corpus.
    options = {"add_special_tokens": False, "split_special_tokens": True, "verbose": False}
    tokens: list[list[int]] = tokenizer(texts, **options).input_ids
    for number, ids in enumerate(tokens, start=1):
        if not ids:
            raise DataError(f"{where}: candidate {number} has no tokens; remove it, or give its text")
    return [np.array(ids, dtype=np.int64) for ids in tokens]


def end_of_text(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """Id of the token that begins and ends a sentence: the tokenizer's, else what the model's configuration says."""
    token = tokenizer.eos_token_id
    if token is None:
        token = getattr(model.config, "eos_token_id", None)
    if not isinstance(token, int):
        raise ConfigError(
            "neither the tokenizer nor the model names an end-of-text token, by which a sentence ends; set the tokenizer's "
            "eos_token"
        )
    return token
