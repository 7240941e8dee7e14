"""Text to documents of token ids on disk: ``prepare_corpus`` writes a corpus, ``Corpus`` reads it.

corpus = prepare_corpus("texts.jsonl.gz", "train:4096", "corpora/texts")
corpus = Corpus.open("corpora/texts", "validation")
corpus.document(0)  # token ids, a view of the file
"""

from typing import TYPE_CHECKING

from contextwise.base.lazy import lazy_exports

if TYPE_CHECKING:
    from contextwise.data.corpus import Corpus
    from contextwise.data.document_lengths import in_tokens, token_count
    from contextwise.data.input_files import Form, checked, read_objects, readable
    from contextwise.data.prepare import prepare_corpus
    from contextwise.data.sources import open_source, source_digest
    from contextwise.data.sources.source import BadRecord, Document, Record, Source
    from contextwise.data.windows import Windows

__all__ = ["BadRecord", "Corpus", "Document", "Form", "Record", "Source", "Windows", "checked", "in_tokens"]
__all__ += ["open_source", "prepare_corpus", "read_objects", "readable", "source_digest", "token_count"]
__getattr__, __dir__ = lazy_exports(__name__)
