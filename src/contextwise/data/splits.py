"""Splits that a user names, source by source (``train=a.jsonl test=b.jsonl``), in place of shares."""

import re
from collections.abc import Sequence
from pathlib import Path

from contextwise.base.errors import ConfigError, DataError
from contextwise.data.documents import SplitFractions

_NAMED = re.compile(r"([^=/.:*?~]*)=(.*)", re.DOTALL)
_NAME = re.compile(r"[A-Za-z]\w*")  # what Hugging Face datasets take, too
_TAKEN = ("tokenizer", "parts", "encoded")  # other folders of a corpus


def read_splits(given: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """What to open, and the split of each; None if no source names one.

    A source whose whole text is the name of a file or folder (``year=2020/part.parquet``) names no split.

    Raises:
        ConfigError: some sources name a split and others do not, or a name or a source is missing, wrong or taken.
    """
    found = [None if _exists(source) else _NAMED.fullmatch(source) for source in given]
    if not any(found):
        return list(given), None
    plain = [source for source, match in zip(given, found, strict=True) if match is None]
    if plain:
        raise ConfigError(
            f"the source {plain[0]} names no split, but others do; write train={plain[0]}, or name no split at all"
        )
    named = [(match[1], match[2]) for match in found if match is not None]
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
    if name in _TAKEN:
        raise ConfigError(
            f"no split can be called {name!r}, which the corpus uses itself; choose another name"
        )


def _exists(source: str) -> bool:
    try:
        return Path(source).expanduser().exists()
    except (OSError, RuntimeError):
        return False


def check_shares(validation: float | None, test: float | None, names: list[str] | None) -> None:
    """Refuse shares together with named splits.

    Raises:
        ConfigError: both are given.
    """
    for option, share in (("validation", validation), ("test", test)):
        if names is not None and share is not None:
            raise ConfigError(
                f"--{option} {share} is a share of the documents, but the sources name their splits; "
                f"leave it out, or name a source {option}=..."
            )


def shares(validation: float | None, test: float | None) -> SplitFractions:
    """The shares as given, or the usual ones."""
    usual = SplitFractions()
    return SplitFractions(
        usual.validation if validation is None else validation, usual.test if test is None else test
    )


class Apart:
    """Sees that no document is in two named splits. About 120 bytes a document."""

    def __init__(self) -> None:
        self._split: dict[bytes, str] = {}

    def other(self, split: str, digest: bytes) -> str | None:
        """Another split that has the document already; else it is noted for this one."""
        other = self._split.setdefault(digest, split)
        return None if other == split else other


def in_two_splits(text: str, first: tuple[str, str], second: tuple[str, str]) -> DataError:
    """The error about a document that stands in two splits, each (split, where)."""
    shown = " ".join(text.split())
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    (a, where_a), (b, where_b) = first, second
    return DataError(
        f"the same text is in two splits, {a} ({where_a}) and {b} ({where_b}): {shown!r}; take it out of one of them"
    )
