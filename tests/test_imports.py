"""One way for the data: a core whose packages import only to the left, and three packages that stand on it.

A string that names a module is an import. ``outward_tests.txt`` lists tests of the core, or modules that these import, which
name what stands on the core. The list may only become shorter.
"""

import ast
import functools
import importlib
import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from processes import Program

SOURCE = Path(__file__).parents[1] / "src"
CORE = SOURCE / "contextwise"
TESTS = Path(__file__).parent
ORDER = [
    "base",
    "data",
    "objectives",
    "models",
    "training",
    "evaluation",
    "comparison",
    "decisions",
    "experiments",
    "reports",
    "cli",
]
PLACED_IN = {
    "testing": "evaluation",
    "stats": "base",
    "settings": "base",
    "measures": "evaluation",
    "runset": "experiments",
    "report": "reports",
}  # public modules at the top, and the package whose imports they may use
PUBLIC = ["", ".data", ".measures", ".models", ".objectives", ".report", ".runset", ".settings", ".stats", ".training"]
"""Modules of the core for other packages; ``inner_names.txt`` lists what our own take from elsewhere in it."""
STANDS_ON = {
    "contextwise": [],
    "contextwise_plan": ["contextwise"],
    "contextwise_evals": ["contextwise"],
    "contextwise_papers": ["contextwise", "contextwise_plan", "contextwise_evals"],
}
RECIPES = CORE / "recipes"  # no package: data, and models that recipes name as users name theirs
FILES = sorted(file for name in STANDS_ON for file in (SOURCE / name).rglob("*.py") if RECIPES not in file.parents)
OUTWARD = Path(__file__).with_name("outward_tests.txt")
INNER = Path(__file__).with_name("inner_names.txt")
MODULE = re.compile(r"(contextwise(?:_[a-z]+)?)((?:\.\w+)*)(?::\w+)?(?:\[\])?")


@functools.cache
def modules_named(file):
    """Modules of these packages that a file names: in imports anywhere in it, and in strings, as for ``importlib``."""
    return list(_modules_named(file))


def _modules_named(file):
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names if MODULE.fullmatch(alias.name))
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: relative imports hide the package they cross"
            if MODULE.fullmatch(node.module or ""):
                yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "." in node.value:
            named = MODULE.fullmatch(node.value)
            yield from [(named[1] + named[2], node.lineno)] if named else []


def outward_of_tests():
    """Pairs ``FILE PACKAGE`` of tests of the core, and of modules that they import, which name what stands on it."""
    known = {file.stem: file for file in TESTS.rglob("*.py") if file.name != "conftest.py"}
    files = [TESTS / "conftest.py", *(TESTS / "core").rglob("*.py")]
    for file in files:  # which grows
        tree = ast.walk(ast.parse(file.read_text()))
        imported = [known[node.module] for node in tree if isinstance(node, ast.ImportFrom) and node.module in known]
        files.extend(module for module in imported if module not in files)
        named = {module.split(".")[0] for module, _ in modules_named(file)}
        yield from (f"{file.relative_to(TESTS.parent)} {package}" for package in named - {CORE.name})


def outward_of_sources(files):
    """Pairs ``FILE MODULE`` of files that name a module of a package that they do not stand on, or that lies to their right."""
    for file in files:
        own, *inside = file.relative_to(SOURCE).parts
        place = inside[0] if len(inside) > 1 else PLACED_IN.get(file.stem)
        for module, _ in modules_named(file):
            package, part = module.split(".")[0], _package_of(module)
            if package != own:
                wrong = package not in STANDS_ON[own]
            else:
                wrong = own == CORE.name and {place, part} <= set(ORDER) and ORDER.index(part) > ORDER.index(place)
            if wrong:
                yield f"{file.relative_to(SOURCE)} {'.'.join(_module_file(module))}"


def _module_file(module):
    """The parts of a module's name, without those of a name in it."""
    parts = module.split(".")
    while parts and not (SOURCE.joinpath(*parts).is_dir() or SOURCE.joinpath(*parts).with_suffix(".py").is_file()):
        parts = parts[:-1]
    return parts


