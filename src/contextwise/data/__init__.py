"""Text to documents of token ids on disk: ``prepare_corpus`` writes a corpus, ``Corpus`` reads it.

corpus = prepare_corpus("texts.jsonl.gz", "train:4096", "corpora/texts")
corpus = Corpus.open("corpora/texts", "validation")
corpus.document(0)  # token ids, a view of the file
"""

from typing import TYPE_CHECKING

from contextwise.base.lazy import lazy_exports

if TYPE_CHECKING:
    from contextwise.data.corpus import Corpus
    from contextwise.data.prepare import prepare_corpus

__all__ = ["Corpus", "prepare_corpus"]
__getattr__ = lazy_exports(__name__, {"corpus": ["Corpus"], "prepare": ["prepare_corpus"]})
