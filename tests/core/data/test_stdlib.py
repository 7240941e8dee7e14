"""The embedded corpus."""

import ast

from contextwise.data.sources.stdlib import StandardLibrary, docstring_summary, stdlib_files


def test_only_modules_of_the_library() -> None:
    documents = {document.metadata["module"]: document for document in StandardLibrary().records("text")}
    assert list(documents) == sorted(documents)
    assert len(documents) > 400
    assert {"json", "json.decoder", "asyncio.events", "argparse"} <= documents.keys()
    assert documents["json.decoder"].metadata["package"] == "json"
    assert documents["json.decoder"].metadata["docstring"] == "Implementation of JSONDecoder"
    parts = {part for module in documents for part in module.split(".")}
    assert not parts & {"test", "tests", "idle_test", "site-packages", "pip", "pytest"}
    assert not any(part.startswith("_sysconfigdata") for part in parts)


def test_summary_is_the_first_line_that_python_sees() -> None:
    compared = 0
    for module, path in stdlib_files()[::7]:
        source = path.read_bytes().decode("utf-8", errors="replace")
        try:
            docstring = ast.get_docstring(ast.parse(source))
        except SyntaxError:
            continue
        first = docstring.strip().splitlines()[0].strip() if docstring and docstring.strip() else ""
        assert docstring_summary(source).replace("\\", "") == first.replace("\\", ""), module
        compared += 1
    assert compared > 60


def test_summary_of_unusual_beginnings() -> None:
    assert docstring_summary("#!/usr/bin/python\n# -*- coding: utf-8 -*-\n\nr'''\n  One.\nTwo'''\n") == "One."
    assert docstring_summary('"""It\'s "quoted" here."""\n') == 'It\'s "quoted" here.'
    assert docstring_summary('"""\\\nContinued.\n"""\n') == "Continued."
    assert docstring_summary("import os\n'''no docstring'''\n") == ""
    assert docstring_summary('""" """\n') == ""
