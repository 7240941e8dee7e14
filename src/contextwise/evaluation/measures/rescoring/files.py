"""Files of candidate lists, read and ranked by a model; files of contexts, encoded as e_cue vectors.

A line of a file of lists is an object: ``candidates``, each a text or ``{"text", "score"}``; and where known ``contexts``,
``{"title": ..., "date": ..., "previous_sentence": ...}``, and ``id``, whatever it is.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from contextwise.base.errors import ConfigError, DataError
from contextwise.base.files import write_vectors
from contextwise.base.progress import progress_bar, say
from contextwise.data.input_files import read_objects, read_value
from contextwise.evaluation.kernel import Subject
from contextwise.evaluation.measures.rescoring.ranking import (
    Candidate,
    CandidateList,
    context_texts,
    rank_lists,
    sets_of,
)
from contextwise.evaluation.scoring.sentences import (
    ContextSets,
    Further,
    open_text_encoder,
    trained_types,
)
from contextwise.models.cue import CueConfig, CueContextConfig, CueContextEncoder
from contextwise.models.cue.encoding import TextEncoder
from contextwise.models.loading import load_as

LISTS = "one list of candidates a line, as JSON objects"
SETS = "one object of contexts a line"
SET = 'one object of contexts, {"title": ...}'
SHOWN = 5
"""Lists whose best candidates are in the summary."""
AT_ONCE = 1024
"""Sets of contexts that are encoded together."""


def rank_file(subject: Subject, file: Path, weight: float) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rank the candidates of each line of a file.

    Args:
        weight: as :func:`~contextwise.evaluation.measures.rescoring.ranking.rescore` takes it.

    Returns:
        A row for each line, ``id`` (if it has one) and ``ranked``; and the summary.

    Raises:
        DataError: the file is missing, damaged or empty, or a line is invalid; names the line.
        CheckpointError: the text encoder of the model has changed since its training.
    """
    lines = [(row.get("id"), _candidate_list(row, where)) for where, row in read_objects(file, LISTS)]
    if not lines:
        raise DataError(f"{file} is empty; give {LISTS}")
    lists = [candidates for _, candidates in lines]
    takes_contexts = bool(trained_types(subject.config))
    further, encoder = _contexts(subject, lists, takes_contexts)
    with progress_bar(f"rescore {subject.name}", None, "tokens") as advance:
        ranked = rank_lists(
            subject.model,
            lists,
            subject.tokenizer,
            further,
            weight=weight,
            batch_tokens=subject.batch_tokens,
            on_progress=advance,
        )
    _note_truncated(encoder)
    rows = [
        {
            **({} if name is None else {"id": name}),
            "ranked": [candidate.to_dict() for candidate in candidates],
        }
        for (name, _), candidates in zip(lines, ranked, strict=True)
    ]
    summary = {
        "lists": len(rows),
        "candidates": sum(map(len, ranked)),
        "takes_contexts": takes_contexts,
        "with_contexts": sum(bool(candidates.contexts) for candidates in lists),
        "changed": sum(candidates[0].index != 0 for candidates in ranked),
        "best": [
            {"id": i, **row, **row.pop("ranked")[0]} for i, row in enumerate(map(dict, rows[:SHOWN]), start=1)
        ],
    }
    return rows, summary


def _contexts(
    subject: Subject, lists: list[CandidateList], takes_contexts: bool
) -> tuple[Further | None, TextEncoder | None]:
    """What gives the lists' contexts to the model, and the encoder of their texts; a model that takes none gets none."""
    given = sum(bool(candidates.contexts) for candidates in lists)
    if not given:
        return None, None
    if not takes_contexts:
        what = "was trained without contexts" if subject.is_cue else "is not a CUE model"
        say(f"note: {subject.source} {what}; the contexts of {given:,} of {len(lists):,} lists are ignored")
        return None, None
    encoder = open_text_encoder(subject.model, subject.source)
    return sets_of(subject.model, lists, encoder), encoder


def _note_truncated(encoder: TextEncoder | None) -> None:
    if encoder is not None and encoder.cut:
        texts = "context text was" if encoder.cut == 1 else "context texts were"
        say(f"note: {encoder.cut:,} {texts} longer than {encoder.max_tokens} tokens, and truncated")


