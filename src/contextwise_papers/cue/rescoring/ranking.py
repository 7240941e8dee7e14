"""Lists of candidates (n-best lists of a recogniser, of a translator) ranked by a sentence model, given their contexts.

A candidate's score is log P(w1 ... wn end | contexts) in nats: of all its tokens and of the end-of-text that ends it, the
negated sum of what :mod:`contextwise_papers.cue.scoring` gives for a sentence of these tokens. A text is tokenized
unchanged: with a tokenizer that keeps spaces (GPT-2's, ``train:N``) a sentence out of running text begins with the space
before it.

A line of a file of lists is an object: ``candidates``, each a text or ``{"text", "score"}``; and where known ``contexts``,
``{"title": ..., "date": ..., "previous_sentence": ...}``, and ``id``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from contextwise.base.errors import ConfigError, DataError
from contextwise.base.progress import progress_bar, say
from contextwise.data.input_files import read_objects
from contextwise.evaluation.kernel import Subject, Work
from contextwise.evaluation.scoring.windows import vocabulary_size
from contextwise_papers.cue.encoding import TextEncoder
from contextwise_papers.cue.rescoring.contexts import context_texts, contexts_of, note_truncated
from contextwise_papers.cue.scoring import (
    ContextSets,
    Further,
    Rows,
    Texts,
    open_text_encoder,
    score_rows,
    trained_types,
)

LISTS = "one list of candidates a line, as JSON objects"
SHOWN = 5
"""Lists whose best candidates are in the summary."""


@dataclass(frozen=True)
class Candidate:
    """A text to rank, with the score that it came with: a log-probability, or another number that is higher for better ones."""

    text: str
    score: float | None = None


@dataclass(frozen=True)
class Ranked:
    """A candidate with its rank.

    Attributes:
        index: of the candidate in the given list, from 0.
        rank: from 1, the best.
        log_probability: of its tokens and its end, nats; at most 0.
        tokens: of the text, without its end.
        per_token: ``log_probability`` over tokens and end.
        score: the candidate's own.
        total: ``weight * log_probability + (1 - weight) * score``, which determines the rank.
    """

    text: str
    index: int
    rank: int
    log_probability: float
    tokens: int
    per_token: float
    score: float | None
    total: float

    def to_dict(self) -> dict[str, Any]:
        """JSON values, for a file of ranked lists."""
        return {name: value for name, value in vars(self).items() if name != "score" or value is not None}


@dataclass(frozen=True)
class CandidateList:
    """A list of candidates and the contexts that all of them share, by type; ``name`` identifies it in messages."""

    candidates: Sequence[Candidate]
    contexts: Mapping[str, Any]
    name: str = "the list of candidates"


def rescore(
    model: PreTrainedModel,
    candidates: Sequence[str | Candidate],
    contexts: Mapping[str, Any] | None = None,
    *,
    tokenizer: PreTrainedTokenizerBase,
    text_encoder: TextEncoder | None = None,
    cue: Any = None,
    weight: float = 1.0,
    batch_tokens: int | None = None,
) -> list[Ranked]:
    """Rank candidates by their log-probability, the best first; equal ones stay in their order.

    Args:
        model: a CUE model, or any causal language model of sentences (which takes no contexts).
        candidates: texts, or texts with scores of their own.
        contexts: type -> value (text, date, number, list), as in a corpus's metadata; missing ones are omitted.
        tokenizer: the model's.
        text_encoder: the one that the model's context encoder was trained with; needed for contexts.
        cue: (W,) in place of contexts: e_cue, computed before (``contextwise model embed-contexts RUN FILE``).
        weight: share of the model in the total that determines the rank; the rest is the candidates' own scores.
        batch_tokens: positions of a batch, padding included; 16384 if not given.

    Raises:
        ConfigError: the weight is out of range, or the model does not take what it is given.
        DataError: there is no candidate, one has no tokens or no score that is needed, or a context is of no known type.
    """
    given = [Candidate(value) if isinstance(value, str) else value for value in candidates]
    lists = [CandidateList(given, contexts or {})]
    if cue is not None and contexts:
        raise ConfigError("both contexts and cue are given; leave one of them out")
    further = sets_of(model, lists, text_encoder) if cue is None else _same_cue(model, cue)
    return rank_lists(model, lists, tokenizer, further, weight=weight, batch_tokens=batch_tokens)[0]


def rank_lists(
    model: PreTrainedModel,
    lists: Sequence[CandidateList],
    tokenizer: PreTrainedTokenizerBase,
    further: Further | None = None,
    *,
    weight: float = 1.0,
    **options: Any,
) -> list[list[Ranked]]:
    """Rank many lists in one scoring pass; ``further`` and ``options`` as :func:`score_rows` takes them."""
    if not 0 <= weight <= 1:
        raise ConfigError(f"the weight of the model is {weight}; it must be between 0 and 1")
    tokens = [np.array(ids, dtype=np.int64) for group in lists for ids in _token_ids(group, tokenizer, weight)]
    highest, vocabulary = max(int(ids.max()) for ids in tokens), vocabulary_size(model)
    if highest >= vocabulary:
        raise ConfigError(
            f"the tokenizer gives the token {highest}, but the model knows {vocabulary} tokens; give the tokenizer that "
            "belongs to the model"
        )
    rows = Rows(tokens, end_of_text(model, tokenizer))
    sums = iter(rows.sums(score_rows(model, rows, further, **options).nats).tolist())
    sizes = iter(rows.lengths.tolist())
    return [
        _ranked(group.candidates, [next(sums) for _ in group.candidates], [next(sizes) for _ in group.candidates], weight)
        for group in lists
    ]  # fmt: skip


def _ranked(
    candidates: Sequence[Candidate], nats: Sequence[float], targets: Sequence[int], weight: float
) -> list[Ranked]:
    totals = [
        -nat if weight == 1 else weight * -nat + (1 - weight) * (candidate.score or 0.0)
        for candidate, nat in zip(candidates, nats, strict=True)
    ]
    ranked = []
    for rank, i in enumerate(sorted(range(len(candidates)), key=lambda i: -totals[i]), start=1):
        text, score, size = candidates[i].text, candidates[i].score, targets[i]
        ranked.append(Ranked(text, i, rank, -nats[i], size - 1, -nats[i] / size, score, totals[i]))
    return ranked


def _token_ids(group: CandidateList, tokenizer: PreTrainedTokenizerBase, weight: float) -> list[list[int]]:
    if not group.candidates:
        raise DataError(f"{group.name} has no candidates; give at least one")
    without = [i for i, candidate in enumerate(group.candidates, start=1) if candidate.score is None]
    if weight < 1 and without:
        raise DataError(
            f"{group.name}: candidate {without[0]} has no score, which a weight of {weight:g} needs; give all of them one, or "
            "leave the weight out"
        )
    texts = [candidate.text for candidate in group.candidates]
    # Special tokens that a candidate spells are text, as in the documents of a corpus.
    options = {"add_special_tokens": False, "split_special_tokens": True, "verbose": False}
    token_ids: list[list[int]] = tokenizer(texts, **options).input_ids
    for number, ids in enumerate(token_ids, start=1):
        if not ids:
            raise DataError(f"{group.name}: candidate {number} has no tokens; remove it, or give its text")
    return token_ids


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


def sets_of(model: PreTrainedModel, lists: Sequence[CandidateList], text_encoder: TextEncoder | None) -> Further | None:
    """Function from rows to the context inputs of the model; None if no list has contexts."""
    if not any(group.contexts for group in lists):
        return None
    types = trained_types(model.config)
    if not types:
        raise ConfigError("contexts are given, but the model takes none; leave them out")
    sets: list[Texts] = []
    for group in lists:
        sets += [context_texts(group.contexts, types, group.name)] * len(group.candidates)
    if text_encoder is None:
        raise ConfigError("contexts are given without the text encoder that encodes them; give text_encoder too")
    return ContextSets(sets, lambda texts: torch.from_numpy(text_encoder.encode(texts)), model).batch


def _same_cue(model: PreTrainedModel, cue: Any) -> Further:
    """Function from rows to the model's input ``cue``: one vector for all candidates."""
    decoder: Any = getattr(model.config, "decoder", None)
    vector = torch.as_tensor(cue, dtype=model.dtype, device=model.device)
    if decoder is None or not hasattr(decoder, "cue_width"):
        raise ConfigError("cue is given, but the model is not a CUE model; leave it out")
    if vector.shape != (decoder.cue_width,):
        raise ConfigError(
            f"cue has the shape {tuple(vector.shape)}, but the model takes one vector of {decoder.cue_width} channels"
        )
    return lambda rows: {"cue": vector.expand(len(rows), -1)}


