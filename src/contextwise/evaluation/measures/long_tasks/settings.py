"""What is asked of LongBench's and L-Eval's questions, checked before anything is loaded."""

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from contextwise.base.errors import ConfigError
from contextwise.base.files import sha256_file
from contextwise.data.input_files import readable
from contextwise.evaluation.measures.long_tasks.prompts import KEEPS, Keep
from contextwise.models.rope import ROPES, Rope

_RANGE = re.compile(r"(\d+)-(\d*)")


@dataclass(frozen=True)
class Settings:
    """What is asked.

    Attributes:
        files: of LongBench's or L-Eval's form.
        visible: visible contexts, tokens of the prompt; by default 1/8, 1/4, 1/2 and all of what the model has room for.
        whole: besides, the longest prompt whole.
        keep: which part of a prompt stays (:mod:`.prompts`).
        lengths: from and below how many words a text may have; None for no limit above.
        limit: questions of each data set, the first ones.
        new_tokens: most tokens of an answer; by default each data set's own.
        templates: a JSON file of data set -> template.
        chat: ask through the model's chat template.
        rope: how rotary positions beyond the trained ones come about; None: none are used.
        rope_factor: of the extension; longest input / trained length if not given.

    Raises:
        ConfigError: one of them is out of range, or does not go with another.
    """

    files: tuple[Path, ...]
    visible: tuple[int, ...] = ()
    whole: bool = False
    keep: Keep = "ends"
    lengths: tuple[int, int | None] | None = None
    limit: int | None = None
    new_tokens: int | None = None
    templates: Path | None = None
    chat: bool = False
    rope: Rope | None = None
    rope_factor: float | None = None

    def __post_init__(self) -> None:
        if not self.files:
            raise ConfigError("no file of questions is given; give one of LongBench's or L-Eval's form")
        if len(set(self.files)) < len(self.files):
            raise ConfigError("a file of questions is given twice; name each once")
        for name, value in (("--limit", self.limit), ("--new-tokens", self.new_tokens)):
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}, but must be at least 1")
        if self.keep not in KEEPS:
            raise ConfigError(f"--keep is {self.keep!r}; it must be one of {', '.join(KEEPS)}")
        if self.rope is not None and self.rope not in ROPES:
            raise ConfigError(f"--rope is {self.rope!r}; it must be one of {', '.join(ROPES)}")
        if self.rope is None and self.rope_factor is not None:
            raise ConfigError("--rope-factor is given without --rope; give a method too, such as dynamic")
        if self.rope is not None and not self.visible and not self.whole:
            raise ConfigError(
                "--rope lets a model read beyond its positions; say how far with --visible, such as 512,1024 or all"
            )
        object.__setattr__(self, "visible", tuple(sorted(set(self.visible))))
        if self.visible and self.visible[0] < 2:
            raise ConfigError(f"a visible context is {self.visible[0]}, but must be at least 2")

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; files with their hashes, so that other content makes other settings."""
        described = {
            "files": [_described(path) for path in self.files],
            "templates": None if self.templates is None else _described(self.templates),
            "visible": list(self.visible),
            "lengths": None if self.lengths is None else list(self.lengths),
        }
        return {**asdict(self), **described}


def read_range(text: str) -> tuple[int, int | None]:
    """``0-4000`` or ``8000-``: from so many words on, and below so many.

    Raises:
        ConfigError: something else.
    """
    match = _RANGE.fullmatch(text.strip())
    low, high = (int(match[1]), int(match[2]) if match[2] else None) if match else (0, 0)
    if high is not None and high <= low:
        raise ConfigError(
            f"--lengths is {text!r}; give words from-below, such as 0-4000, or 8000- for no limit"
        )
    return low, high


def read_visible(text: str) -> tuple[tuple[int, ...], bool]:
    """``512,1024,all``: numbers of tokens, and whether ``all`` is among them.

    Raises:
        ConfigError: something else.
    """
    parts = [part.strip() for part in text.split(",")]
    try:
        return tuple(int(part) for part in parts if part != "all"), "all" in parts
    except ValueError:
        raise ConfigError(
            f"--visible is {text!r}; give whole numbers with commas between, such as 512,1024, or all"
        ) from None


def _described(path: Path) -> dict[str, str]:
    with readable(path):
        return {"path": str(path), "sha256": sha256_file(path)}
