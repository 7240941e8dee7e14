"""The texts of a prepared corpus, as a source: for another tokenizer."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from contextwise.base.errors import DataError, misspelt
from contextwise.base.files import expanded
from contextwise.data.corpus.corpus import Corpus, is_corpus, read_manifest
from contextwise.data.sources.source import Document, Source


class CorpusTexts(Source):
    """The texts of a split of a corpus with their metadata, ``corpus:PATH/SPLIT``; ``corpus:PATH`` stands for all splits.

    Raises:
        DataError: the corpus has no tokenizer, or its tokens do not hold all of its text.
    """

    kind, alone = "corpus", False

    def __init__(self, place: str) -> None:
        super().__init__(f"{self.kind}:{Path(place).parent.name}/{Path(place).name}")
        path = expanded(place)
        if is_corpus(path):
            why = "is a whole corpus; of several sources each names a split"
            raise DataError(
                f"{self.kind}:{place} {why}, such as {self.kind}:{place}/{next(iter(self.parts_of(place)))}"
            )
        if not is_corpus(path.parent):
            raise DataError(f"there is no corpus at {place}{misspelt(path)}")
        self.corpus = Corpus.open(path.parent, split=path.name)
        if (tokenizer := self.corpus.tokenizer()) is None:
            raise DataError(f"the corpus {path.parent} has no tokenizer, so its texts are not known; give the texts")
        self.tokenizer = tokenizer
        if note := self.corpus.lost_note:
            raise DataError(f"the texts of {path.parent} cannot be read from its tokens: {note} Give the texts")

    @classmethod
    def parts_of(cls, rest: str) -> Sequence[str]:
        return list(read_manifest(path)["splits"]) if is_corpus(path := expanded(rest)) else ()

    def records(self, text_field: str) -> Iterator[Document]:
        sizes = self.corpus.bytes
        for index in range(len(self.corpus)):
            text = self.tokenizer.decode(self.corpus.document(index).tolist(), skip_special_tokens=False)
            if sizes is not None and len(text.encode()) + 1 == sizes[index]:
                text = f" {text}"  # a decoder as SentencePiece's drops a space that a text begins with
            self.done = (index + 1) / len(self.corpus)
            metadata = self.corpus.metadata(index)
            metadata.pop("document_hash", None)  # of the text, which has it again
            yield Document(text, metadata)

    def description(self) -> dict[str, Any]:
        return {**super().description(), "fingerprint": self.corpus.fingerprint}
