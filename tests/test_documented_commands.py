"""The command lines of the documentation, and of slow tests, name verbs and options that exist."""

import re
from collections.abc import Iterable
from pathlib import Path

import pytest
import typer

from contextwise.cli import commands
from writing_commands import LINES

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "AGENTS.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMAND = re.compile(r"^(?:    |\$ )contextwise ((?:[^\n]|(?<=\\)\n)+)", re.MULTILINE)


def options_of(name: str) -> set[str]:
    single = typer.Typer()
    single.command(name)(commands.verbs()[name][1])
    parameters = typer.main.get_command(single).params
    return {"--help"} | {option for each in parameters for option in (*each.opts, *each.secondary_opts)}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_exist(document: Path) -> None:
    check_commands(COMMAND.findall(document.read_text()))


def test_commands_of_tests_exist() -> None:
    check_commands(LINES.values())


def check_commands(lines: Iterable[str]) -> None:
    for command in lines:
        verb, *words = re.split(r"\s+", command.split("#")[0].replace("\\\n", " ").strip())
        if verb in commands.groups() and words[:1] not in ([], ["--help"]):
            verb = f"{verb} {words.pop(0)}"
        if verb.startswith("--") or verb in (*commands.groups(), "measure surprise"):
            continue
        assert verb in commands.verbs(), command
        given = {word.strip("[],.…`").split("=")[0] for word in words if re.match(r"\[?--\w", word)}
        assert given <= options_of(verb), command
