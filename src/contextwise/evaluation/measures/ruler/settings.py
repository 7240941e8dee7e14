"""What a RULER measurement asks, checked before anything is loaded."""

import difflib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from contextwise.base.errors import ConfigError
from contextwise.base.files import sha256_file
from contextwise.data.input_files import readable
from contextwise.evaluation.measures.ruler.placement import check_gamma

TASKS = ("qa_1", "fwe", "cwe", "vt")
LONGEST = 2**24
"""Tokens of the longest text that is made: no model has read more, and a slip of the keys would fill the memory."""
FRACTIONS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4, 1)


@dataclass(frozen=True)
class Settings:
    """What is asked.

    Attributes:
        tasks: of :data:`TASKS`; by default those that can be made: all, qa_1 only where a file of questions is given.
        length: most tokens of a text, by the model's own tokenizer; L of the law of places.
        visible: visible contexts, tokens; by default some parts of ``length`` (:data:`FRACTIONS`).
        gamma: γ of the law of places.
        samples: questions of each task.
        seed: of the questions.
        chat: put each question into the model's chat template.
        example: put a worked example before the questions of vt and cwe, as RULER does.
        qa: a file in SQuAD's form, for qa_1.
        words: a file of words, one a line, for cwe; words are made up if None.

    Raises:
        ConfigError: one of them is out of range, or does not go with another.
    """

    tasks: tuple[str, ...] = ()
    length: int = 4096
    visible: tuple[int, ...] = ()
    gamma: float = 0.0
    samples: int = 100
    seed: int = 0
    chat: bool = False
    example: bool = True
    qa: Path | None = None
    words: Path | None = None

    def __post_init__(self) -> None:
        for name, value in (("--length", self.length), ("--samples", self.samples)):
            if value < 1:
                raise ConfigError(f"{name} is {value}, but must be at least 1")
        check_length(self.length)
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"--seed is {self.seed}, but must be a whole number from 0 on")
        check_gamma(self.gamma)
        object.__setattr__(self, "tasks", self._chosen_tasks())
        visible = self.visible or tuple(max(1, int(self.length * part)) for part in FRACTIONS)
        object.__setattr__(self, "visible", tuple(sorted(set(visible))))
        if self.visible[0] < 1:
            raise ConfigError(f"a visible context is {self.visible[0]}, but must be at least 1")
        if self.visible[-1] > self.length:
            raise ConfigError(
                f"a visible context is {self.visible[-1]}, but the texts have only {self.length} tokens; "
                "give smaller ones, or a greater --length"
            )

    def _chosen_tasks(self) -> tuple[str, ...]:
        if not self.tasks:
            return tuple(task for task in TASKS if task != "qa_1" or self.qa is not None)
        for task in self.tasks:
            if task not in TASKS:
                near = difflib.get_close_matches(task, TASKS, n=1, cutoff=0.3)
                hint = f"did you mean {near[0]!r}? " if near else ""
                raise ConfigError(f"there is no task {task!r}; {hint}the tasks are {', '.join(TASKS)}")
        if "qa_1" in self.tasks and self.qa is None:
            raise ConfigError("the task 'qa_1' needs questions; give a file in SQuAD's form with --qa")
        if "qa_1" not in self.tasks and self.qa is not None:
            raise ConfigError("--qa is given, but not the task 'qa_1'; leave one out, or give the other")
        if "cwe" not in self.tasks and self.words is not None:
            raise ConfigError("--words is given, but not the task 'cwe'; leave one out, or give the other")
        return tuple(dict.fromkeys(self.tasks))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; files with their hashes, so that other content makes other settings."""
        files = {"qa": _described(self.qa), "words": _described(self.words)}
        return {**asdict(self), "tasks": list(self.tasks), "visible": list(self.visible), **files}


def check_length(length: int) -> None:
    """
    Raises:
        ConfigError: a text would be longer than :data:`LONGEST`.
    """
    if length > LONGEST:
        raise ConfigError(f"--length is {length}, but must be at most {LONGEST:,}")


def _described(path: Path | None) -> dict[str, str] | None:
    if path is None:
        return None
    with readable(path):
        return {"path": str(path), "sha256": sha256_file(path)}
