"""Errors that a user can fix.

Each message has one or two sentences: what is wrong, where (the field or file, with its value), and the fix.
The command line prints it without a traceback and exits with :attr:`ContextwiseError.exit_status`.
"""

import contextlib
import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from contextwise.base.stopping import exit_status as status_after_signal
from contextwise.base.stopping import processes

Function = TypeVar("Function", bound=Callable[..., Any])
NOT_GIVEN: Any = object()


@dataclass(frozen=True)
class Problem:
    """One wrong setting."""

    why: str  # a clause after the field ("is missing") or after the value ("but must be at least 1")
    field: str = ""  # dotted name of the setting, as in `training.steps`; empty if it is not about a single setting
    value: Any = NOT_GIVEN  # the invalid value, if the message shows it
    fix: str = ""  # how to fix it

    def __str__(self) -> str:
        subject = self.field if len(self.field) <= 200 else f"{self.field[:197]}..."
        if self.value is not NOT_GIVEN:
            shown = " ".join(repr(self.value).splitlines())
            subject += f" is {shown if len(shown) <= 60 else shown[:57] + '...'},"
        space = "" if not subject or self.why.startswith(":") else " "
        return f"{subject}{space}{self.why}" + (f"; {self.fix}" if self.fix else "")

    def below(self, section: str) -> "Problem":
        """Return the problem with ``section`` before its field."""
        if not section:
            return self
        if not self.field and self.value is NOT_GIVEN:
            return replace(self, field=section, why=f": {self.why}")
        return replace(self, field=f"{section}.{self.field}" if self.field else section)


class ContextwiseError(Exception):
    """Base class of all errors of Contextwise."""

    exit_status = 2


class ConfigError(ContextwiseError, ValueError):
    """Settings, options or arguments are invalid; names each field, its value, the reason, and the fix.

    Also a ``ValueError``, which Python callers of the model classes expect. A string is a problem without a single field;
    ``where`` is the source of the settings ("the recipe x.yaml").
    """

    def __init__(self, *problems: "Problem | str", where: str = "") -> None:
        self.problems = tuple(Problem(p) if isinstance(p, str) else p for p in problems)
        texts = list(dict.fromkeys(str(problem) for problem in self.problems))
        text = "\n  - ".join(["", *texts]) if len(texts) > 1 else "".join(texts)
        count = "a problem" if len(texts) == 1 else f"{len(texts)} problems"
        super().__init__(f"{where} has {count}: {text}" if where else text.strip())


class DataError(ContextwiseError):
    """A source text, a corpus or a tokenizer is invalid; names the file (and line), and the fix."""


class CheckpointError(ContextwiseError):
    """A checkpoint, a run folder or an exported model is missing, damaged or does not match."""


class TrainingError(ContextwiseError):
    """Training failed (for example with a loss that is not finite), although the input is valid."""

    exit_status = 1


class DivergedError(TrainingError):
    """A loss, or the norm of a gradient, is not finite: the same run ends here each time."""


class NotFiniteError(CheckpointError):
    """A loss or feature of a model is not finite."""


class Interrupted(ContextwiseError):
    """The process stopped after saving, on a signal; its exit status is 130 after SIGINT, 143 after SIGTERM."""

    @property
    def exit_status(self) -> int:  # type: ignore[override]
        return status_after_signal()


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """A hint at the known name that is meant by an unknown one; without a similar one ``otherwise``, by default all names."""
    names = list(known)
    near = difflib.get_close_matches(str(name), [each for each in names if len(each) > 1], n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else otherwise or f"it may be {', '.join(names) or 'nothing'}"


PATHS: dict[Any, Any] = {str | Path: str | Path, str | Path | None: str | Path | None, str | None: str | None}
"""Annotation of an argument -> the types that are checked."""


def with_hints(function: Function) -> Function:
    """Refuse misspelt names of arguments, with a hint at the one that is meant, and truth values and paths that are none."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        try:
            given = signature.bind(*arguments, **options).arguments
        except TypeError as error:
            unknown = [name for name in options if name not in signature.parameters]
            hint = did_you_mean(unknown[0], signature.parameters, " ") if unknown else ""
            raise TypeError(f"{function.__name__}() {error}; {hint}".rstrip("; ")) from None
        for name, value in given.items():
            expected = signature.parameters[name]
            if isinstance(expected.default, bool) and not isinstance(value, bool):
                raise ConfigError(Problem("but must be True or False", name, value))
            kinds = PATHS.get(expected.annotation)
            if kinds is not None and not isinstance(value, kinds):
                raise ConfigError(Problem("but must be a text or path", name, value))
        return function(*arguments, **options)

    return call  # type: ignore[return-value]


def misspelt(path: str | Path, known: Iterable[str] = ()) -> str:
    """The end of a message on a path that does not exist: ``; did you mean notes.jsonl?``, or empty without a similar one.

    ``known`` names may be meant, beside the files and folders there.
    """
    given, near = Path(path), list[str | Path]()
    with contextlib.suppress(OSError, ValueError, StopIteration):  # no name that a file may have
        missing = next(each for each in [*reversed(given.parents), given] if not each.exists())
        beside = {each.name: each / given.relative_to(missing) for each in missing.parent.iterdir()}
        # A long ending, which most files of a kind share, makes no name similar.
        alike = [name for name in beside if difflib.SequenceMatcher(None, missing.stem, Path(name).stem).ratio() >= 0.6]
        near = [beside[name] for name in difflib.get_close_matches(missing.name, alike) if beside[name].exists()]
    near = [*difflib.get_close_matches(given.name, known, n=1), *near]
    return f"; did you mean {near[0]}?" if near else ""


def one_line(error: object, most: int = 200) -> str:
    """The message of an error of a library in one line of at most ``most`` characters."""
    return " ".join(str(error).split())[:most]


def not_installed(package: str, command: str = "") -> str:
    """The clause on a package that a feature needs: ``which is not installed; install it with: pip install ray``.

    It names the library, not an extra of this distribution: pip finds an extra in the clone alone, and a library anywhere.
    ``command`` takes the place of ``pip install PACKAGE``.
    """
    quoted = " ".join(f"'{each}'" if "[" in each else each for each in package.split())
    return f"which is not installed; install it with: {command or f'pip install {quoted}'}"


def check_alone(what: str) -> None:
    """Refuse ``what`` in several processes, which would wait for each other, or each do the whole work."""
    if processes() > 1:
        raise ConfigError(
            f"{what} works in one process, and this is one of {processes()} (WORLD_SIZE); start it without torchrun, or "
            "unset WORLD_SIZE: only train shares its work among several"
        )
