"""The command line as a user types it; the fixture ``contextwise`` makes one."""

import io
import json
import re
import shlex
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from contextwise.cli import main

NEXT = re.compile(r"next( \(.*\))?: contextwise ")
"""A line with the next command, which is whole for those who copy it."""


def in_terminal(shown: RenderableType, width: int = 80) -> str:
    """The lines of a table or of several, as a terminal of so many columns shows them."""
    console = Console(width=width, highlight=False, record=True, file=io.StringIO())
    console.print(shown)
    return console.export_text()


def words_of(shown: RenderableType) -> str:
    """The same in one line, its words a space apart."""
    return " ".join(in_terminal(shown).split())


class Contextwise:
    """Types commands in a folder; a command is one line as in a shell, with further arguments behind it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.monkeypatch, self.capsys = folder, monkeypatch, capsys

    def __call__(self, line: str, *arguments: object) -> tuple[int, str, str]:
        """Run a command; gives (exit status, standard output, standard error)."""
        self.monkeypatch.chdir(self.folder)
        self.monkeypatch.setenv("COLUMNS", "80")
        words = [*shlex.split(line), *map(str, arguments)]
        self.monkeypatch.setattr("sys.argv", ["contextwise", *words])
        with pytest.raises(SystemExit) as exit_status:
            main()
        status, (output, errors) = int(exit_status.value.code or 0), self.capsys.readouterr()
        if status == 0 and "--json" in words:
            json.loads(output)
        return status, output, errors

    def words(self, line: str, *arguments: object) -> str:
        """The words that a command prints, which fits 80 columns (but for the next command) and ends with status 0."""
        status, output, errors = self(line, *arguments)
        assert status == 0, errors
        assert all(len(each) <= 80 or NEXT.match(each) for each in output.splitlines())
        return " ".join(output.split())

    def refused(self, line: str, message: str) -> None:
        """A command whose input is at fault: one message on standard error, status 2, no traceback, no new files."""
        before = sorted(path for path in self.folder.rglob("*") if ".lock" not in path.name)
        status, output, errors = self(line)
        assert status == 2 and "Traceback" not in errors
        if "--json" in line:
            assert message in json.loads(output)["error"]["message"]
        else:
            assert output == ""
        assert message in " ".join(errors.replace("│", " ").split()), errors
        assert sorted(path for path in self.folder.rglob("*") if ".lock" not in path.name) == before
