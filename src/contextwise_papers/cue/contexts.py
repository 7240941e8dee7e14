"""The contexts of sentences: their names and texts (CUE, Section 3.1), their text encoder, and their vectors in batches."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedConfig, PreTrainedModel

from contextwise.data import Corpus, readable
from contextwise.data.input_files import json_object, unpacked
from contextwise.report import say
from contextwise.settings import CheckpointError, ConfigError, DataError, did_you_mean
from contextwise_papers.cue.config import CueContextConfig
from contextwise_papers.cue.encoding import EncodedTexts, TextEncoder, TextTable, check_encoder
from contextwise_papers.cue.english import as_english, column_texts
from contextwise_papers.cue.parts import CueContextEncoder
from contextwise_papers.cue.settings import PREVIOUS, ContextSettings
from contextwise_papers.objectives.text import SentenceIndex

Texts = Sequence[str | None]
"""The texts of one sentence's contexts, one for each type; None where a context is missing."""
Further = Callable[[np.ndarray], dict[str, torch.Tensor]]
"""Maps the numbers of a batch's sentences (B,) to the further inputs of a CUE model."""
SET = 'one object of contexts, {"title": ...}'


def trained_types(config: PreTrainedConfig) -> list[str]:
    """Names of the contexts that a CUE model's context encoder, or a context encoder alone, was last trained with."""
    encoder = _context_config(config)
    return ContextSettings(**encoder.contexts).types if encoder is not None and encoder.contexts else []


def _context_config(config: Any) -> CueContextConfig | None:
    return config if isinstance(config, CueContextConfig) else getattr(config, "context_encoder", None)


def encoder_config(model: PreTrainedModel, source: str) -> CueContextConfig:
    """The configuration of a model's context encoder; a CheckpointError if it has none."""
    config = _context_config(model.config)
    if config is None:
        raise CheckpointError(f"{source} has no context encoder, so it takes no contexts")
    return config


def open_text_encoder(model: PreTrainedModel, source: str) -> TextEncoder:
    """The encoder of the vectors that a context encoder was trained on, or which is a part of it, on the model's device."""
    config = encoder_config(model, source)
    name, pooling, tokens = (config.text_encoder[key] for key in ("name", "pooling", "max_tokens"))
    part: Any = model if isinstance(model, CueContextEncoder) else model.context_encoder
    encoder = TextEncoder.open(name, pooling, max_tokens=tokens, device=model.device, model=part.text_model)
    check_encoder(encoder, config.text_encoder)
    return encoder


class ContextTexts:
    """The context texts of a corpus's sentences, of each of ``types``: metadata of the document, and the sentence before."""

    def __init__(self, sentences: SentenceIndex, types: Sequence[str]) -> None:
        self.sentences, self.types, corpus = sentences, list(types), sentences.corpus
        self._columns = {name: column_texts(corpus, name) for name in types if name != PREVIOUS}
        self._tokenizer: Any = sentences.tokenizer
        self._counts = np.diff(sentences.starts)
        filled = any(texts[i] is not None for texts in self._columns.values() for i in np.flatnonzero(self._counts))
        if not filled and not (PREVIOUS in types and (self._counts > 1).any()):
            raise DataError(
                f"no sentence of the split {corpus.split!r} of {corpus.path} has any of the contexts "
                f"{', '.join(types)}; all are missing: name other columns"
            )

    def __len__(self) -> int:
        return len(self.sentences)

    def of(self, number: int) -> list[str | None]:
        """The texts of the contexts of sentence ``number``, (K,); None for missing ones."""
        document, sentence = self.sentences.place(number)
        return [
            self._before(document, sentence) if name == PREVIOUS else self._columns[name][document]
            for name in self.types
        ]

    def _before(self, document: int, sentence: int) -> str | None:
        if sentence == 0:
            return None
        ids = self.sentences.read(document, sentence - 1, sentence)
        before: str = self._tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        return " ".join(before.split()) or None  # on one line

    def missing(self) -> dict[str, float]:
        """The share of sentences that lack each context, by its name."""
        counts, total = self._counts, max(1, len(self))
        lacking = {
            name: int(counts[[text is None for text in texts]].sum()) for name, texts in self._columns.items()
        } | {PREVIOUS: int((counts > 0).sum())}
        return {name: lacking[name] / total for name in self.types}


