"""Attention that the tokens and chunks of one text receive from models: the numbers, a table, plots and a page.

T positions, H heads; by one pass with eager attention, which alone returns its weights. Source: ContextLM, Section 4.3 and
Figure 5. The paper does not say how it normalises; here the sum over queries is divided by how many queries can see a token.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from contextwise.evaluation.generation import start_token
from contextwise.evaluation.scoring.windows import not_finite, vocabulary_size
from contextwise.measures import Subject
from contextwise.models.contextlm.pathway import context_pathway
from contextwise.models.tokenizers import model_tokenizer_hash
from contextwise.report import Page, Section, Table, as_json, listed
from contextwise.reports.page import commands
from contextwise.settings import CheckpointError, ConfigError, DataError
from contextwise_papers.page import sections_of
from contextwise_papers.tables import Plot, point, table_of

MOST_MODELS = 4
MOST_TOKENS = 1024
"""Limits of a readable figure, and of weights (layers x heads x T x T) that fit into memory."""
DEFAULT_CHUNK = 4


@dataclass(frozen=True)
class Reading:
    """A text, and (T,) by name of a model: the attention that each token receives, mean over layers, heads and queries.

    ``pieces`` of the tokens are together the text, after the token that begins it, if there is one (``has_start``).
    """

    pieces: list[str]
    ids: list[int]
    has_start: bool
    chunk_size: int
    sources: list[str]
    received: dict[str, np.ndarray]

    @property
    def chunks(self) -> np.ndarray:
        """(T,) the chunk of each position, counted from 0."""
        return np.arange(len(self.ids)) // self.chunk_size

    def chunk_sums(self, values: np.ndarray) -> np.ndarray:
        """(..., T) values summed over the tokens of each chunk, the unfinished last one included."""
        return np.add.reduceat(values, np.arange(0, values.shape[-1], self.chunk_size), axis=-1)


def read_with_models(sources: Sequence[str], text: str, *, dtype: str = "auto", device: str = "auto") -> Reading:
    """Compute the attention of models in a text; its chunks are those of the first ContextLM among them, else of 4 tokens."""
    if not 1 <= len(sources) <= MOST_MODELS:
        raise ConfigError(f"{len(sources)} models are given; give one to {MOST_MODELS}")
    subjects = [Subject(source, dtype=dtype, device=device) for source in dict.fromkeys(sources)]
    ids, pieces, has_start = _tokens(subjects, text)
    received, sizes = {}, []
    for subject, name in zip(subjects, _names(subjects), strict=True):
        _check_fits(subject, ids, has_start)
        received[name] = attention_received(subject.model, ids, subject.source)
        pathway = context_pathway(subject.model)
        sizes += [] if pathway is None else [pathway.chunk_size]
        del subject.model  # one model at a time
    return Reading(pieces, ids, has_start, next(iter(sizes), DEFAULT_CHUNK), [s.source for s in subjects], received)


@torch.no_grad()
def attention_received(model: PreTrainedModel, ids: Sequence[int], source: str) -> np.ndarray:
    """(T,) the attention that each token receives in a loaded model, which keeps eager attention.

    The weights of all queries on a token, divided by how many can see it, T - j for token j; mean over the heads of each layer
    and over the layers, a context predictor's left out.
    """
    model.set_attn_implementation("eager")
    weights = model(torch.tensor([list(ids)], device=model.device), output_attentions=True, use_cache=False).attentions
    if not weights or any(weights_BHTT is None for weights_BHTT in weights):
        raise CheckpointError(
            f"{source} gives no attention weights: models of type {model.config.model_type} do not return them; give another"
        )
    sums = [weights_BHTT[0].float().sum(dim=-2).cpu().numpy() for weights_BHTT in weights]
    if not all(np.isfinite(sums_HT).all() for sums_HT in sums):
        raise not_finite(f"{source} gives attention weights that are not finite")
    sums_T = np.mean([sums_HT.mean(axis=0) for sums_HT in sums], axis=0)
    return sums_T / (len(sums_T) - np.arange(len(sums_T)))


def _tokens(subjects: Sequence[Subject], text: str) -> tuple[list[int], list[str], bool]:
    """Token ids, the text of each, and whether the first precedes the text."""
    if not text.strip():
        raise DataError("the text is empty; give some words")
    tokenizers, sources = [s.tokenizer for s in subjects], [s.source for s in subjects]
    options = {"add_special_tokens": False, "split_special_tokens": True, "verbose": False}  # as documents are read
    every = [tokenizer(text, **options).input_ids for tokenizer in tokenizers]
    hashes = [model_tokenizer_hash(source) for source in sources]
    begins = [start_token(tokenizer) for tokenizer in tokenizers]
    for source, ids, digest, begin in zip(sources, every, hashes, begins, strict=True):
        if (ids, begin) != (every[0], begins[0]) or len({digest, hashes[0]} - {None}) > 1:
            raise ConfigError(
                f"{sources[0]} and {source} have different tokenizers, so their tokens cannot be compared; give models "
                "with the same one"
            )
    pieces, ids = token_pieces(tokenizers[0], every[0]), every[0]
    if begins[0] is not None:
        pieces, ids = [str(tokenizers[0].convert_ids_to_tokens(begins[0])), *pieces], [begins[0], *ids]
    if len(ids) < 2:
        raise DataError("the text is a single token, which has nothing to attend to; give a longer one")
    return ids, pieces, begins[0] is not None


def token_pieces(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], before: int = 8) -> list[str]:
    """The text that each token adds; of the tokens of one character, the last adds all of it.

    Each is decoded with ``before`` tokens before it: some tokenizers leave out a space before the first token.
    """

    def decode(low: int, high: int) -> str:
        return tokenizer.decode(ids[low:high], clean_up_tokenization_spaces=False).rstrip("\ufffd")

    pieces, shown = [], 0
    for end in range(1, len(ids) + 1):
        low = max(0, min(shown, end - before))
        pieces.append(decode(low, end)[len(decode(low, shown)) :])
        shown = end if pieces[-1] else shown
    return pieces


def _check_fits(subject: Subject, ids: list[int], has_start: bool) -> None:
    source, limit, has = subject.source, subject.positions, f"the text has {len(ids):,} tokens"
    if limit is not None and len(ids) > limit:
        counted = " with the one that begins it" if has_start else ""
        raise DataError(f"{has}{counted}, but {source} has only {limit:,} positions; shorten the text")
    if len(ids) > MOST_TOKENS:
        raise DataError(f"{has}, but a page shows {MOST_TOKENS:,} at most; shorten it")
    vocabulary = vocabulary_size(subject.model)
    if max(ids) >= vocabulary:
        raise CheckpointError(
            f"the tokenizer of {source} gives token id {max(ids)}, but its model knows only {vocabulary}; save the tokenizer "
            "that the model was trained with beside it"
        )


def _names(subjects: Sequence[Subject]) -> list[str]:
    """Name of each model: a run's name, else its folder's; its source where two have the same name."""

    def name(subject: Subject) -> str:
        recipe = subject.run.recipe() if subject.run else {}
        path = Path(subject.source)
        return str(recipe.get("name") or path.resolve().name if path.exists() else subject.source)

    names = [name(subject) for subject in subjects]
    return [s.source if names.count(n) > 1 else n for n, s in zip(names, subjects, strict=True)]


def write_attention_page(reading: Reading, path: Path, command: list[str] | None = None) -> None:
    """Write the page (:meth:`~contextwise.reports.page.Page.write`); ``command``: the command line that made it."""
    attention = _one(reading)
    sections = [
        *sections_of([], drawn(reading, attention, next(iter(attention)))),
        Section("Attention received by each chunk", [received_table(reading)]),
        Section("How it was made", [commands([shlex.join(command)])] if command else []),
    ]
    title = f"What {listed(list(attention))} attend{'s' * (len(attention) == 1)} to"
    start = f", behind {reading.pieces[0]}" if reading.has_start else ""
    subtitle = f"A text of {len(reading.ids) - reading.has_start:,} tokens{start}, in chunks of {reading.chunk_size}."
    Page(title, sections, subtitle, source=__file__).write(path)


def received_table(reading: Reading) -> Table:
    """Attention received by each chunk, and how much more than in the first model."""
    about = "mean over layers, heads and the queries that see a token"
    return chunks_table(reading, _one(reading), next(iter(reading.received)), about)


def _one(reading: Reading) -> dict[str, np.ndarray]:
    """(1, T) by name of a model: as of several seeds."""
    return {name: values_T[None] for name, values_T in reading.received.items()}


def chunks_table(reading: Reading, attention: dict[str, np.ndarray], reference: str, about: str) -> Table:
    """Attention received by each chunk, and how much more than the reference's; ``about`` ends the title."""
    sums = {name: reading.chunk_sums(values).mean(axis=0) for name, values in attention.items()}
    others = [name for name in sums if name != reference]
    first = int(reading.has_start)
    shown = [*(f"{piece} " for piece in reading.pieces[:first]), *reading.pieces[first:]]
    rows = []
    for chunk in range(len(sums[reference])):
        text = "".join(piece for piece, of in zip(shown, reading.chunks, strict=True) if of == chunk)
        changes = (sums[name][chunk] / sums[reference][chunk] - 1 for name in others)
        rows.append([f"{chunk + 1}: {' '.join(text.split())}", *(values[chunk] for values in sums.values()), *changes])
    columns = [(name, ".4f") for name in sums] + [(f"{name} to {reference}", "+.1%") for name in others]
    title = f"Attention received by each chunk of {reading.chunk_size} tokens; {about}"
    return table_of(title, ["chunk", *columns], rows)


