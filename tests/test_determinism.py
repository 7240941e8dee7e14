"""The guide's contract of determinism: each of its lines names tests that exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "docs" / "reference" / "determinism.md").read_text()
LINES = [line for line in GUIDE.splitlines() if line.startswith("| ")]
PROMISES = [line for line in LINES if not line.endswith("| tests |")]


@pytest.mark.parametrize("line", PROMISES, ids=[line.split("|")[1].strip()[:50] for line in PROMISES])
def test_each_line_has_its_tests(line):
    named = re.findall(r"`(tests/[^`]*)::([^`]*)`", line)
    assert named, "this line names no test"
    for file, name in named:
        tree = ast.parse((ROOT / file).read_text())
        assert any(isinstance(node, ast.FunctionDef) and node.name == name for node in ast.walk(tree)), name


@pytest.mark.parametrize("degree", ["Bit for bit", "To float tolerance"])
def test_the_guide_has_lines_of_both_degrees(degree):
    section = GUIDE.split(f"\n## {degree}\n")[1].split("\n## ")[0]
    assert sum(line in PROMISES for line in section.splitlines()) >= 5
