"""Tokens as text: character positions and sentences, without splitting tokens or tokenizing again.

A token belongs to the sentence of its first visible character, white space to the sentence before it. So every sentence has
a visible character, and every token belongs to a sentence. Sentences come from sentencex: rules for some 300 languages.
"""

from __future__ import annotations

import codecs
import importlib
import re
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from tokenizers import decoders, models

from contextwise.settings import ConfigError, not_installed

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from contextwise.data import Corpus

_ERRORS = "contextwise-one-character-a-byte"
_SPACES = [code for code in range(0x3001) if chr(code).isspace()]
_SPACED_NUMBER = re.compile(r"(?<=\d) ?\. ?(?=\d)")


def _one_character_a_byte(error: UnicodeError) -> tuple[str, int]:
    """Windows may begin and end inside a character: each of its bytes becomes one character, so positions can be counted."""
    assert isinstance(error, UnicodeDecodeError)
    return "\0" * (error.end - error.start), error.end


codecs.register_error(_ERRORS, _one_character_a_byte)


class TokenText:
    """Decodes tokens to text with character positions.

    Tokenizers over bytes (GPT-2's, ``train:N``, ``bytes``) are read by a table; all others by the tokenizer's own decoder,
    token by token.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._backend = backend = tokenizer.backend_tokenizer
        self._bytes = _byte_table(tokenizer) if isinstance(backend.decoder, decoders.ByteLevel) else None

    def read(self, ids: np.ndarray) -> tuple[str, np.ndarray]:
        """The text of tokens, and the character at which each begins, (tokens + 1,): the last entry is the text's length.

        A token that begins inside a character begins at that character.
        """
        if self._bytes is None:
            stream = decoders.DecodeStream(skip_special_tokens=False)
            chunks = [stream.step(self._backend, token) or "" for token in ids.tolist()]
            return "".join(chunks), np.cumsum([0, *map(len, chunks)], dtype=np.int64)
        parts = [self._bytes[i] for i in ids.tolist()]
        text = b"".join(parts).decode("utf-8", _ERRORS)
        ends = np.cumsum([len(part) for part in parts], dtype=np.int64)
        codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
        width = 1 + (codes >= 0x80) + (codes >= 0x800) + (codes >= 0x10000)
        # The character that contains a token's first byte is the first one that ends after that byte.
        starts = np.searchsorted(np.cumsum(width), np.concatenate([[0], ends]), side="right")
        return text, starts.astype(np.int64)

    def piece(self, token: int) -> str:
        """The text of one token with its white space; parts of a character are replaced. Empty for ids without a token."""
        if self._bytes is not None:
            return self._bytes.get(token, b"").decode("utf-8", "replace")
        return (self._backend.id_to_token(token) or "").replace("\u2581", " ")


def next_visible(text: str) -> np.ndarray:
    """For each position of a text, and the one after it, the first visible character there or later, (characters + 1,)."""
    n = len(text)
    space = np.isin(np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32), _SPACES)
    positions = np.where(space, n, np.arange(n))
    return np.append(np.minimum.accumulate(positions[::-1])[::-1], n)


def visible_positions(starts: np.ndarray, visible: np.ndarray) -> np.ndarray:
    """Position of each token's first visible character; for a token of white space, the position where it begins.

    ``starts`` are from :meth:`TokenText.read`, ``visible`` from :func:`next_visible`.
    """
    first = visible[starts[:-1]]
    return np.where(first < starts[1:], first, starts[:-1])


def _byte_table(tokenizer: PreTrainedTokenizerFast) -> dict[int, bytes]:
    """The bytes of each token of a tokenizer over bytes; of an added token those of its text."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    byte_of = {character: byte for byte, character in bytes_to_unicode().items()}
    table = {i: token.content.encode() for i, token in tokenizer.added_tokens_decoder.items()}
    for token, i in tokenizer.get_vocab().items():
        if i not in table:
            table[i] = bytes(byte_of[character] for character in token)
    return table


