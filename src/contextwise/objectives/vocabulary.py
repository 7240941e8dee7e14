"""The vocabulary of a run: the corpus's tokenizer, and the special tokens that an objective needs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from contextwise.base.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True)
class SpecialToken:
    """A special token that an objective needs.

    Attributes:
        role: its role in transformers; a tokenizer's own token with this role is used instead, whatever its text.
    """

    text: str
    role: Literal["mask", "cls", "sep", "pad"] | None = None

    def of(self, tokenizer: PreTrainedTokenizerFast) -> int | None:
        """Its id in a tokenizer; None if the tokenizer does not have it."""
        if self.role is not None and getattr(tokenizer, f"{self.role}_token") is not None:
            return getattr(tokenizer, f"{self.role}_token_id")
        return tokenizer.get_added_vocab().get(self.text)


def add_special_tokens(tokenizer: PreTrainedTokenizerFast, tokens: Iterable[SpecialToken]) -> list[str]:
    """Add missing special tokens after a tokenizer's existing tokens, and return their texts.

    The model's embedding must then have at least ``len(tokenizer)`` rows.
    """
    missing = [token for token in tokens if token.of(tokenizer) is None]
    for token in missing:
        if token.role is not None:
            tokenizer.add_special_tokens({f"{token.role}_token": token.text})
    plain = [token.text for token in missing if token.role is None]
    tokenizer.add_special_tokens({"additional_special_tokens": plain}, replace_extra_special_tokens=False)
    return [token.text for token in missing]


def add_tokens_of(known: PreTrainedTokenizerFast, tokenizer: PreTrainedTokenizerFast) -> None:
    """Add the tokens that a model's tokenizer has after those of its corpus, such as an earlier objective's.

    They have the same ids and roles as there, so that what the model has learnt of them stays with them.
    """
    later = [token.content for i, token in sorted(known.added_tokens_decoder.items()) if i >= len(tokenizer)]
    tokenizer.add_special_tokens({"additional_special_tokens": later}, replace_extra_special_tokens=False)
    for role in ("mask", "cls", "sep", "pad"):
        name = f"{role}_token"
        if getattr(tokenizer, name) is None and getattr(known, name) in later:
            tokenizer.add_special_tokens({name: getattr(known, name)})


class Vocabulary:
    """Token ids of a run.

    Args:
        tokenizer: the corpus's, with the objective's special tokens; None for a corpus without a tokenizer, which only
            objectives without special tokens can read.
        end_of_text: id of the corpus's token between documents.
        size: tokens of the model's vocabulary; by default the tokenizer's.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast | None, end_of_text: int | None = None, size: int | None = None
    ) -> None:
        self.tokenizer, self.end_of_text = tokenizer, end_of_text
        known: dict[str, int] = {}
        special = set() if end_of_text is None else {end_of_text}
        if tokenizer is not None:
            known = tokenizer.get_vocab()
            special |= {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
            special |= set(tokenizer.all_special_ids)
        self.size = size if size is not None or tokenizer is None else max(known.values()) + 1
        self.special = np.array(sorted(special), dtype=np.int64)
        ids = np.array(sorted(known.values()), dtype=np.int64)
        if self.size is not None:
            ids = ids[ids < self.size]
        self.ordinary = np.setdiff1d(ids, self.special)  # a random token is one of these

    def ids(self, tokens: Iterable[SpecialToken], objective: str) -> list[int]:
        """Ids of special tokens; ConfigError if the tokenizer lacks some of them, or the model's vocabulary does."""
        tokens = list(tokens)
        numbers = [None if self.tokenizer is None else token.of(self.tokenizer) for token in tokens]
        missing = [token.text for token, number in zip(tokens, numbers, strict=True) if number is None]
        if missing:
            shown = ", ".join(missing[:4]) + (f" and {len(missing) - 4} more" if len(missing) > 4 else "")
            reason = "tokenizer has no such tokens; add them to it with contextwise.objectives.add_special_tokens"
            if self.tokenizer is None:
                reason = "corpus comes without a tokenizer; prepare the corpus with a tokenizer"
            raise ConfigError(f"the objective {objective!r} needs the special tokens {shown}, but the {reason}")
        ids = [number for number in numbers if number is not None]
        plain = [number for token, number in zip(tokens, ids, strict=True) if token.role is None]
        for token, number in zip(tokens, ids, strict=True):
            if token.role is None and (plain.count(number) > 1 or number == self.end_of_text):
                other = "end-of-text" if number == self.end_of_text else "another of its special tokens"
                raise ConfigError(
                    f"the objective {objective!r} has the special token {token.text!r}, which is also {other}; name another one"
                )
        if self.size is not None and ids and max(ids) >= self.size:
            raise ConfigError(
                f"the objective {objective!r} needs a special token with the id {max(ids)}, but the model's vocabulary has "
                f"{self.size} tokens; set model.vocab_size to at least {max(ids) + 1}"
            )
        return ids

    def end(self, objective: str) -> int:
        """Id of end-of-text; ConfigError if the corpus has no such token."""
        if self.end_of_text is None:
            raise ConfigError(
                f"the objective {objective!r} needs an end-of-text token, but the corpus has none; "
                "prepare the corpus with a tokenizer"
            )
        return self.end_of_text
