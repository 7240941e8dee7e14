"""Split documents into sentences, without splitting tokens or tokenizing again.

A token belongs to the sentence of its first visible character, white space to the sentence before it. So every sentence has
a visible character, and every token belongs to a sentence.

Sentences come from sentencex, of the Wikimedia Foundation: rules for some 300 languages, written in Rust, one wheel of about
a megabyte without dependencies or downloads, and maintained; its borders are places in the text. pysbd is abandoned and its
regular expressions hang on some texts, NLTK's Punkt needs a download, spaCy's rules know no abbreviations, and blingfire's
wheel has 42 MB.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from tokenizers import models

from contextwise.base.errors import ConfigError
from contextwise.objectives.text import TokenText, next_visible, visible_places
from contextwise.objectives.vocabulary import Vocabulary

if TYPE_CHECKING:
    from contextwise.data.corpus import Corpus

_SPACED_NUMBER = re.compile(r"(?<=\d) ?\. ?(?=\d)")
# sentencex takes every white space for one byte: others are read as a space. Places stay what they are.
_SPACES = {code: " " for code in range(0x80, 0x3001) if chr(code).isspace()}


class SentenceIndex:
    """The sentences of a corpus, numbered through all documents. About 8 bytes a sentence.

    A sentence has one token at least; a document that is empty or all white space has no sentence.

    Args:
        language: whose rules cut the text, as an ISO 639 code.

    Attributes:
        borders: int64, for one document after the other the first token of each of its sentences, and its length.
        first: int64, (documents + 1,), where each document's borders begin.
        starts: int64, (documents + 1,), number of each document's first sentence, and of all sentences.

    Raises:
        ConfigError: the corpus comes without a tokenizer, or sentencex is not installed.
    """

    def __init__(self, corpus: Corpus, vocabulary: Vocabulary, language: str) -> None:
        if vocabulary.tokenizer is None:
            raise ConfigError("sentences need a tokenizer, but the corpus comes without one")
        split = splitter(language, _spaced_numbers(vocabulary))
        text = TokenText(vocabulary.tokenizer)
        self.corpus, self.vocabulary, self.language = corpus, vocabulary, language
        borders_of_documents = [sentence_borders(text, split, corpus.document(i)) for i in range(len(corpus))]
        self.borders = np.concatenate([np.empty(0, dtype=np.int64), *borders_of_documents])
        self.first = np.concatenate(
            [[0], np.cumsum([len(borders) for borders in borders_of_documents])]
        ).astype(np.int64)
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
        """The document of sentence ``number``, and the index of the sentence in the document.

        Raises:
            IndexError: the sentence does not exist.
        """
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
    # Tokens of white space are passed over: where a border falls inside a token, no sentence may be left of white space alone.
    shown = np.flatnonzero((first < starts[1:]) | (first == starts[:-1]))
    shown_at = visible_places(starts, visible)[shown]
    first_shown = np.unique(np.searchsorted(shown_at, begins[begins < len(written)]))
    sentences = shown[first_shown[first_shown < len(shown)]]
    sentences[:1] = 0  # white space before the first sentence is part of it
    return np.append(sentences, len(ids)).astype(np.int64)


def _spaced_numbers(vocabulary: Vocabulary) -> bool:
    """Whether the tokenizer writes 12.5 as "12. 5", as WordPiece does, which forgets the white space around punctuation."""
    assert vocabulary.tokenizer is not None
    return isinstance(vocabulary.tokenizer.backend_tokenizer.model, models.WordPiece)


def splitter(language: str, spaced_numbers: bool = False) -> Callable[[str], list[int]]:
    """A function from a text to the places at which its sentences begin.

    Args:
        spaced_numbers: no sentence begins with a digit behind a digit and a period.

    Raises:
        ConfigError: sentencex is not installed.
    """
    try:
        sentencex = importlib.import_module("sentencex")
    except ImportError:
        raise ConfigError(
            "sentence objectives need the package sentencex, which is not installed; "
            "install it with `pip install contextwise[sentences]`"
        ) from None

    def split(text: str) -> list[int]:
        boundaries = sentencex.get_sentence_boundaries(language, text.translate(_SPACES))
        begins = [border["start_index"] for border in boundaries]
        if spaced_numbers:
            inside = {match.end() for match in _SPACED_NUMBER.finditer(text)}
            begins = [place for place in begins if place not in inside]
        return begins

    return split