def drawn(reading: Reading, attention: dict[str, np.ndarray], reference: str) -> list[Plot]:
    """A line a model, by token; of several models also over the reference's.

    The token before the text is left out, since it receives many times what others do.
    """
    means = {name: values.mean(axis=0) for name, values in attention.items()}
    shares = {name: values / means[reference] for name, values in means.items()}
    title, positions = "Attention received by each token", range(int(reading.has_start), len(reading.ids))
    plots = []
    for heading, y, by_model in (
        (title, "attention received", means),
        (f"{title}, over that from {reference}", f"times that from {reference}", shares),
    ):
        series = {
            name: [point(i, float(values[i])) | {"text": reading.pieces[i]} for i in positions]
            for name, values in by_model.items()
        }
        plots.append(Plot(heading, "token", y, series))
    return plots if len(means) > 1 else plots[:1]


def numbers(reading: Reading) -> dict[str, Any]:
    """The numbers of the text and of each token, for programs."""
    models = [
        {
            "model": source,
            "name": name,
            "token_received": as_json(values_T),
            "chunk_received": as_json(reading.chunk_sums(values_T)),
        }
        for source, (name, values_T) in zip(reading.sources, reading.received.items(), strict=True)
    ]
    return {"tokens": reading.pieces, "chunk_size": reading.chunk_size, "models": models}
