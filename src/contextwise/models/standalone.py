"""Export a model with its code, to load it with ``trust_remote_code=True`` where Contextwise is not installed.

transformers loads code from a model's folder if ``config.json`` names it (``auto_map``), and follows relative imports
between its files. So the modules that the model class needs are copied, flat, next to the weights, with relative imports
of each other.
"""

import ast
import importlib.util
import json
import shutil
from pathlib import Path

from transformers import PreTrainedModel

from contextwise.base.errors import CheckpointError, ConfigError
from contextwise.base.files import atomic_directory, read_json
from contextwise.models.loading import load_config, model_class, model_folder

PACKAGE = "contextwise"


def export_model_folder(
    source: str | Path, out: Path, standalone: bool = False, card: str | None = None
) -> Path:
    """Copy a model's folder, optionally with its code.

    Args:
        source: a finished run, or a model's folder.
        out: the folder to write; it must not exist yet.
        standalone: add the code of the model's class, for ``trust_remote_code=True``.
        card: text of ``README.md``.

    Raises:
        CheckpointError: ``source`` contains no model.
        ConfigError: ``out`` exists already, or ``standalone`` is set for a stock model.
    """
    folder = Path(model_folder(source))
    if not folder.is_dir():
        raise CheckpointError(f"{source} is not a folder on this machine; download it first")
    if out.exists():
        raise ConfigError(f"{out} already exists; choose another folder with --out")
    code = _code(source) if standalone else {}
    with atomic_directory(out, "the exported model") as target:
        for file in sorted(folder.iterdir()):
            if file.is_file():
                shutil.copyfile(file, target / file.name)
        for name, text in code.items():
            (target / name).write_text(text, encoding="utf-8")
        if code:
            config = read_json(target / "config.json", "the model's configuration")
            config["auto_map"] = _auto_map(source)
            (target / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        if card is not None:
            (target / "README.md").write_text(card, encoding="utf-8")
    return out


def _classes(source: str | Path) -> tuple[type, type[PreTrainedModel]]:
    """Configuration and model class of a model of this package.

    Raises:
        ConfigError: it is a stock transformers model.
    """
    config = load_config(source)
    model = model_class(config)
    if not model.__module__.startswith(f"{PACKAGE}."):
        raise ConfigError(
            f"{source} is a stock {config.model_type}, which loads everywhere without extra code; remove --standalone"
        )
    return type(config), model


def _auto_map(source: str | Path) -> dict[str, str]:
    config, model = _classes(source)
    return {
        "AutoConfig": f"{_flat(config.__module__)}.{config.__name__}",
        "AutoModelForCausalLM": f"{_flat(model.__module__)}.{model.__name__}",
    }


def _code(source: str | Path) -> dict[str, str]:
    """File name -> text of every module that the two classes need."""
    files: dict[str, str] = {}
    pending = [kind.__module__ for kind in _classes(source)]
    while pending:
        module = pending.pop()
        file = f"{_flat(module)}.py"
        if file not in files:
            files[file], needed = _with_relative_imports(module)
            pending += needed
    return files


def _with_relative_imports(module: str) -> tuple[str, list[str]]:
    """A module's text with ``from contextwise.a.b import c`` as ``from .contextwise_a_b import c``, and those modules."""
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    text = Path(spec.origin).read_text(encoding="utf-8")
    lines = text.split("\n")
    needed = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE:
            name = str(node.module)
            lines[node.lineno - 1] = lines[node.lineno - 1].replace(f"from {name} ", f"from .{_flat(name)} ")
            needed.append(name)
    return "\n".join(lines), needed


def _flat(module: str) -> str:
    return module.replace(".", "_")