def test_no_import_goes_the_wrong_way():
    assert sorted(outward_of_sources(FILES)) == []


def test_tests_of_the_core_that_name_a_neighbour_only_become_fewer():
    assert sorted(set(outward_of_tests())) == OUTWARD.read_text().splitlines()


def test_public_modules_have_few_names_that_exist():
    for name in PUBLIC:
        module = importlib.import_module(f"{CORE.name}{name}")
        assert 1 <= len(module.__all__) <= 15
        assert all(hasattr(module, each) for each in module.__all__)


def test_our_other_packages_have_the_names_that_they_say():
    for package in filter(None, STANDS_ON):
        module = importlib.import_module(package)
        assert all(hasattr(module, each) for each in getattr(module, "__all__", ()))


def test_names_from_inside_the_core_only_become_fewer():
    """Names that our packages import from the core, beside those of its public modules, which are all that a stranger has."""
    public = {f"{CORE.name}{name}" for name in PUBLIC}
    taken = set()
    for file in FILES:
        if CORE not in file.parents:
            imports = (node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ImportFrom))
            for node in imports:
                if node.module.split(".")[0] != CORE.name:
                    continue
                names = {alias.name for alias in node.names}
                if node.module in public:
                    names -= {*importlib.import_module(node.module).__all__}
                taken |= {f"{node.module} {name}" for name in names}
    assert sorted(taken) == INNER.read_text().splitlines()


def _package_of(module):
    """The package of the core that a module lies in; None for the core itself."""
    parts = module.split(".")
    return PLACED_IN.get(parts[1], parts[1]) if len(parts) > 1 else None


def files_imported(file):
    """Files of these packages that a file imports, anywhere in it, under ``TYPE_CHECKING`` too."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("contextwise"):
            folder = SOURCE.joinpath(*node.module.split("."))
            candidates = [folder / f"{alias.name}.py" for alias in node.names]
            candidates += [folder / alias.name / "__init__.py" for alias in node.names]
            found = [path for path in candidates if path.exists()]
            yield from found or [folder.with_suffix(".py"), folder / "__init__.py"]


def test_no_files_import_each_other():
    graph = {file: {path for path in files_imported(file) if path in FILES} - {file} for file in FILES}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the files


def test_every_package_has_its_place():
    folders = {path.name for path in CORE.iterdir() if path.is_dir()}
    assert folders - {"__pycache__", RECIPES.name} == set(ORDER)
    assert {path.name for path in SOURCE.iterdir() if (path / "__init__.py").is_file()} == set(STANDS_ON)
    assert len(FILES) > 10


def test_the_check_would_notice(tmp_path):
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        'def f():\n    from contextwise.cli import main\n    return __import__("contextwise_papers.item")\n'
    )
    assert [module for module, _ in modules_named(wrong)] == ["contextwise.cli.main", "contextwise_papers.item"]


def test_what_processes_share_is_imported_before_they_are_forked():
    """Importing torch, transformers and the trainer takes seconds of each process otherwise."""
    shared = ("preloaded", "torch", "transformers.trainer", "contextwise.training.trainer", "contextwise.cli.common")
    output, errors = Program(f"import sys; print([name for name in {shared} if name not in sys.modules])").communicate()
    assert output == "[]\n", errors


def test_an_error_of_a_module_is_not_taken_for_a_missing_name(tmp_path, monkeypatch):
    """Python takes an AttributeError of a module's ``__getattr__`` for one: ``cannot import name``, without the reason."""
    (tmp_path / "lazily.py").write_text(
        "from typing import TYPE_CHECKING\nfrom contextwise.base.lazy import lazy_exports\n"
        "if TYPE_CHECKING:\n    from broken_at_import import value\n"
        "__all__ = ['value']\n__getattr__, __dir__ = lazy_exports(__name__)\n"
    )
    (tmp_path / "broken_at_import.py").write_text("value = int.nothing\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match="value cannot be imported from broken_at_import: .*no attribute 'nothing'"):
        exec("from lazily import value", {})
