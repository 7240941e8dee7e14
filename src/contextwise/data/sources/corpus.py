"""The texts of a prepared corpus, as a source: for another tokenizer."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from contextwise.base.errors import DataError
from contextwise.base.files import expanded
from contextwise.data.corpus.corpus import Corpus, holds_corpus
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
        self.corpus = Corpus.open(path.parent, split=path.name)
        self.tokenizer = self.corpus.tokenizer()
        if self.tokenizer is None:
            raise DataError(f"the corpus {path.parent} has no tokenizer, so its texts are not known; give the texts")
        if note := self.corpus.lost_note:
            raise DataError(f"the texts of {path.parent} cannot be read from its tokens: {note} Give the texts")

    @classmethod
    def parts_of(cls, rest: str) -> Sequence[str]:
        return Corpus.open(rest).splits if holds_corpus(expanded(rest)) else ()

    def records(self, text_field: str) -> Iterator[Document]:
        for index in range(len(self.corpus)):
            text = self.tokenizer.decode(self.corpus.document(index).tolist(), skip_special_tokens=False)
            self.done = (index + 1) / len(self.corpus)
            yield Document(text, self.corpus.metadata(index))

    def description(self) -> dict[str, Any]:
        return {**super().description(), "fingerprint": self.corpus.fingerprint}
