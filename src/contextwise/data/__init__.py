"""Text to documents of token ids on disk: ``prepare_corpus`` writes a corpus, ``Corpus`` reads it.

corpus = prepare_corpus("texts.jsonl.gz", "train:4096", "corpora/texts")
corpus = Corpus.open("corpora/texts", "validation")
corpus.document(0)  # token ids, a view of the file
"""

from typing import TYPE_CHECKING

from contextwise.base.lazy import lazy_exports

if TYPE_CHECKING:
    from contextwise.data.corpus import Corpus
    from contextwise.data.documents import BadRecord, Document
    from contextwise.data.prepare import prepare_corpus
    from contextwise.data.sources import Source, open_source
    from contextwise.data.sources.stdlib import iter_stdlib_documents
    from contextwise.data.tokenizers import CorpusTokenizer, byte_tokenizer, learn_bpe, load_tokenizer

__all__ = [
    "BadRecord",
    "Corpus",
    "CorpusTokenizer",
    "Document",
    "Source",
    "byte_tokenizer",
    "iter_stdlib_documents",
    "learn_bpe",
    "load_tokenizer",
    "open_source",
    "prepare_corpus",
]
__getattr__ = lazy_exports(
    __name__,
    {
        "corpus": ["Corpus"],
        "documents": ["BadRecord", "Document"],
        "prepare": ["prepare_corpus"],
        "sources": ["Source", "open_source"],
        "sources.stdlib": ["iter_stdlib_documents"],
        "tokenizers": ["CorpusTokenizer", "byte_tokenizer", "learn_bpe", "load_tokenizer"],
    },
)
