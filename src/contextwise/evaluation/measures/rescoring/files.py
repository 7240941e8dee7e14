"""Files of candidate lists: read, ranked by a model, and written beside its run; files of contexts, as e_cue vectors.

A line of a file of lists is an object: ``candidates``, each a text or ``{"text", "score"}``; and as far as known ``contexts``,
``{"title": ..., "date": ..., "previous_sentence": ...}``, and ``id``, whatever it is.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from contextwise.base.errors import ConfigError, DataError
from contextwise.base.files import atomic_write
from contextwise.base.progress import progress_bar, say
from contextwise.base.vectors import write_vectors
from contextwise.data.input_files import read_objects, read_value
from contextwise.evaluation.measures.rescoring.ranking import (
    Candidate,
    CandidateList,
    Ranked,
    context_texts,
    rank_lists,
    sets_of,
)
from contextwise.evaluation.measures.sentences.conditioning import (
    ContextSets,
    open_text_encoder,
    trained_types,
)
from contextwise.evaluation.opening import (
    chosen_device,
    chosen_dtype,
    default_destination,
    is_cue,
    model_on_device,
)
from contextwise.evaluation.scoring.sentences import Further
from contextwise.models import load_tokenizer
from contextwise.models.cue import CueConfig, CueContextConfig, CueContextEncoder
from contextwise.models.cue.encoding import TextEncoder
from contextwise.models.loading import load_as, load_config

LISTS = "one list of candidates a line, as JSON objects"
SETS = "one object of contexts a line"
SET = 'one object of contexts, {"title": ...}'
AT_ONCE = 1024
"""Sets of contexts that are encoded together."""


@dataclass(frozen=True)
class RankedFile:
    """A file of lists, ranked.

    Attributes:
        path: what was written: JSON Lines, ``id`` and ``ranked`` for each line of the file, in its order.
        lists: each line's candidates, the best first.
        ids: of the lines; None where a line has none.
        with_contexts: lists that came with contexts.
    """

    path: Path
    lists: list[list[Ranked]]
    ids: list[Any]
    with_contexts: int

    def rows(self) -> list[dict[str, Any]]:
        """What stands in the file, a line each."""
        return [
            {**({} if name is None else {"id": name}), "ranked": [one.to_dict() for one in ranked]}
            for name, ranked in zip(self.ids, self.lists, strict=True)
        ]


def rescore_file(
    source: str,
    file: Path,
    *,
    weight: float = 1.0,
    batch_tokens: int | None = None,
    dtype: str = "auto",
    device: str = "auto",
    out: Path | None = None,
) -> RankedFile:
    """Rank the candidates of each line of a file, and write them.

    Args:
        source: a run folder, a Hugging Face model folder, or a name on the Hub: a CUE model, or a causal language model of
            sentences, which passes the contexts over.
        file: JSON Lines (``.gz`` too); see the module.
        weight, batch_tokens: as :func:`~contextwise.evaluation.measures.rescoring.ranking.rescore` takes them.
        out: the JSON Lines file; by default ``rescored-NAME.jsonl`` where the run's evaluations are.

    Raises:
        ConfigError: an option is out of range, or ``out`` holds something else.
        DataError: the file is missing or damaged, or a line is not as it should be; names the line.
        CheckpointError: there is no such model, or its text encoder is another by now.
        Interrupted: ``should_stop`` said so; nothing was written.
    """
    out = out or default_destination(source, f"rescored-{_name(file)}.jsonl")
    _check_place(out, file)
    read = [(row.get("id"), _candidate_list(row, where)) for where, row in read_objects(file, LISTS)]
    if not read:
        raise DataError(f"{file} is empty; give {LISTS}")
    ids, lists = [name for name, _ in read], [one for _, one in read]
    model, tokenizer = model_on_device(source, dtype, device), load_tokenizer(source)
    further, encoder = _contexts(model, source, lists)
    with progress_bar(f"rescore {Path(source).name}", None, "tokens") as advance:
        ranked = rank_lists(
            model,
            lists,
            tokenizer,
            further,
            weight=weight,
            batch_tokens=batch_tokens,
            on_progress=advance,
        )
    _tell_of_cuts(encoder)
    found = RankedFile(out, ranked, ids, sum(bool(one.contexts) for one in lists))
    lines = [json.dumps(row, ensure_ascii=False, allow_nan=False) for row in found.rows()]
    atomic_write(out, "\n".join(lines) + "\n", "the ranked lists")
    return found


def _contexts(
    model: Any, source: str, lists: list[CandidateList]
) -> tuple[Further | None, TextEncoder | None]:
    """What gives the lists' contexts to the model, and the encoder of their texts; a model that takes none gets none."""
    given = sum(bool(one.contexts) for one in lists)
    if not given:
        return None, None
    if not trained_types(model.config):
        what = "was trained without contexts" if is_cue(source) else "is no CUE model"
        say(f"note: {source} {what}; the contexts of {given:,} of {len(lists):,} lists are passed over")
        return None, None
    encoder = open_text_encoder(model, source)
    return sets_of(model, lists, encoder), encoder


