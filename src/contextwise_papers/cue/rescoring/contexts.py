"""Files of contexts: e_cue vectors of them, and the inputs that they give to ``generate()``."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from contextwise.base.errors import ConfigError, DataError, did_you_mean
from contextwise.base.progress import progress_bar, say
from contextwise.data.input_files import HALF_A_PAIR, has_half_a_pair, parse_json, read_objects, readable, unpacked
from contextwise.data.metadata import as_english
from contextwise.evaluation.kernel import Subject
from contextwise.models.loading import load_as
from contextwise_papers.cue import CueConfig, CueContextConfig, CueContextEncoder
from contextwise_papers.cue.encoding import TextEncoder
from contextwise_papers.cue.scoring import ContextSets, Texts, open_text_encoder, trained_types
from contextwise_papers.objectives.embedding.whitening import write_vectors

SETS = "one object of contexts a line"
SET = 'one object of contexts, {"title": ...}'
AT_ONCE = 1024
"""Sets of contexts that are encoded together."""


def write_cue_vectors(
    source: str, file: Path, out: Path, *, dtype: str = "auto", device: str = "auto"
) -> tuple[int, int]:
    """Write e_cue of the contexts of each line of a file: a NumPy file, (lines, W) float32; returns its shape.

    Args:
        source: a CUE model, or the folder of its context encoder alone (``RUN/parts/context_encoder``).
        file: JSON Lines (``.gz`` too): objects from context types to values, or objects with such an object in ``contexts``.
    """
    subject = Subject(source, dtype=dtype, device=device)
    config: Any = subject.config
    if not isinstance(config, CueConfig | CueContextConfig):
        raise ConfigError(f"contexts is given for e_cue, but {source} is not a CUE model; leave it out")
    if not trained_types(config):
        raise ConfigError(f"{source} was trained without contexts, so it has no e_cue; adapt it to contexts first")
    if isinstance(config, CueConfig):
        model: CueContextEncoder = subject.model.context_encoder
    else:
        model = load_as(CueContextEncoder, "context encoder", source, subject.dtype, subject.device)
    rows = [(where, contexts_of(row, where)) for where, row in read_objects(file, SETS)]
    if not rows:
        raise DataError(f"{file} is empty; give {SETS}")
    types = trained_types(model.config)
    sets, encoder = _encoded(model, source, [context_texts(contexts, types, where) for where, contexts in rows])
    vectors = np.concatenate(list(_vectors(model, sets, len(rows))))
    write_vectors(out, vectors)
    note_truncated(encoder)
    return vectors.shape


def contexts_for(model: PreTrainedModel, source: str, file: Path) -> dict[str, torch.Tensor]:
    """What ``generate()`` of a CUE model takes of a file with one object of contexts: ``contexts`` and ``context_mask``."""
    types = trained_types(model.config)
    if not types:
        raise ConfigError(f"contexts is given, but {source} takes no contexts; leave it out")
    row = _read_object(file)
    sets, encoder = _encoded(model, source, [context_texts(contexts_of(row, str(file)), types, str(file))])
    note_truncated(encoder)
    return sets.batch(np.array([0]))


def _read_object(file: Path) -> dict[str, Any]:
    """The JSON object of a file, which may have several lines."""
    with readable(file), file.open("rb") as raw, unpacked(raw, file) as opened:
        content = opened.read()
    try:
        value = parse_json(content)
    except ValueError as error:
        raise DataError(f"{file} {error}; give {SET}") from None
    if not isinstance(value, dict):
        raise DataError(f"{file} is not a JSON object; give {SET}")
    if has_half_a_pair(value, content):
        raise DataError(f"{file} {HALF_A_PAIR}; fix it there")
    return value


def _encoded(model: PreTrainedModel, source: str, sets: Sequence[Texts]) -> tuple[ContextSets, TextEncoder]:
    encoder = open_text_encoder(model, source)
    return ContextSets(sets, lambda texts: torch.from_numpy(encoder.encode(texts)), model), encoder


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


def contexts_of(row: dict[str, Any], where: str) -> dict[str, Any]:
    """The contexts of a line: its object ``contexts`` if it has that field or is a list of candidates, else the line itself."""
    contexts = row.get("contexts") if {"contexts", "candidates"} & row.keys() else row
    if not isinstance(contexts, dict | None):
        raise DataError(f"{where}: 'contexts' is not an object; give the contexts by type, as {{\"title\": ...}}")
    return contexts or {}


def context_texts(contexts: Mapping[str, Any], types: Sequence[str], where: str) -> Texts:
    """The text of each type, in the order of ``types``; None for one that is missing."""
    for name in contexts:
        if name not in types:
            raise DataError(f"{where}: the context {name!r} is unknown to the model; {did_you_mean(name, types)}")
    texts = []
    for name in types:
        try:
            texts.append(as_english(contexts.get(name)))
        except DataError:
            raise DataError(
                f"{where}: the context {name!r} is an object, which has no text of its own; give a text, a date, a number or a "
                "list of them"
            ) from None
    return texts


def note_truncated(encoder: TextEncoder | None) -> None:
    """Print a note where context texts were longer than the encoder's input."""
    if encoder is not None and (cut := sum(encoder.embedder.was_cut)):
        texts = "context text was" if cut == 1 else "context texts were"
        say(f"note: {cut:,} {texts} longer than {encoder.max_tokens} tokens, and truncated")
