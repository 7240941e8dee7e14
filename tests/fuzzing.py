"""Hostile inputs, drawn from a seed, and commands in processes of their own that are watched."""

import contextlib
import copy
import os
import random
import resource
import signal
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from processes import forked, type_command

SECONDS, MEMORY = 60, 12 * 2**30
"""What a command may take."""
VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        "",
        " ",
        "10",
        "1e3",
        "none",
        ".",
        "..",
        "/",
        "/dev/null",
        "/dev/zero",
        "a" * 300,
        "\x00",
        "é\n",
        "`rm`",
    ),
    *(0, -1, 1, 2, 3, 7, 2**31 - 1, 2**31, 2**53, 2**63, 2**64, 10**30, -(10**30)),
    *(0.5, 1.0, 1.5, -0.0, 1e-300, 1e-9, 1e9, 1e30, 1e308, -1e308, float("nan"), float("inf")),
    *([], {}, [[]], [0], ["a", "a"], {"a": 1}, {1: 2}, {"": {}}),
)
"""Values in place of a setting."""


@dataclass(frozen=True)
class Ended:
    """How a command ended: exit status (negative: a signal; None: it was still running), and what it printed."""

    words: Sequence[str]
    status: int | None
    text: str

    def problem(self, allowed: Iterable[int] = (0, 2)) -> str | None:
        """What is wrong with the end of a command whose input may be at fault; None if nothing is."""
        shown = f"{' '.join(map(repr, self.words))}\n{self.text[-1500:]}"
        if self.status is None:
            return f"still running after {SECONDS} seconds: {shown}"
        if self.status not in allowed:
            return f"exit status {self.status}: {shown}"
        if "Traceback" in self.text or "error: unexpected" in self.text:
            return f"a traceback: {shown}"
        if self.status == 2 and "error: " not in self.text and "Error" not in self.text:
            return f"no sentence: {shown}"
        return None


def _run(folder: Path, words: list[str], log: Path) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ |= {"HF_HUB_OFFLINE": "1", "COLUMNS": "200"}
    type_command(folder, words, log)


def run(words: Sequence[str], folder: Path) -> Ended:
    """Run a command in a folder."""
    with tempfile.NamedTemporaryFile() as log:
        process = forked(_run, folder, list(words), Path(log.name))
        process.join(SECONDS)
        status = process.exitcode
        if status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid or 0, signal.SIGKILL)
            process.join()
        return Ended(words, status, Path(log.name).read_text(errors="replace"))


def report(problems: list[str]) -> None:
    if problems:
        pytest.fail(f"{len(problems)} problems, the first:\n" + "\n\n".join(problems[:5]))


def mutated_values(values: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """Settings of which one to three are replaced, removed, added or moved."""
    result = copy.deepcopy(values)
    for _ in range(draw.randint(1, 3)):
        sections = [result, *_sections(result)]
        section = draw.choice(sections)
        key = draw.choice([*section, "unknown"])
        how = draw.random()
        if how < 0.7:
            section[key] = copy.deepcopy(draw.choice(VALUES))
        elif how < 0.85:
            section.pop(key, None)
        else:
            draw.choice(sections)[key] = copy.deepcopy(section.get(key))
    return result


def _sections(values: dict[str, Any]) -> list[dict[str, Any]]:
    inner = [value for value in values.values() if isinstance(value, dict)]
    return inner + [section for value in inner for section in _sections(value)]


def mutated_bytes(content: bytes, draw: random.Random) -> bytes:
    """Content of which a few bytes are changed, removed, repeated or inserted; or that ends early."""
    data = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        at, length = draw.randrange(len(data) + 1), draw.randint(1, 20)
        how = draw.randrange(5)
        if how == 0:
            del data[at:]
        elif how == 1:
            del data[at : at + length]
        elif how == 2:
            data[at:at] = data[at : at + length] * draw.randint(1, 5)
        elif how == 3:
            data[at : at + length] = draw.randbytes(length)
        else:
            data[at:at] = draw.choice(
                [b"\x00", b"\xff", b"\xef\xbb\xbf", b"'", b'"', b"{", b"[", b"\n", b"&a *a", b"1e999", b"\\ud800"]
            )
    return bytes(data)


def hostile_yaml() -> dict[str, str]:
    """Name -> YAML that overflows, nests or runs code where it is read carelessly."""
    return {
        "itself": "a: &a [*a]\n",
        "nested lists": "a: " + "[" * 3000 + "]" * 3000,
        "nested blocks": "\n".join(" " * i + "a:" for i in range(3000)),
        "many digits": f"seed: {'9' * 5000}\n",
        "code": "a: !!python/object/apply:os.system ['touch ran']\n",
        "no date": "a: 2020-99-99\n",
        "half a pair": 'name: "\\ud800"\n',
        "key of a list": "[1, 2]: 3\n",
        "two documents": "a: 1\n---\nb: 2\n",
        "binary": "a: !!binary x\n",
        "a list": "- 1\n",
        "a tab": "a:\n\tb: 1\n",
        "octal": "steps: 010\n",
        "base 60": "steps: 1:30\n",
        "nothing": "",
    }