def _tell_of_cuts(encoder: TextEncoder | None) -> None:
    if encoder is not None and encoder.cut:
        texts = "context text was" if encoder.cut == 1 else "context texts were"
        say(f"note: {encoder.cut:,} {texts} longer than {encoder.max_tokens} tokens, and cut there")


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
    _tell_of_cuts(encoder)
    return shape


def _context_encoder(source: str, dtype: str, device: str) -> CueContextEncoder:
    config = load_config(source)
    if not isinstance(config, CueConfig | CueContextConfig):
        raise ConfigError(f"--contexts asks for e_cue, but {source} is no CUE model; leave it out")
    if not trained_types(config):
        raise ConfigError(
            f"{source} was trained without contexts, so it has no e_cue; adapt it to contexts first"
        )
    if isinstance(config, CueConfig):
        whole: Any = model_on_device(source, dtype, device)
        return whole.context_encoder
    place = chosen_device(device)
    return load_as(CueContextEncoder, "context encoder", source, chosen_dtype(dtype, place), place)


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
    _tell_of_cuts(encoder)
    return sets.batch(np.array([0]))


@torch.inference_mode()
def _vectors(model: CueContextEncoder, contexts: ContextSets, count: int) -> Iterator[np.ndarray]:
    with progress_bar("embed contexts", count, "sets") as advance:
        for start in range(0, count, AT_ONCE):
            batch = contexts.batch(np.arange(start, min(start + AT_ONCE, count)))
            if batch:
                found = model(batch["contexts"], batch["context_mask"])
            else:
                found = model.empty.expand(min(AT_ONCE, count - start), -1)
            yield found.float().cpu().numpy()
            advance(len(found))


def _candidate_list(row: dict[str, Any], where: str) -> CandidateList:
    given = row.get("candidates")
    if not isinstance(given, list):
        found = ", ".join(map(repr, list(row)[:6])) or "nothing"
        raise DataError(
            f"{where} has no list 'candidates' (it has {found}); give the texts to rank, or objects with 'text' and 'score'"
        )
    candidates = [_candidate(one, f"{where}: candidate {i}") for i, one in enumerate(given, start=1)]
    return CandidateList(candidates, _contexts_of({"contexts": row.get("contexts")}, where), where)


def _candidate(given: Any, where: str) -> Candidate:
    if isinstance(given, str):
        return Candidate(given)
    if not isinstance(given, dict) or not isinstance(given.get("text"), str):
        raise DataError(f"{where} is neither a text nor an object with 'text'; mend the line")
    score = given.get("score")
    if score is None:
        return Candidate(given["text"])
    if isinstance(score, bool) or not isinstance(score, int | float) or not np.isfinite(score):
        raise DataError(f"{where} has the score {score!r}, which is no finite number; mend the line")
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


def _name(file: Path) -> str:
    name = file.name.removesuffix(".gz")
    return name.removesuffix(Path(name).suffix)


def _check_place(out: Path, file: Path) -> None:
    """Refuse to write over anything but ranked lists.

    Raises:
        ConfigError: something else lies there.
    """
    if out.resolve() == file.resolve():
        raise ConfigError(f"--out is the file that is read, {file}; give another place")
    if not out.exists():
        return
    if out.is_file():
        with out.open("rb") as lines:
            first = lines.readline(1 << 20)
        if not first or b'"ranked": [' in first:
            return
    raise ConfigError(f"{out} holds something that is no ranked lists; give another place with --out")
