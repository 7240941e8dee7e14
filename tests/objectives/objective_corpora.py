"""Corpora in memory, and vocabularies, for the tests of the objectives."""

import copy

import numpy as np

from contextwise.objectives import Vocabulary, add_special_tokens

CHANCE = 1e-4  # a test of a distribution fails where what was seen is rarer than this


class Memory:
    """A corpus in memory, with what the objectives read of one."""

    def __init__(self, documents, end_of_text=99):
        self.documents = [np.array(d, dtype=np.uint16) for d in documents]
        self.end_of_text, self.path, self.split, self.manifest = end_of_text, "memory", "train", {}
        self.lengths = np.array([len(d) for d in documents], dtype=np.int64)

    def __len__(self):
        return len(self.documents)

    def document(self, index):
        return self.documents[index]


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
