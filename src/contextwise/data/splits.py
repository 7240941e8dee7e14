"""Assignment of documents to splits: by shares from a hash of the text, or by source (``train=a.jsonl test=b.jsonl``)."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from contextwise.base.errors import ConfigError

SPLITS = ("train", "validation", "test")
_NAMED = re.compile(r"([^=/.:*?~]*)=(.*)", re.DOTALL)
_NAME = re.compile(r"[A-Za-z]\w*")  # as Hugging Face datasets requires
_RESERVED = ("tokenizer", "parts", "encoded")  # other folders of a corpus


@dataclass(frozen=True)
class SplitFractions:
    """Held-out shares of the documents; a document's split depends on its text alone.

    Raises:
        ConfigError: a share is outside 0..1, or no documents remain for training.
    """

    validation: float = 0.05
    test: float = 0.0

    @classmethod
    def given(cls, validation: float | None, test: float | None, names: list[str] | None) -> "SplitFractions":
        """Build the shares from a user's options, with defaults for None.

        Args:
            names: splits that the sources name.

        Raises:
            ConfigError: as the class, or both shares and named splits are given.
        """
        shares = {
            name: share for name, share in (("validation", validation), ("test", test)) if share is not None
        }
        for name, share in shares.items() if names is not None else ():
            raise ConfigError(
                f"{name} {share} is a share of the documents, but the sources name their splits; "
                f"leave it out, or name a source {name}=..."
            )
        return cls(**shares)

    def __post_init__(self) -> None:
        for name, value in (("validation", self.validation), ("test", self.test)):
            if not 0 <= value < 1:
                raise ConfigError(
                    f"{name} is {value}, but must be a share of the documents from 0 to below 1"
                )
        if self.validation + self.test >= 1:
            raise ConfigError(
                f"validation {self.validation} and test {self.test} leave no document for training; "
                "their sum must be below 1"
            )

    def split_of(self, digest: bytes) -> str:
        """Split of the document with this digest; its first 64 bits are used as a number in [0, 1)."""
        number = int.from_bytes(digest[:8], "big") / 2**64
        if number < self.validation:
            return "validation"
        return "test" if number < self.validation + self.test else "train"


def read_splits(given: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """Parse the sources to open, and the split of each; None if no source names a split.

    A source whose complete text is the name of a file or folder (``year=2020/part.parquet``) names no split.

    Raises:
        ConfigError: some sources name a split and others do not, or a name or a source is missing, invalid or reserved.
    """
    matches = [None if _exists(source) else _NAMED.fullmatch(source) for source in given]
    if not any(matches):
        return list(given), None
    for source, match in zip(given, matches, strict=True):
        if match is None:
            raise ConfigError(
                f"the source {source} names no split, but others do; write train={source}, or name no split at all"
            )
    named = [(match[1], match[2]) for match in matches if match is not None]
    for name, source in named:
        _check_name(name, source)
    return [source for _, source in named], [name for name, _ in named]


def _check_name(name: str, source: str) -> None:
    if not source:
        raise ConfigError(f"{name}= names a split, but no source; write {name}=FILE")
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"the split of the source {name}={source} is called {name!r}, but a split's name is a letter and then letters, "
            "digits and underscores; choose such a name (a file with an equals sign in its path begins with ./)"
        )
    if name in _RESERVED:
        raise ConfigError(
            f"no split can be called {name!r}, which the corpus uses itself; choose another name"
        )


def _exists(source: str) -> bool:
    try:
        return Path(source).expanduser().exists()
    except (OSError, RuntimeError):
        return False
