"""Code of variants: Python files that the user names, identified by the SHA-256 of their bytes.

Code is run from files that were named on this machine only: in a recipe or as a trial's arm. Naming a file keeps a copy of it,
under its SHA-256, in the folder of Hugging Face's cache, where transformers keeps the code that it was told to trust. A run
reads that copy, so that an edit of the file while it trains changes nothing. The folder of a model holds a copy too, for
reading: it is run only if the same bytes were named on this machine.
"""

import ast
import contextlib
import hashlib
import re
import sys
import traceback
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from contextwise.base.config import parse_yaml
from contextwise.base.errors import CheckpointError, ConfigError, did_you_mean, misspelt, one_line
from contextwise.base.files import expanded
from contextwise.base.hashes import cache_folder
from contextwise.base.progress import say_once

NAMED = re.compile(r"(?P<file>.+\.py):(?P<name>[A-Za-z_]\w*)(?P<options>(,\w+=[^,]*)*)")
"""``path.py:Name``, or with options ``path.py:Name,window=8,weight=0.5``."""
NOT_RUN = re.compile(r"TYPE_CHECKING|__main__")
"""Conditions of code that no variant runs."""
_CODE: dict[str, bytes] = {}
_MODULES: dict[str, ModuleType] = {}


def is_variant(text: Any) -> bool:
    """Whether a text names a variant: ``path.py:Name``, with or without options."""
    return isinstance(text, str) and (NAMED.fullmatch(text) is not None or ".py:" in text or text.endswith(".py"))


def parse_variant(text: str) -> dict[str, Any]:
    """``file``, ``name`` and ``options`` of ``path.py:Name,option=value``; a ConfigError if it has another form."""
    match = NAMED.fullmatch(text)
    if match is None:
        raise ConfigError(f"{text!r} names no variant; write path.py:ClassName, or path.py:ClassName,option=value")
    pairs = (pair.partition("=") for pair in match["options"].split(",")[1:])
    options = {key: parse_yaml(value) for key, _, value in pairs}
    return {"file": match["file"], "name": match["name"], "options": options}


def read_code(file: str | Path) -> bytes:
    """The bytes of a file that a recipe names; a ConfigError if they cannot be read."""
    try:
        return expanded(file).read_bytes()
    except OSError as error:
        fix = f"give the path of a Python file{misspelt(expanded(file))}"
        raise ConfigError(f"the variant's file {file} cannot be read ({error.strerror}); {fix}") from None


def check_name(code: bytes, file: str, name: str) -> None:
    """Raise a ConfigError for a name that occurs nowhere in a file's code, without running it, which takes torch.

    The same for an import of a file or folder beside it, which belongs to no identity of a run.
    """
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError):  # said when it is run
        return
    elsewhere = [each for each in ast.walk(tree) if isinstance(each, ast.If) and NOT_RUN.search(ast.unparse(each.test))]
    left_out = {node for each in elsewhere for node in ast.walk(each)}
    imports = [
        each for each in ast.walk(tree) if isinstance(each, ast.Import | ast.ImportFrom) and each not in left_out
    ]
    for module in {getattr(node, "module", None) or alias.name for node in imports for alias in node.names}:
        found = PathFinder.find_spec(module.partition(".")[0])
        sources = [] if found is None else found.submodule_search_locations or [found.origin or ""]
        if found is not None and expanded(file).absolute().parent in [Path(each).parent for each in sources]:
            raise ConfigError(
                f"the variant's file {file} imports {found.name}, which lies beside it, and whose changes would not be "
                "noticed; put its code into the file, or into an installed package"
            )
    made_otherwise = r"import\s*\*|globals\(|locals\(|exec\(|__getattr__|__dict__"
    if not re.search(rf"\b{name}\b|{made_otherwise}", code.decode(errors="replace")):
        defined = (each for each in tree.body if isinstance(each, ast.ClassDef | ast.FunctionDef))
        raise unknown_name(file, name, [each.name for each in defined])


def unknown_name(file: str, name: str, known: list[str]) -> ConfigError:
    """The error for a name that is none of the classes and functions of a file."""
    if not known:
        return ConfigError(f"the file {file} defines no class and no function; define {name!r} there")
    return ConfigError(f"the file {file} has no class and no function {name!r}; {did_you_mean(name, known)}")


def digest(code: bytes) -> str:
    return hashlib.sha256(code).hexdigest()


def name_code(file: str | Path, sha256: str) -> None:
    """Keep the code of a file that the user named, so that it may be run; a note if the file has changed since it was named."""
    if _known(sha256) is not None:
        with contextlib.suppress(OSError):
            if digest(expanded(file).read_bytes()) != sha256:
                say_once(f"note: {file} has changed since it was named: the code of then is used, not that of the file")
        return
    code = read_code(file)
    if digest(code) != sha256:
        raise ConfigError(
            f"the variant's file {file} has changed since it was named (its SHA-256 begins with {digest(code)[:8]}, not "
            f"{sha256[:8]}); restore it, or train the new one under another name"
        )
    _CODE[sha256] = code
    with contextlib.suppress(OSError):  # a home that cannot be written to: this process alone knows the code
        _kept(sha256).parent.mkdir(parents=True, exist_ok=True)
        _kept(sha256).write_bytes(code)


def _kept(sha256: str) -> Path:
    return cache_folder("variants") / f"{sha256}.py"


def _known(sha256: str) -> bytes | None:
    """The code with this SHA-256 if it was named on this machine."""
    if sha256 not in _CODE and _kept(sha256).is_file() and digest(code := _kept(sha256).read_bytes()) == sha256:
        _CODE[sha256] = code
    return _CODE.get(sha256)


def known_code(sha256: str, file: str) -> bytes:
    """The code with this SHA-256; CheckpointError, which names ``file``, if it was never named on this machine."""
    code = _known(sha256)
    if code is None:
        raise CheckpointError(
            f"the model needs its own code, {file}, which was never named on this machine and is not run unasked; read the "
            "copy in the model's folder, and name that in a recipe (model.variant) if you trust it"
        )
    return code


def run_code(sha256: str, file: str) -> ModuleType:
    """The module of a variant's code, which must have been named on this machine; it is run once in a process."""
    if sha256 not in _MODULES:
        module = ModuleType(f"contextwise_variant_{sha256[:16]}")
        module.__file__ = file
        code = known_code(sha256, file)
        sys.modules[module.__name__] = module  # classes look up their module
        try:
            exec(compile(code, file, "exec"), module.__dict__)
        except (Exception, SystemExit) as error:
            del sys.modules[module.__name__]
            raise ConfigError(f"the variant's file {file} cannot be run: {reason(error, file)}") from error
        _MODULES[sha256] = module
    return _MODULES[sha256]


def reason(error: BaseException, file: str) -> str:
    """Class and message of an error of a variant's code, and the last line of its file that led to it."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    where = f" ({Path(file).name}, line {lines[-1]})" if lines else ""
    return f"{type(error).__name__}: {one_line(error)}{where}"
