"""Masked language modeling, BERT's (objectives, Section 6.2.2; Devlin et al. 2019, Section 3.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from contextwise.base.errors import ConfigError
from contextwise.objectives.objective import (
    NO_LOSS,
    Cut,
    Examples,
    Kind,
    SingleObjective,
    WindowExamples,
    generator,
    window_arrays,
)
from contextwise.objectives.text import TokenText
from contextwise.objectives.vocabulary import SpecialToken, Vocabulary

if TYPE_CHECKING:
    from contextwise.data.corpus import Corpus
    from contextwise.data.windows import Windows

MASK, CLS, SEP = SpecialToken("[MASK]", "mask"), SpecialToken("[CLS]", "cls"), SpecialToken("[SEP]", "sep")


class MaskSettings(SingleObjective):
    """Settings of the masked objectives: how tokens are chosen and masked.

    Each token (with ``whole_words`` each word) is chosen independently with probability ``rate``, as RoBERTa and transformers
    do. BERT's code shuffles a sequence's positions and takes the first round(rate * length): the same share, but a fixed
    number for each sequence, which ties its positions to each other; its paper says only "15% of all WordPiece tokens in
    each sequence at random". Of the chosen tokens ``mask_share`` become the mask token, ``random_share`` a token drawn
    uniformly from all that are not special, and the rest stay; each token of a chosen word is treated on its own, as in
    BERT's code. Special tokens are never chosen. A short window may have no target at all.
    """

    rate: float = Field(0.15, gt=0, lt=1, description="share of the tokens that are targets")
    mask_share: float = Field(0.8, ge=0, le=1, description="of the targets: hidden behind the mask token")
    random_share: float = Field(0.1, ge=0, le=1, description="of the targets: replaced by a random token")
    whole_words: bool = Field(False, description="choose words, not tokens")
    static: bool = Field(False, description="the same draws in every epoch, as BERT's prepared data had")

    @property
    def kind(self) -> Kind:
        return "encoder"

    @property
    def special_tokens(self) -> list[SpecialToken]:
        return [MASK, CLS, SEP]

    @model_validator(mode="after")
    def _shares(self) -> MaskSettings:
        if self.mask_share + self.random_share > 1 + 1e-9:
            raise ConfigError(
                f"mask_share is {self.mask_share} and random_share {self.random_share}, more than 1 together; "
                "lower one of them"
            )
        return self


class Masked(MaskSettings):
    """Windows of the stream between [CLS] and [SEP]; every token of the stream is in one window per epoch.

    With ``separate_documents`` the positions restart at each document; [CLS] belongs to the window's first document and
    [SEP] to its last.
    """

    name: Literal["masked"] = "masked"

    def examples(self, corpus: Corpus, cut: Cut, seed: int, vocabulary: Vocabulary) -> Examples:
        if cut.context < 3:
            raise ConfigError(
                f"data.context is {cut.context}, but the objective 'masked' needs at least 3: [CLS], a token and [SEP]"
            )
        mask, cls, sep = vocabulary.ids(self.special_tokens, self.name)
        masking = Masking(self, vocabulary, mask)
        return MaskedExamples(cut.windows(corpus, cut.context - 2, vocabulary), masking, cls, sep, seed)


class Masking:
    """Chooses and masks tokens."""

    def __init__(self, settings: MaskSettings, vocabulary: Vocabulary, mask: int) -> None:
        self.settings, self.mask = settings, mask
        self.special, self.ordinary = vocabulary.special, vocabulary.ordinary
        self.text = (
            TokenText(vocabulary.tokenizer)
            if settings.whole_words and vocabulary.tokenizer is not None
            else None
        )

    def apply(self, ids: np.ndarray, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Input and labels, (tokens,) each, of a sequence of token ids."""
        settings, n = self.settings, len(ids)
        if self.text is None:
            chosen = draw.random(n) < settings.rate
        else:
            words = self.text.words(ids)
            chosen = (draw.random(int(words[-1]) + 1) < settings.rate)[words]
        chosen &= ~np.isin(ids, self.special)
        treatment = draw.random(n)
        random = self.ordinary[draw.integers(len(self.ordinary), size=n)]
        hidden = chosen & (treatment < settings.mask_share)
        replaced = chosen & ~hidden & (treatment < settings.mask_share + settings.random_share)
        inputs = np.where(hidden, self.mask, np.where(replaced, random, ids))
        return inputs, np.where(chosen, ids, NO_LOSS)


class MaskedExamples(WindowExamples):
    """Masked windows."""

    def __init__(self, windows: Windows, masking: Masking, cls: int, sep: int, seed: int) -> None:
        super().__init__(windows)
        self.masking, self.cls, self.sep, self.seed = masking, cls, sep, seed

    def arrays(self, epoch: int, index: int) -> dict[str, Any]:
        item = window_arrays(self.windows, index)
        ids = np.concatenate([[self.cls], item["input_ids"], [self.sep]])
        draw = generator(self.seed, 0 if self.masking.settings.static else epoch, index, "masked")
        inputs, labels = self.masking.apply(ids, draw)
        example = {"input_ids": inputs, "labels": labels, "window": item["window"]}
        if "position_ids" in item:
            positions = item["position_ids"]
            first = np.cumsum(positions == 0) == 1
            example["position_ids"] = np.concatenate(
                [[0], positions + first, [positions[-1] + first[-1] + 1]]
            )
        return example
