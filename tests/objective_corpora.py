"""Corpora in memory, real text with a small vocabulary learned from it, and vocabularies, for the tests of the objectives."""

import copy
import json

import pytest

from contextwise.data import Corpus, prepare_corpus
from contextwise.data.sources.stdlib import StandardLibrary
from contextwise.data.tokenizers import CorpusTokenizer, byte_tokenizer
from contextwise.objectives import Vocabulary, add_special_tokens
from small import Memory

CHANCE = 1e-4  # a test of a distribution fails where what was seen is rarer than this


def of_texts(texts, tokenizer):
    """A corpus of texts."""
    return Memory(tokenizer.encode(list(texts)), tokenizer.end_of_text)


def vocabulary(objective, tokenizer):
    """A vocabulary with what the objective needs; ``tokenizer`` itself, a CorpusTokenizer, stays as it is."""
    extended = copy.deepcopy(tokenizer.tokenizer)
    add_special_tokens(extended, objective.special_tokens)
    return Vocabulary(extended, tokenizer.end_of_text)


def same(left, right):
    """Whether two examples are the same."""
    return left.keys() == right.keys() and all(
        left[key].dtype == right[key].dtype and left[key].tolist() == right[key].tolist() for key in left
    )


@pytest.fixture(scope="session")
def modules():
    """Texts of 160 modules."""
    texts = [document.text for document in StandardLibrary().records("text")]
    return [text for text in texts if len(text) < 16_000][:160]


@pytest.fixture(scope="session")
def corpus(modules, tmp_path_factory):
    """The modules as a prepared corpus with a vocabulary of 800 tokens."""
    folder = tmp_path_factory.mktemp("objectives")
    with (folder / "modules.jsonl").open("w") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in modules)
    prepare_corpus(folder / "modules.jsonl", "train:800", folder / "corpus", validation=0.0)
    return Corpus.open(folder / "corpus")


@pytest.fixture(scope="session")
def bpe(corpus):
    """Its tokenizer."""
    return CorpusTokenizer(corpus.tokenizer(), "trained", "train:800", corpus.end_of_text)


@pytest.fixture(scope="session")
def letters():
    """The tokenizer of bytes."""
    return byte_tokenizer()


@pytest.fixture(scope="session")
def known(bpe):
    """Objective -> its vocabulary over the corpus's tokenizer."""
    return lambda objective: vocabulary(objective, bpe)
