"""One way for the data: a package imports only from packages to its left."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "contextwise"
ORDER = [
    "base",
    "data",
    "objectives",
    "models",
    "training",
    "evaluation",
    "comparison",
    "experiments",
    "analysis",
    "reproductions",
    "reports",
    "cli",
]
PLACED_IN = {"testing": "evaluation"}  # public modules at the top, and the package whose imports they may use
RECIPES = SOURCE / "recipes"  # no package: data, and models that recipes name as users name theirs
FILES = sorted(file for file in SOURCE.rglob("*.py") if RECIPES not in file.parents)


def imported(file):
    """Names of the packages of contextwise that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(file.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: relative imports hide the package they cross"
            names = [
                f"{node.module}.{alias.name}" if node.module == "contextwise" else node.module for alias in node.names
            ]
        for name in names:
            parts = name.split(".")
            package = PLACED_IN.get(parts[1], parts[1]) if len(parts) > 1 else ""
            if parts[0] == "contextwise" and package in ORDER:
                yield package, node.lineno


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_imports_go_one_way(file):
    parts = file.relative_to(SOURCE).parts
    place = parts[0] if len(parts) > 1 else PLACED_IN.get(file.stem)
    if place is None:
        return  # the package itself and __main__ stand above all
    for package, line in imported(file):
        assert ORDER.index(package) <= ORDER.index(place), f"{file.name}:{line}: {place} may not import from {package}"


def files_imported(file):
    """Files of contextwise that a file imports, anywhere in it, under ``TYPE_CHECKING`` too."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("contextwise"):
            folder = SOURCE.parent.joinpath(*node.module.split("."))
            candidates = [folder / f"{alias.name}.py" for alias in node.names]
            candidates += [folder / alias.name / "__init__.py" for alias in node.names]
            found = [path for path in candidates if path.exists()]
            yield from found or [folder.with_suffix(".py"), folder / "__init__.py"]


def test_no_files_import_each_other():
    graph = {file: {path for path in files_imported(file) if path in FILES} - {file} for file in FILES}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the files


def test_every_package_has_its_place():
    folders = {path.name for path in SOURCE.iterdir() if path.is_dir()}
    assert folders - {"__pycache__", RECIPES.name} <= set(ORDER)
    assert len(FILES) > 10


def test_the_check_would_notice(tmp_path):
    wrong = tmp_path / "wrong.py"
    wrong.write_text("def f():\n    from contextwise.cli import main\n")
    assert list(imported(wrong)) == [("cli", 2)]