def rank_file(subject: Subject, file: Path, weight: float, work: Work) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rank the candidates of each line of a file: a row for each, ``id`` (if it has one) and ``ranked``; and the summary."""
    lines = [(row.get("id"), _candidate_list(row, where)) for where, row in read_objects(file, LISTS)]
    if not lines:
        raise DataError(f"{file} is empty; give {LISTS}")
    lists = [candidates for _, candidates in lines]
    takes_contexts, given = bool(trained_types(subject.config)), sum(bool(each.contexts) for each in lists)
    further, encoder = None, None
    if given and takes_contexts:
        encoder = open_text_encoder(subject.model, subject.source)
        further = sets_of(subject.model, lists, encoder)
    elif given:
        what = "was trained without contexts" if subject.spec.takes_contexts else "is not a CUE model"
        say(f"note: {subject.source} {what}; the contexts of {given:,} of {len(lists):,} lists are ignored")
    with progress_bar(f"rescore {subject.name}", None, "tokens") as advance:
        options = {"batch_tokens": subject.batch_tokens, "on_progress": advance, "work": work}
        ranked = rank_lists(subject.model, lists, subject.tokenizer, further, weight=weight, **options)
    note_truncated(encoder)
    rows: list[dict[str, Any]] = []
    for (name, _), candidates in zip(lines, ranked, strict=True):
        own = {} if name is None else {"id": name}
        rows.append({**own, "ranked": [candidate.to_dict() for candidate in candidates]})
    summary = {
        "lists": len(rows),
        "candidates": sum(map(len, ranked)),
        "takes_contexts": takes_contexts,
        "with_contexts": given,
        "changed": sum(candidates[0].index != 0 for candidates in ranked),
        "best": [{"id": i, **row, **row["ranked"][0]} for i, row in enumerate(rows[:SHOWN], start=1)],
    }
    return rows, summary


def _candidate_list(row: dict[str, Any], where: str) -> CandidateList:
    given = row.get("candidates")
    if not isinstance(given, list):
        fields = ", ".join(map(repr, list(row)[:6])) or "nothing"
        raise DataError(
            f"{where} has no list 'candidates' (it has {fields}); give the texts to rank, or objects with 'text' and 'score'"
        )
    candidates = [_candidate(value, f"{where}: candidate {i}") for i, value in enumerate(given, start=1)]
    return CandidateList(candidates, contexts_of({"contexts": row.get("contexts")}, where), where)


def _candidate(given: Any, where: str) -> Candidate:
    given = {"text": given} if isinstance(given, str) else given
    if not isinstance(given, dict) or not isinstance(given.get("text"), str):
        raise DataError(f"{where} is neither a text nor an object with 'text'; fix the line")
    score = given.get("score")
    if score is None:
        return Candidate(given["text"])
    if isinstance(score, bool) or not isinstance(score, int | float) or not np.isfinite(score):
        raise DataError(f"{where} has the score {score!r}, which is not a finite number; fix the line")
    return Candidate(given["text"], float(score))
