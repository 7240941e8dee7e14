"""The corpus of an item: a prepared one, or a source that is prepared once, in the folder of the reproduction."""

import re
from pathlib import Path

from pydantic import Field

from contextwise.base.config import Settings
from contextwise.data import prepare_corpus
from contextwise.data.corpus import MANIFEST


class CorpusSource(Settings):
    """Where the text of a reproduction comes from."""

    corpus: str = Field(
        "stdlib", description="a prepared corpus; or a source that `contextwise prepare` knows"
    )
    tokenizer: str = Field("train:4096", description="for a source that has to be prepared")
    validation: float = Field(
        0.1, gt=0, lt=1, description="share held out of a source that has to be prepared"
    )

    def corpus_folder(self, folder: Path) -> Path:
        """Folder of the corpus; nothing is prepared.

        Args:
            folder: of the reproduction.
        """
        given = Path(self.corpus)
        if (given / MANIFEST).exists():
            return given
        return folder / "corpora" / re.sub(r"[^\w.]+", "-", f"{given.name}-{self.tokenizer}")

    def prepared(self, folder: Path) -> Path:
        """The corpus; a source is prepared, once.

        Raises:
            DataError: the source cannot be read.
        """
        target = self.corpus_folder(folder)
        if not (target / MANIFEST).exists():
            prepare_corpus(self.corpus, self.tokenizer, target, validation=self.validation, reuse=True)
        return target

    @property
    def vocab_size(self) -> int | None:
        """Size of the vocabulary of a tokenizer that has to be trained; None for any other."""
        kind, _, size = self.tokenizer.partition(":")
        return int(size) if kind == "train" and size.isdigit() else None