def write_cue_vectors(
    source: str,
    file: Path,
    out: Path,
    *,
    dtype: str = "auto",
    device: str = "auto",
) -> tuple[int, int]:
    """Write e_cue of the contexts of each line of a file: a NumPy file, (lines, W) float32; returns its shape.

    Args:
        source: a CUE model, or the folder of its context encoder alone (``RUN/parts/context_encoder``).
        file: JSON Lines (``.gz`` too): objects from context types to values, or objects with such an object in ``contexts``.

    Raises:
        ConfigError: the model is neither a CUE model nor a context encoder, or has none.
        DataError: the file is missing or damaged, a line has contexts that the model does not know, or the disk is full.
        CheckpointError: there is no such model, or its text encoder is another by now.
    """
    model = _context_encoder(source, dtype, device)
    types = trained_types(model.config)
    rows = [(where, _contexts_of(row, where)) for where, row in read_objects(file, SETS)]
    if not rows:
        raise DataError(f"{file} is empty; give {SETS}")
    sets = [context_texts(contexts, types, where) for where, contexts in rows]
    encoder = open_text_encoder(model, source)
    contexts = ContextSets(sets, lambda texts: torch.from_numpy(encoder.encode(texts)), model)
    shape = write_vectors(out, _vectors(model, contexts, len(sets)), len(sets))
    _note_truncated(encoder)
    return shape


def _context_encoder(source: str, dtype: str, device: str) -> CueContextEncoder:
    subject = Subject(source, dtype=dtype, device=device)
    config: Any = subject.config
    if not isinstance(config, CueConfig | CueContextConfig):
        raise ConfigError(f"--contexts asks for e_cue, but {source} is not a CUE model; leave it out")
    if not trained_types(config):
        raise ConfigError(
            f"{source} was trained without contexts, so it has no e_cue; adapt it to contexts first"
        )
    if isinstance(config, CueConfig):
        return subject.model.context_encoder
    return load_as(CueContextEncoder, "context encoder", source, subject.dtype, subject.device)


def contexts_for(model: PreTrainedModel, source: str, file: Path) -> dict[str, torch.Tensor]:
    """What ``generate()`` of a CUE model takes of a file with one object of contexts: ``contexts`` and ``context_mask``.

    Raises:
        ConfigError: the model takes no contexts.
        DataError: the file is missing or damaged, or has contexts that the model does not know.
        CheckpointError: the text encoder is another by now.
    """
    types = trained_types(model.config)
    if not types:
        raise ConfigError(f"--contexts is given, but {source} takes no contexts; leave it out")
    row = read_value(file, SET)
    if not isinstance(row, dict):
        raise DataError(f"{file} is not a JSON object; give {SET}")
    texts = context_texts(_contexts_of(row, str(file)), types, str(file))
    encoder = open_text_encoder(model, source)
    sets = ContextSets([texts], lambda known: torch.from_numpy(encoder.encode(known)), model)
    _note_truncated(encoder)
    return sets.batch(np.array([0]))


@torch.inference_mode()
def _vectors(model: CueContextEncoder, contexts: ContextSets, count: int) -> Iterator[np.ndarray]:
    with progress_bar("embed contexts", count, "sets") as advance:
        for start in range(0, count, AT_ONCE):
            batch = contexts.batch(np.arange(start, min(start + AT_ONCE, count)))
            if batch:
                vectors = model(batch["contexts"], batch["context_mask"])
            else:
                vectors = model.empty.expand(min(AT_ONCE, count - start), -1)
            yield vectors.float().cpu().numpy()
            advance(len(vectors))


def _candidate_list(row: dict[str, Any], where: str) -> CandidateList:
    given = row.get("candidates")
    if not isinstance(given, list):
        fields = ", ".join(map(repr, list(row)[:6])) or "nothing"
        raise DataError(
            f"{where} has no list 'candidates' (it has {fields}); give the texts to rank, or objects with 'text' and 'score'"
        )
    candidates = [_candidate(value, f"{where}: candidate {i}") for i, value in enumerate(given, start=1)]
    return CandidateList(candidates, _contexts_of({"contexts": row.get("contexts")}, where), where)


def _candidate(given: Any, where: str) -> Candidate:
    if isinstance(given, str):
        return Candidate(given)
    if not isinstance(given, dict) or not isinstance(given.get("text"), str):
        raise DataError(f"{where} is neither a text nor an object with 'text'; fix the line")
    score = given.get("score")
    if score is None:
        return Candidate(given["text"])
    if isinstance(score, bool) or not isinstance(score, int | float) or not np.isfinite(score):
        raise DataError(f"{where} has the score {score!r}, which is not a finite number; fix the line")
    return Candidate(given["text"], float(score))


def _contexts_of(row: dict[str, Any], where: str) -> dict[str, Any]:
    """The contexts of a line: its object ``contexts`` if it has that field or is a list of candidates, else the line itself."""
    contexts = row.get("contexts") if {"contexts", "candidates"} & row.keys() else row
    if contexts is None:
        return {}
    if not isinstance(contexts, dict):
        raise DataError(
            f"{where}: 'contexts' is not an object; give the contexts by type, as {{\"title\": ...}}"
        )
    return contexts