class ContextSets:
    """The encoded contexts of many sentences: their vectors, or tokens for a text encoder that a run trains.

    Only the sentences ``numbers`` (S,) are read, whose different ``texts`` are counted, and those that were longer than the
    encoder's limit (``truncated``). A pickled copy opens the same files.
    """

    def __init__(
        self, texts_of: Callable[[int], Texts], numbers: np.ndarray, encoded: EncodedTexts | TextTable
    ) -> None:
        index: dict[str, int] = {}
        own_SK = np.full((len(numbers), len(texts_of(int(numbers[0])))), -1, dtype=np.int32)
        for row, number in enumerate(numbers.tolist()):
            own_SK[row] = [-1 if text is None else index.setdefault(text, len(index)) for text in texts_of(number)]
        rows, self.truncated = encoded.rows(list(index))
        # The row in the table of each context's vector; -1 for a missing context
        self._rows_SK = np.full((int(numbers.max()) + 1, own_SK.shape[1]), -1, dtype=np.int32)
        self._rows_SK[numbers] = np.append(rows, -1)[own_SK]
        self._table = encoded.table  # without the index of texts
        self.texts = len(index)

    def batch(self, numbers: np.ndarray | int) -> dict[str, torch.Tensor]:
        """``contexts`` (B, K, C), zeros for missing ones, and ``context_mask`` (B, K), False for missing ones.

        For an encoder that a run trains ``contexts`` are tokens, (B, K, L), padded with -100. Of a single number without B.
        """
        rows = self._rows_SK[numbers]
        present = rows >= 0
        known = self._table[rows[present]]
        contexts = np.zeros((*rows.shape, known.shape[1]), dtype=known.dtype)
        contexts[present] = known
        return {"contexts": torch.from_numpy(contexts), "context_mask": torch.from_numpy(present)}

    def of(self, _: int, number: int) -> dict[str, torch.Tensor]:
        """:meth:`batch` of one sentence, in any epoch."""
        return self.batch(number)

    def on(self, model: PreTrainedModel) -> Further:
        """The batches on the device and in the number format of a model; empty where no text is known."""

        def batch(numbers: np.ndarray) -> dict[str, torch.Tensor]:
            if not self.texts:
                return {}
            given = self.batch(numbers)
            contexts_BKC, mask_BK = given["contexts"], given["context_mask"]
            return {"contexts": contexts_BKC.to(model.device, model.dtype), "context_mask": mask_BK.to(model.device)}

        return batch


def encoded_sets(
    model: PreTrainedModel, source: str, sets: Sequence[Texts], corpus: Corpus | None = None
) -> ContextSets:
    """The contexts of sentences: of a corpus from its cache, of others in memory, with a note of how many were truncated."""
    encoder = open_text_encoder(model, source)
    encoded = TextTable(encoder) if corpus is None else EncodedTexts(encoder, Path(corpus.path) / "encoded")
    result = ContextSets(sets.__getitem__, np.arange(len(sets)), encoded)
    if corpus is None and (cut := result.truncated):
        texts = "context text was" if cut == 1 else "context texts were"
        say(f"note: {cut:,} {texts} longer than {encoder.max_tokens} tokens, and truncated")
    return result


def contexts_for(model: PreTrainedModel, source: str, file: Path) -> dict[str, torch.Tensor]:
    """What ``generate()`` of a CUE model takes of a file with one object of contexts: ``contexts`` and ``context_mask``."""
    types = trained_types(model.config)
    if not types:
        raise ConfigError(f"contexts is given, but {source} takes no contexts; leave it out")
    with readable(file), file.open("rb") as raw, unpacked(raw, file) as opened:
        contexts = json_object(opened.read(), str(file), SET)
    texts = context_texts(contexts, types, str(file))
    return encoded_sets(model, source, [texts]).on(model)(np.array([0]))


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
