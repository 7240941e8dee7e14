"""The guide's contract of determinism: each of its lines has a number, under which it names tests that exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "docs" / "reference" / "determinism.md").read_text()


def rows(section: str) -> list[list[str]]:
    """The cells of a section's table, without its heading."""
    text = GUIDE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    _, _, *lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


DEGREES = ["Bit for bit", "To float tolerance"]
PROMISES = [row for degree in DEGREES for row in rows(degree)]
TESTS = {number: named for numbers, named in rows("Tests") for number in numbers.split(", ")}


@pytest.mark.parametrize("promise", PROMISES, ids=[promise[0][:50] for promise in PROMISES])
def test_each_line_has_its_tests(promise):
    *_, held, number = promise
    assert held and number in TESTS, "this line names no test"
    named = re.findall(r"`(tests/[^`]*)::([^`]*)`", TESTS[number])
    assert named, "this line names no test"
    for file, name in named:
        tree = ast.parse((ROOT / file).read_text())
        assert any(isinstance(node, ast.FunctionDef) and node.name == name for node in ast.walk(tree)), name


def test_each_number_is_that_of_one_line():
    assert [number for *_, number in PROMISES] == list(TESTS) == [str(1 + i) for i in range(len(PROMISES))]


@pytest.mark.parametrize("degree", DEGREES)
def test_the_guide_has_lines_of_both_degrees(degree):
    assert len(rows(degree)) >= 5
