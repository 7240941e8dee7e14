"""Source code of the standard library of the running Python, as a source of texts."""

import os
import platform
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from contextwise.base.errors import DataError
from contextwise.data.input_files import readable
from contextwise.data.sources.source import Document, Source

SMALLEST_FILE = 256
_LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
# A leading string literal, after nothing but comments and blank lines. (ast.parse on every module would cost
# as much time as tokenizing it.)
_DOCSTRING = re.compile(r"(?:[ \t]*(?:#[^\n]*)?\r?\n)*[rRuU]?(\"\"\"|'''|\"|')(.*?)(?<!\\)\1", re.DOTALL)


def stdlib_files() -> list[tuple[str, Path]]:
    """List (module name, file) of every module of the standard library, sorted by name.

    Excluded: tests and their data, installed packages, files below 256 bytes, and the build's settings
    (``_sysconfigdata``), which name folders of the machine.
    """
    root = Path(sysconfig.get_path("stdlib"))
    modules = []
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name.isidentifier() and name not in _LEFT_OUT]
        for path in (Path(folder, name) for name in files if name.endswith(".py")):
            parts = path.relative_to(root).with_suffix("").parts
            if not path.stem.isidentifier() or path.stem in _LEFT_OUT or path.stem.startswith("_sysconfigdata"):
                continue
            if path.stat().st_size >= SMALLEST_FILE:
                modules.append((".".join(parts).removesuffix(".__init__"), path))
    if not modules:
        raise DataError(
            f"this Python has no source of its standard library in {root}; install it, or give another source"
        )
    return sorted(modules)


def docstring_summary(source: str) -> str:
    """First line of a module's docstring, or an empty string."""
    match = _DOCSTRING.match(source)
    lines = match.group(2).replace("\\\n", "").strip().splitlines() if match else []
    return lines[0].strip() if lines else ""


class StandardLibrary(Source):
    """Source of the modules of the standard library in UTF-8, sorted by name.

    Metadata: ``module`` (dotted name), ``package`` (its first part), ``docstring`` (first line, or empty).
    """

    kind = "stdlib"

    def __init__(self) -> None:
        super().__init__("stdlib")

    def records(self, text_field: str) -> Iterator[Document]:
        for module, path in stdlib_files():
            try:
                with readable(path):
                    text = path.read_bytes().decode("utf-8")
            except UnicodeDecodeError:
                continue
            package, docstring = module.partition(".")[0], docstring_summary(text)
            yield Document(text, {"module": module, "package": package, "docstring": docstring})

    def description(self) -> dict[str, Any]:
        return {**super().description(), "python": platform.python_version()}
