"""The conditioning of a CUE model while it is scored: text encoder, context types, and the contexts of each batch.

Shapes: S sentences, B of a batch, K contexts of a set, C channels of the frozen text encoder, P of a proxy's code.
"""

import difflib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedConfig, PreTrainedModel

from contextwise.base.errors import CheckpointError, ConfigError
from contextwise.data.contexts import PREVIOUS, ContextSettings
from contextwise.data.corpus import Corpus
from contextwise.models.cue import CueContextConfig
from contextwise.models.cue.encoding import TextEncoder, check_encoder
from contextwise.models.losses import IGNORED
from contextwise.objectives.objective import generator

PROXY = "proxy"
"""In place of contexts: what a proxy-trained model was trained with."""

Texts = Sequence[str | None]
"""The texts of one sentence's contexts, one a type; None where a context is missing."""


def trained_types(config: PreTrainedConfig) -> list[str]:
    """Names of the contexts that a CUE model's context encoder, or one by itself, was last trained with; none without one."""
    encoder = _context_config(config)
    if encoder is None or not encoder.contexts:
        return []
    return ContextSettings(**encoder.contexts).types


def _context_config(config: Any) -> CueContextConfig | None:
    return config if isinstance(config, CueContextConfig) else getattr(config, "context_encoder", None)


def chosen_types(asked: Sequence[str] | None, config: PreTrainedConfig, corpus: Corpus) -> list[str]:
    """Names of the contexts to score with: those asked for, or those of the training.

    ``proxy`` alone stands for the proxies of a model that was trained on them. Types that the model was not trained with are
    allowed where the corpus has them: the text encoder reads any text, and what that is worth without adaptation is a
    question of its own (CUE, Table 5, rows 5 and 9).

    Raises:
        ConfigError: the model takes no contexts, or there is no such context; names a near one.
    """
    trained = trained_types(config)
    if asked is None:
        return trained
    if list(asked) == [PROXY] and getattr(config, "proxy", None) is not None:
        return [PROXY]
    if asked and getattr(config, "context_encoder", None) is None:
        raise ConfigError(
            f"contexts names {asked[0]!r}, but the model has no context encoder; leave contexts out"
        )
    others = [name for name in (*corpus.columns, PREVIOUS) if name not in (*trained, "document_hash")]
    known = [*trained, *others]
    for name in asked:
        if name not in known and name.partition(".")[0] not in known:
            raise ConfigError(f"contexts names {name!r}, which is no context here; {near(name, known)}")
    twice = [name for name in asked if list(asked).count(name) > 1]
    if twice:
        raise ConfigError(f"contexts names {twice[0]!r} twice; name it once")
    return sorted(asked, key=known.index) if set(asked) <= set(known) else list(asked)


def near(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the nearest known one, or all of them."""
    names = list(known)
    found = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {found[0]!r}?" if found else f"it may be {', '.join(names) or 'nothing'}"


def settings_of(types: Sequence[str]) -> ContextSettings:
    """The settings whose contexts have these names."""
    return ContextSettings(
        columns=[name for name in types if name != PREVIOUS], previous_sentence=PREVIOUS in types
    )


def open_text_encoder(model: PreTrainedModel, source: str) -> TextEncoder:
    """The frozen encoder whose vectors the model's context encoder was trained on, on the model's device.

    Args:
        model: a CUE model, or a context encoder.

    Raises:
        CheckpointError: the model has no context encoder, or under that name lies another text encoder by now.
        ConfigError: there is no such encoder here.
    """
    config = _context_config(model.config)
    if config is None:
        raise CheckpointError(f"{source} has no context encoder, so it takes no contexts")
    about = config.text_encoder
    encoder = TextEncoder.open(
        about["name"], about["pooling"], max_tokens=about["max_tokens"], device=model.device
    )
    check_encoder(encoder, about)
    return encoder


class ContextSets:
    """The encoded contexts of many sentences, as batches of the scoring pass ask for them.

    Args:
        sets: for each sentence the texts of its contexts.
        vectors: gives the vectors (N, C) of N different texts.
        model: whose device and number format the batches have.

    Attributes:
        texts: all different texts.
    """

    def __init__(
        self,
        sets: Sequence[Texts],
        vectors: Callable[[list[str]], torch.Tensor],
        model: PreTrainedModel,
    ) -> None:
        self.texts = list(dict.fromkeys(text for texts in sets for text in texts if text is not None))
        places: dict[str | None, int] = {text: i for i, text in enumerate(self.texts)} | {None: -1}
        self._vectors_NC = vectors(self.texts) if self.texts else None
        self._rows_SK = np.array([[places[text] for text in texts] for texts in sets], dtype=np.int64)
        self._device, self._dtype = model.device, model.dtype

    def batch(self, sentences: np.ndarray) -> dict[str, torch.Tensor]:
        """``contexts`` (B, K, C), zero where one is missing, and ``context_mask`` (B, K); nothing where no text is known."""
        if self._vectors_NC is None:
            return {}
        rows_BK = torch.from_numpy(self._rows_SK[sentences])
        present_BK = rows_BK >= 0
        contexts_BKC = self._vectors_NC[rows_BK.clamp(min=0)] * present_BK[..., None]
        return {
            "contexts": contexts_BKC.to(self._device, self._dtype),
            "context_mask": present_BK.to(self._device),
        }


class Proxies:
    """The proxy of each sentence, made of the words that are to be predicted: an oracle (CUE, Table 5, row 2).

    Args:
        sentences: tokens of each.
        model: a CUE model with a proxy encoder.
        seed: of the noise, which (seed, number of the sentence) decide.
    """

    def __init__(self, sentences: Sequence[np.ndarray], model: Any, seed: int = 0) -> None:
        self._sentences, self._seed, self._device = sentences, seed, model.device
        self._width = model.config.proxy.autoencoder.code_width

    def batch(self, sentences: np.ndarray) -> dict[str, torch.Tensor]:
        """``proxy_targets`` (B, T) and ``proxy_noise`` (B, P), standard normal."""
        tokens = [torch.from_numpy(self._sentences[number].astype(np.int64)) for number in sentences]
        draws = [generator(self._seed, 0, int(number), "proxy_noise") for number in sentences]
        noise = np.stack([draw.standard_normal(self._width, dtype=np.float32) for draw in draws])
        targets = pad_sequence(tokens, batch_first=True, padding_value=IGNORED)
        return {
            "proxy_targets": targets.to(self._device),
            "proxy_noise": torch.from_numpy(noise).to(self._device),
        }
