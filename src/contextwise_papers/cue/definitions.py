"""Classes and functions of the standard library of the running Python, each a document with metadata that is not in its text.

The package (the first part of a module's name) decides the part: ``train``, ``adapt``, ``validation`` or ``test``. So no module
is in two splits, nor the near-copies that modules of a package have (4.0% of the 13-grams of the test documents are in the
training documents where single modules decide, 0.6% where packages do). Of equal texts the first is a document.
"""

import ast
import functools
import platform
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from contextwise.data import Document, Source, readable
from contextwise.data.sources.stdlib import stdlib_files
from contextwise.settings import DataError, did_you_mean

LEAST_TEXT = 256
"""Characters of a definition without its docstring; shorter ones are left out."""
PARTS = {"train": 0.7, "adapt": 0.1, "validation": 0.08, "test": 0.12}
"""The share of the packages that each part has."""


class Definition(NamedTuple):
    """A class or function at the top level of a module; ``docstring``: its first paragraph, in one line, or empty."""

    name: str
    is_class: bool
    docstring: str
    text: str


def definitions(source: str) -> list[Definition]:
    """The top-level classes and functions of a module, with their decorators and without their docstrings.

    Left out: texts below 256 characters, and definitions whose docstring shares a line with code.
    """
    # Not str.splitlines, which also ends a line where Python does not, such as at a form feed.
    lines = source.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    found = []
    for node in ast.parse(source).body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        written, docstring = range(first - 1, node.end_lineno or first), ast.get_docstring(node)
        cut: range = range(0)
        if docstring is not None:
            said = node.body[0]
            begins_line = not lines[said.lineno - 1][: said.col_offset].strip()  # white space is one byte a character
            if not begins_line or (len(node.body) > 1 and node.body[1].lineno == said.end_lineno):
                continue
            cut = range(said.lineno - 1, said.end_lineno or said.lineno)
        text = "\n".join(lines[number] for number in written if number not in cut)
        if len(text) >= LEAST_TEXT:
            summary = " ".join((docstring or "").split("\n\n")[0].split())
            found.append(Definition(node.name, isinstance(node, ast.ClassDef), summary, text))
    return found


@functools.cache  # four parts and a pass that learns a tokenizer read the same modules
def _definitions_in(path: Path) -> list[Definition]:
    with readable(path):
        try:
            return definitions(path.read_bytes().decode("utf-8"))
        except (UnicodeDecodeError, SyntaxError):
            return []


def part_of(module: str) -> str:
    """The part of a module, by a hash of its package's name."""
    package = module.partition(".")[0]
    position = int.from_bytes(blake2b(package.encode(), digest_size=8).digest(), "big") / 2**64
    for part, share in PARTS.items():
        if position < share:
            return part
        position -= share
    return part  # the last one, where rounding has left a rest


class StandardDefinitions(Source):
    """Source of the classes and functions of one part, sorted by module, and by their place in it.

    Metadata: ``module`` (dotted name), ``class`` and ``function`` (the definition's name; one of them is empty), ``docstring``
    (its first paragraph, or empty). The docstring is cut out of the text; the name stands in its first lines.
    """

    kind = "stdlib-definitions"
    parts = tuple(PARTS)

    def __init__(self, part: str) -> None:
        super().__init__(f"{self.kind}:{part}")
        if part not in PARTS:
            hint = did_you_mean(part, PARTS, f"write train={self.kind}:train, or {self.kind} as the only source")
            raise DataError(f"the source {self.name} names no part ({', '.join(PARTS)}) of the library; {hint}")
        self.part = part

    def records(self, text_field: str) -> Iterator[Document]:
        seen = set[str]()
        for module, path in stdlib_files():
            for definition in _definitions_in(path):
                if definition.text in seen:
                    continue
                seen.add(definition.text)
                if part_of(module) == self.part:
                    yield Document(definition.text, _metadata(module, definition))

    def description(self) -> dict[str, Any]:
        return {**super().description(), "python": platform.python_version()}


def _metadata(module: str, definition: Definition) -> dict[str, Any]:
    own, other = ("class", "function") if definition.is_class else ("function", "class")
    return {"module": module, own: definition.name, other: "", "docstring": definition.docstring}
