"""One vector for each text, pooled from a model's hidden states.

Objectives, Section 6.2.2 ("[CLS] as a Sentence Embedding (and Mean Pooling as an Alternative)") names two ways to pool: the
state at [CLS], which next-sentence prediction trains to sum up the input, and the mean over all tokens that are no padding,
which is often better where a model was not trained so. A causal model has a third: only its last token has seen the whole
text (Section 6.2.1). The section also warns that none of these is a semantic embedding without further training.

Shapes: N texts, B texts of a batch, T positions, D channels.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from contextwise.base.errors import ConfigError, DataError
from contextwise.models.layers import Layer, position_limit, usual_limit
from contextwise.objectives.kind import Kind

Pooling = Literal["cls", "mean", "last"]
DEFAULT_POOLING: dict[Kind, Pooling] = {"encoder": "mean", "encoder-decoder": "mean", "decoder": "last"}
"""The mean for encoders, and for the encoder of an encoder-decoder: it needs no pair objective, and not every model has had
one (Section 6.2.2: most encoders after BERT dropped it). The last token for decoders: in a mean over a causal model the
early tokens know nothing of what follows."""

BATCHES_AT_ONCE = (
    64  # of texts that are tokenized and sorted together, so that a batch holds texts of like lengths
)
CHARACTERS_AT_ONCE = 4_000_000


@dataclass(frozen=True)
class Frame:
    """Special tokens around a text that the tokenizer does not put there by itself.

    The tokenizers of runs are those of their corpora, which put nothing around a text; but an encoder was trained on [CLS]
    text [SEP], and an encoder-decoder on text and end-of-text.
    """

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, kind: Kind) -> "Frame":
        """What a model of this kind is used to, as far as the tokenizer has the tokens and puts none itself."""
        if kind == "decoder" or tokenizer.num_special_tokens_to_add() > 0:
            return cls()
        if kind == "encoder-decoder":
            return cls(after=_known(tokenizer.eos_token_id))
        return cls(_known(tokenizer.cls_token_id), _known(tokenizer.sep_token_id))

    def __len__(self) -> int:
        return len(self.before) + len(self.after)

    def around(self, ids: list[int]) -> list[int]:
        return [*self.before, *ids, *self.after]


def _known(token: int | None) -> tuple[int, ...]:
    return () if token is None else (token,)


class Embedder:
    """Turns texts into vectors.

    Args:
        model: an encoder, a decoder or an encoder-decoder (its encoder is read), in evaluation mode.
        tokenizer: the model's; its special tokens count as tokens of the text, as in sentence-transformers.
        pooling: ``cls``, ``mean`` or ``last``; by kind if None (:data:`DEFAULT_POOLING`).
        layer: whose output is pooled (:class:`~contextwise.models.layers.Layer`); the last if None.
        normalize: scale each vector to length 1.
        batch_size: texts of one forward pass; no vector depends on it.
        max_tokens: where longer texts are cut, special tokens included; not given: what tokenizer and model allow.

    Attributes:
        cut: texts that were longer than ``max_tokens``, so far.

    Raises:
        ConfigError: an option is out of range, or the pooling does not fit the model.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: PreTrainedTokenizerBase,
        *,
        pooling: Pooling | None = None,
        layer: int | None = None,
        normalize: bool = False,
        batch_size: int = 32,
        max_tokens: int | None = None,
    ) -> None:
        self.layer = Layer(model, layer)
        self.model, self.tokenizer, self.normalize = model, tokenizer, normalize
        self.pooling: Pooling = pooling or DEFAULT_POOLING[self.layer.kind]
        self.frame = Frame.of(tokenizer, self.layer.kind)
        self._check_pooling()
        if batch_size < 1:
            raise ConfigError(f"the batch size is {batch_size}, but must be at least 1")
        self.batch_size = batch_size
        self._check_length(max_tokens)
        self.max_tokens = usual_limit(model, tokenizer) if max_tokens is None else max_tokens
        self.cut = self._seen = 0

    def _check_pooling(self) -> None:
        if self.pooling not in get_args(Pooling):
            raise ConfigError(f"the pooling is {self.pooling!r}; choose cls, mean or last")
        if self.pooling != "cls":
            return
        if self.layer.kind == "decoder":
            raise ConfigError(
                "the pooling is cls, but in a decoder the first token sees nothing of the text; choose last or mean"
            )
        token = self.tokenizer.cls_token_id
        if token is None or token not in self.frame.around(self.tokenizer("").input_ids):
            raise ConfigError(
                "the pooling is cls, but the tokenizer puts no [CLS] token before a text; choose mean or last"
            )

    def _check_length(self, max_tokens: int | None) -> None:
        if max_tokens is None:
            return
        limit = position_limit(self.model)
        if limit is not None and max_tokens > limit:
            raise ConfigError(
                f"max tokens is {max_tokens}, but the model has positions for {limit}; give {limit} at most"
            )
        special = len(self.frame) + self.tokenizer.num_special_tokens_to_add()
        if max_tokens <= special:
            raise ConfigError(
                f"max tokens is {max_tokens}, which leaves no room beside {special} special tokens; "
                f"give at least {special + 1}"
            )

    @torch.no_grad()
    def blocks(self, texts: Iterable[str]) -> Iterator[np.ndarray]:
        """The vectors of texts, in their order: float32, (some, D), for one group of texts after the other.

        Raises:
            DataError: a text is empty, or has no tokens.
            ConfigError: tokenizer and model do not fit, or a vector is not finite in the model's precision.
        """
        for group in self._groups(texts):
            tokens = self._tokens(group)
            order = np.argsort([-len(ids) for ids in tokens], kind="stable")
            rows: list[np.ndarray | None] = [None] * len(group)
            for start in range(0, len(order), self.batch_size):
                places = order[start : start + self.batch_size].tolist()
                vectors = self._vectors([tokens[place] for place in places])
                if not np.isfinite(vectors).all():
                    raise ConfigError(
                        f"a vector is not finite: {str(self.model.dtype).removeprefix('torch.')} is too coarse for "
                        "this model, or its weights are damaged; try float32"
                    )
                for place, vector in zip(places, vectors, strict=True):
                    rows[place] = vector
            self._seen += len(group)
            yield np.stack(rows)  # type: ignore[arg-type]

    def _groups(self, texts: Iterable[str]) -> Iterator[list[str]]:
        group: list[str] = []
        size = 0
        for text in texts:
            group.append(text)
            size += len(text)
            if len(group) == BATCHES_AT_ONCE * self.batch_size or size >= CHARACTERS_AT_ONCE:
                yield group
                group, size = [], 0
        if group:
            yield group

    def _tokens(self, texts: list[str]) -> list[list[int]]:
        """Token ids of each text, cut and framed."""
        for i, text in enumerate(texts, start=self._seen + 1):
            if not text or text.isspace():
                raise DataError(f"text {i:,} is empty; take it out")
        room = None if self.max_tokens is None else self.max_tokens - len(self.frame)
        token_ids = self.tokenizer(texts, verbose=False).input_ids
        for i, ids in enumerate(token_ids):
            if not ids:
                raise DataError(f"text {self._seen + i + 1:,} has no tokens; take it out")
            if room is not None and len(ids) > room:
                token_ids[i] = self.tokenizer(texts[i], truncation=True, max_length=room).input_ids
                self.cut += 1
        highest, known = max(chain(*token_ids)), self.model.get_input_embeddings().num_embeddings
        if highest >= known:
            raise ConfigError(
                f"the tokenizer gives the token {highest}, but the model knows {known} tokens; "
                "give the tokenizer that belongs to the model"
            )
        return [self.frame.around(ids) for ids in token_ids]

    def _vectors(self, tokens: list[list[int]]) -> np.ndarray:
        """(B, D), float32, of a batch."""
        device = self.model.device
        # Behind a text any token serves as padding: nothing attends to it, and no position before it is counted otherwise.
        ids_BT = pad_sequence([torch.tensor(ids) for ids in tokens], batch_first=True)
        lengths_B = torch.tensor([len(ids) for ids in tokens])
        real_BT = torch.arange(ids_BT.shape[1]) < lengths_B[:, None]
        states_BTD = self.layer(ids_BT.to(device), real_BT.long().to(device)).float()
        if self.pooling == "mean":
            kept_BTD = states_BTD.masked_fill(~real_BT.to(device)[..., None], 0.0)
            vectors_BD = kept_BTD.sum(1) / lengths_B.to(device)[:, None]
        else:
            places = lengths_B - 1 if self.pooling == "last" else self._cls_places(tokens)
            vectors_BD = states_BTD[torch.arange(len(tokens), device=device), places.to(device)]
        if self.normalize:
            vectors_BD = nn.functional.normalize(vectors_BD, dim=-1)
        return vectors_BD.cpu().numpy()

    def _cls_places(self, tokens: list[list[int]]) -> torch.Tensor:
        return torch.tensor([ids.index(self.tokenizer.cls_token_id) for ids in tokens])


def embed_texts(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    *,
    pooling: Pooling | None = None,
    layer: int | None = None,
    normalize: bool = False,
    batch_size: int = 32,
    max_tokens: int | None = None,
) -> np.ndarray:
    """The vectors of texts, (N, D) float32, in their order; options as for :class:`Embedder`.

    Raises:
        DataError: there is no text, or one is empty.
        ConfigError: an option is out of range, or does not fit the model.
    """
    if not texts:
        raise DataError("there are no texts to embed; give at least one")
    embedder = Embedder(
        model,
        tokenizer,
        pooling=pooling,
        layer=layer,
        normalize=normalize,
        batch_size=batch_size,
        max_tokens=max_tokens,
    )
    return np.concatenate(list(embedder.blocks(texts)))
