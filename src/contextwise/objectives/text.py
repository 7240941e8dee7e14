"""Map tokens to text and character positions, for whole words, sentences and cuts between characters."""

from __future__ import annotations

import codecs
import re
from typing import TYPE_CHECKING

import numpy as np
from tokenizers import decoders, models

from contextwise.objectives.vocabulary import special_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_ERRORS = "contextwise-one-character-a-byte"
_SPACES = np.array([code for code in range(0x3001) if chr(code).isspace()], dtype=np.uint32)
_VISIBLE = re.compile(r"\S+")


def _one_character_a_byte(error: UnicodeError) -> tuple[str, int]:
    """Windows may begin and end inside a character: its bytes become characters of one byte each, so places can be counted."""
    assert isinstance(error, UnicodeDecodeError)
    return "\0" * (error.end - error.start), error.end


codecs.register_error(_ERRORS, _one_character_a_byte)


class TokenText:
    """Decodes tokens to text with character positions.

    Tokenizers over bytes (GPT-2's, ``train:N``, ``bytes``) are read by a table; all others by the tokenizer's own decoder,
    token by token.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        backend = tokenizer.backend_tokenizer
        self._backend = backend
        self._special = np.array(sorted(special_ids(tokenizer)), dtype=np.int64)
        self._bytes = _byte_table(tokenizer) if isinstance(backend.decoder, decoders.ByteLevel) else None
        self._continues = (
            _word_piece_table(tokenizer) if isinstance(backend.model, models.WordPiece) else None
        )

    def read(self, ids: np.ndarray) -> tuple[str, np.ndarray]:
        """The text of tokens, and the character at which each begins, (tokens + 1,): the last entry is the text's length.

        A token that begins inside a character begins at that character.
        """
        if self._bytes is None:
            return self._decode(ids)
        parts = [self._bytes[i] for i in ids.tolist()]
        text = b"".join(parts).decode("utf-8", _ERRORS)
        ends = np.cumsum([len(part) for part in parts], dtype=np.int64)
        codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
        width = 1 + (codes >= 0x80) + (codes >= 0x800) + (codes >= 0x10000)
        # Byte behind each character; a character holds a token's first byte if it is the first to end behind it.
        places = np.searchsorted(np.cumsum(width), np.concatenate([[0], ends]), side="right")
        return text, places.astype(np.int64)

    def _decode(self, ids: np.ndarray) -> tuple[str, np.ndarray]:
        stream = decoders.DecodeStream(skip_special_tokens=False)
        chunks, starts, place = [], [], 0
        for token in ids.tolist():
            starts.append(place)
            chunk = stream.step(self._backend, token) or ""
            chunks.append(chunk)
            place += len(chunk)
        return "".join(chunks), np.array([*starts, place], dtype=np.int64)

    def words(self, ids: np.ndarray) -> np.ndarray:
        """Number of the word of each token, (tokens,), counted from 0.

        A word is what the tokenizer never merges over: WordPiece's tokens from one without ``##`` to the next, else a
        pre-token (for GPT-2 a run of letters, of digits or of other signs with the space before it). Special tokens are
        words of their own.
        """
        special = np.isin(ids, self._special)
        if self._continues is not None:
            begins = ~self._continues[ids]
        else:
            text, starts = self.read(ids)
            places = visible_places(starts, next_visible(text))
            word = np.searchsorted(np.array(self._word_starts(text), dtype=np.int64), places, side="right")
            begins = np.diff(word, prepend=-1) > 0
        begins = begins | special | np.concatenate([[False], special[:-1]])
        begins[:1] = True
        return np.cumsum(begins) - 1

    def _word_starts(self, text: str) -> list[int]:
        pre = self._backend.pre_tokenizer
        if pre is None:
            return [match.start() for match in _VISIBLE.finditer(text)]
        return [start for _, (start, _) in pre.pre_tokenize_str(text)]


def next_visible(text: str) -> np.ndarray:
    """For each place of a text, and the one behind it, the first visible character there or later, (characters + 1,)."""
    n = len(text)
    space = np.isin(np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32), _SPACES)
    places = np.where(space, n, np.arange(n))
    return np.append(np.minimum.accumulate(places[::-1])[::-1], n)


def visible_places(starts: np.ndarray, visible: np.ndarray) -> np.ndarray:
    """Where each token's first visible character stands; a token of white space stands where it begins.

    Args:
        starts: of the tokens, with the text's length, as :meth:`TokenText.read` gives them.
        visible: of the text, as :func:`next_visible` gives it.
    """
    first = visible[starts[:-1]]
    return np.where(first < starts[1:], first, starts[:-1])


def _byte_table(tokenizer: PreTrainedTokenizerFast) -> dict[int, bytes]:
    """The bytes of each token of a tokenizer over bytes; of an added token those of its text."""
    from contextwise.data.tokenizers import byte_characters

    byte_of = {character: byte for byte, character in enumerate(byte_characters())}
    table = {i: token.content.encode() for i, token in tokenizer.added_tokens_decoder.items()}
    for token, i in tokenizer.get_vocab().items():
        if i not in table:
            table[i] = bytes(byte_of[character] for character in token)
    return table


def _word_piece_table(tokenizer: PreTrainedTokenizerFast) -> np.ndarray:
    """Which tokens of a WordPiece tokenizer continue the word before them, bool by id."""
    prefix = tokenizer.backend_tokenizer.model.continuing_subword_prefix
    vocabulary = tokenizer.get_vocab()
    table = np.zeros(max(vocabulary.values()) + 1, dtype=bool)
    table[[i for token, i in vocabulary.items() if token.startswith(prefix)]] = True
    return table