class SentenceIndex:
    """The sentences of a corpus, numbered through all documents. About 8 bytes a sentence.

    A sentence has at least one token; a document that is empty or all white space has no sentence. ``language`` is an ISO 639
    code.

    Attributes:
        borders: int64, for each document the first token of each of its sentences, then its length; all documents in order.
        first: int64, (documents + 1,), where each document's borders begin.
        starts: int64, (documents + 1,), number of each document's first sentence, and of all sentences.
    """

    def __init__(self, corpus: Corpus, tokenizer: PreTrainedTokenizerFast | None, language: str) -> None:
        if tokenizer is None:
            raise ConfigError("sentences need a tokenizer, but the corpus comes without one")
        # WordPiece forgets the white space around punctuation, so that its text has "12. 5" for 12.5.
        split = splitter(language, isinstance(tokenizer.backend_tokenizer.model, models.WordPiece))
        text = TokenText(tokenizer)
        self.corpus, self.tokenizer, self.language = corpus, tokenizer, language
        by_document = [sentence_borders(text, split, corpus.document(i)) for i in range(len(corpus))]
        self.borders = np.concatenate([np.empty(0, dtype=np.int64), *by_document])
        self.first = np.cumsum([0, *map(len, by_document)], dtype=np.int64)
        self.starts = self.first - np.arange(len(self.first))

    def __len__(self) -> int:
        return int(self.starts[-1])

    @cached_property
    def lengths(self) -> np.ndarray:
        """int64, (sentences,), tokens of each sentence."""
        last = np.zeros(len(self.borders), dtype=bool)
        last[self.first[1:] - 1] = True
        return np.diff(self.borders, append=0)[~last]

    def place(self, number: int) -> tuple[int, int]:
        """The document of sentence ``number``, and the index of the sentence in the document; IndexError if there is none."""
        if not 0 <= number < len(self):
            raise IndexError(f"sentence {number} of {len(self)}")
        document = int(np.searchsorted(self.starts, number, side="right")) - 1
        return document, number - int(self.starts[document])

    def of(self, document: int) -> np.ndarray:
        """The borders of one document, (sentences + 1,)."""
        return self.borders[self.first[document] : self.first[document + 1]]

    def read(self, document: int, first: int, last: int) -> np.ndarray:
        """Tokens of the sentences first to last - 1 of a document, int64."""
        borders = self.of(document)
        return self.corpus.document(document)[borders[first] : borders[last]].astype(np.int64)


def sentence_borders(text: TokenText, split: Callable[[str], list[int]], ids: np.ndarray) -> np.ndarray:
    """The first token of each sentence of a document, and the document's length, int64."""
    written, starts = text.read(ids)
    visible = next_visible(written)
    begins = visible[np.array(split(written), dtype=np.int64)]
    first = visible[starts[:-1]]
    # Tokens of white space are skipped: where a border is inside a token, no sentence may consist of white space alone.
    shown = np.flatnonzero((first < starts[1:]) | (first == starts[:-1]))
    shown_at = visible_positions(starts, visible)[shown]
    first_shown = np.unique(np.searchsorted(shown_at, begins[begins < len(written)]))
    sentences = shown[first_shown[first_shown < len(shown)]]
    sentences[:1] = 0  # white space before the first sentence is part of it
    return np.append(sentences, len(ids)).astype(np.int64)


def splitter(language: str, spaced_numbers: bool = False) -> Callable[[str], list[int]]:
    """A function from a text to the positions at which its sentences begin; ConfigError if sentencex is not installed.

    With ``spaced_numbers`` "12. 5" is a number: no sentence begins with a digit after a digit and a period.
    """
    try:
        sentencex = importlib.import_module("sentencex")
    except ImportError:
        raise ConfigError(f"sentence objectives need the package sentencex, {not_installed('sentencex')}") from None
    # sentencex counts every white space as one byte, so longer ones are replaced by a space; positions stay the same.
    plain = {code: " " for code in _SPACES if code >= 0x80}

    def split(text: str) -> list[int]:
        boundaries = sentencex.get_sentence_boundaries(language, text.translate(plain))
        inside = {match.end() for match in _SPACED_NUMBER.finditer(text)} if spaced_numbers else set()
        return [border["start_index"] for border in boundaries if border["start_index"] not in inside]

    return split
