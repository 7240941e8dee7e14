"""The documentation is whole: generated pages are those of the code, links lead somewhere, and every page can be found."""

import ast
import contextlib
import importlib
import json
import re
import runpy
import shutil
import subprocess
import sys
from functools import reduce
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
OUTSIDE = [ROOT / name for name in ("README.md", "AGENTS.md", "CONTRIBUTING.md", "benchmarks/README.md")]
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)\)")


def text_of(page: Path) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^( *)```.*?^\1```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.*)$", text_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", ["commands.md", "recipe.md", "sweep.md", "trial.md"])
def test_the_reference_is_that_of_the_code(page: str, made: dict[str, str]) -> None:
    assert (DOCS / "reference" / page).read_text() == made[page], "run: python docs/reference/make.py"


def test_the_figure_of_the_answers_is_that_of_the_results() -> None:
    drawn = runpy.run_path(str(DOCS / "figures" / "answers.py"))
    trials = json.loads(drawn["RESULTS"].read_text())["trials"]
    figure = drawn["figure"](trials)
    assert (DOCS / "figures" / "answers.svg").read_text() == figure, "run: python docs/figures/answers.py"
    # The two that are undecided are hollow, and so is nothing else.
    decisions = [each["decision"] for trial in trials.values() for each in trial["comparisons"]]
    assert figure.count(' hollow"') == len(decisions) - decisions.count("worse") == 2


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    """Generated pages by name."""
    return runpy.run_path(str(DOCS / "reference" / "make.py"))["pages"]()


@pytest.mark.parametrize("page", [*OUTSIDE, *PAGES], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for target in LINK.findall(text_of(page)):
        path, _, anchor = target.partition("#")
        if "://" in path:
            continue
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


def test_every_page_is_in_the_index_and_in_the_site() -> None:
    index, site = (DOCS / "index.md").read_text(), (ROOT / "mkdocs.yml").read_text()
    for page in PAGES:
        name = page.relative_to(DOCS).as_posix()
        assert name in site, name
        assert name == "index.md" or f"({name}" in index, name


DETERMINISM = (DOCS / "reference" / "determinism.md").read_text()


def rows(section: str) -> list[list[str]]:
    """The cells of a section's table, without its heading."""
    text = DETERMINISM.split(f"\n## {section}\n")[1].split("\n## ")[0]
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


@pytest.mark.slow
def test_pyright_finds_no_error_in_the_files_of_the_public_api() -> None:
    """Their types, as editors show them."""
    command = shutil.which("pyright")
    if command is None:
        pytest.skip("pyright is not installed: pip install 'pyright[nodejs]'")
    done = subprocess.run([command, "--pythonpath", sys.executable], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "0 errors" in done.stdout, done.stdout


def resolves(name: str) -> bool:
    """Whether a dotted name is a module, or something in one."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        with contextlib.suppress(ImportError, AttributeError):
            found = importlib.import_module(".".join(parts[:count]))
            reduce(getattr, parts[count:], found)
            return True
    return False


def test_names_of_the_packages_in_the_guides_exist() -> None:
    """``contextwise_plan.sweep`` stood in a guide for a while, and could not be imported."""
    groups = {
        f"contextwise.{each}" for each in re.findall(r'"contextwise\.(\w+)"', (ROOT / "pyproject.toml").read_text())
    }
    named = set()
    for page in PAGES:
        text = page.read_text()
        named |= set(re.findall(r"(?<![\w./-])contextwise(?:_\w+)?(?:\.[A-Za-z_]\w*)+", text))
        for module, names in re.findall(r"^from (contextwise[\w.]*) import ([\w, ]+)$", text, re.MULTILINE):
            named |= {f"{module}.{name.split(' as ')[0].strip()}" for name in names.split(",")}
    missing = {name for name in named - groups if not resolves(name)}
    assert len(named) > 50 and not missing
