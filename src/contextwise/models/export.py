"""Export a model: its folder, optionally with its code.

transformers loads code from a model's folder if ``config.json`` names it (``auto_map``), and follows relative imports
between its files. So for ``trust_remote_code=True`` where Contextwise is not installed, the modules that the model class
needs are copied, flat, next to the weights, with relative imports of each other. A variant needs Contextwise.
"""

import ast
import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

from transformers import AutoModel, AutoModelForCausalLM, PreTrainedModel

from contextwise.base.errors import CheckpointError, ConfigError
from contextwise.base.files import atomic_directory, check_new, output_folder, read_json, without_folders
from contextwise.base.hashes import MANIFEST, check_intact, seal
from contextwise.base.plugins import is_ours
from contextwise.base.progress import say
from contextwise.base.trust import trust
from contextwise.models.loading import (
    generates,
    kind_of,
    load_as,
    load_config,
    load_generating_model,
    load_without_heads,
    model_folder,
)

SHARED = ("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja", "*.md", "LICENSE*", "NOTICE*")
"""Files of a model that an export holds: no code, nothing that would have to be unpickled."""
CONFIGS = ("config.json", "generation_config.json", "tokenizer_config.json")


def export_model_folder(source: str | Path, out: Path, standalone: bool = False, card: str | None = None) -> Path:
    """Copy a model's folder to the new folder ``out``: weights, configuration, tokenizer and texts.

    Other files, such as Python code and pickles of a stranger's model, stay behind; so do folders of this machine.
    ``standalone`` adds the code of the model's class, for ``trust_remote_code=True``; ``card`` is the text of ``README.md``.
    """
    folder = Path(model_folder(source))
    if not folder.is_dir():
        raise CheckpointError(f"{source} is not a folder on this machine; download it first")
    check_intact(folder)
    config = read_json(folder / "config.json", "the model's configuration")
    _check_weights(folder, config)
    variant = config.get("file") if config.get("model_type") == "variant" else None
    check_new(out)
    out = output_folder(out)
    files = {} if card is None else {"README.md": card}
    if standalone:
        classes = _classes(source)
        files |= _code([kind.__module__ for kind in classes.values()])
        auto_map = {auto: f"{_flat(kind.__module__)}.{kind.__name__}" for auto, kind in classes.items()}
        files["config.json"] = _json(_shared(config) | {"auto_map": auto_map})
    with atomic_directory(out, "the exported model") as target:
        for file in sorted(folder.iterdir()):
            if file.name in (*files, MANIFEST) or not file.is_file():
                continue
            if not (_may_be_shared(file, folder) or (variant and file.name == Path(variant).name)):
                say(f"note: {file.name} is left out: an export holds weights, configuration, tokenizer and texts")
                continue
            content = read_json(file, "the configuration") if file.name in CONFIGS else {}
            if (shared := _shared(content)) != content:
                files[file.name] = _json(shared)
            else:
                shutil.copyfile(file, target / file.name)
        for name, text in files.items():
            (target / name).write_bytes(text.encode())
        seal(target)
    return out


def _check_weights(folder: Path, config: dict[str, Any]) -> None:
    """Load a model, which checks that its folder holds all weights of its configuration, or raises a CheckpointError."""
    if not any(folder.glob("*.safetensors")):
        pickles = sorted(file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in folder.glob(pattern))
        fix = "give the folder of a whole model, or export the run again"
        if pickles:
            fix = (
                f"{pickles[0]} is a pickle, which may run code: load it where you trust it, and save it as safetensors"
            )
        raise CheckpointError(f"{folder} holds no weights to export: there is no file *.safetensors; {fix}")
    # Code that comes with a stranger's model stays unread.
    if not trust.remote_code and "auto_map" in config:
        return
    kind = kind_of(loaded := load_config(folder))
    if kind == "encoder":
        load_without_heads(AutoModel, "model", folder, device="cpu")  # it may have been saved with others
    elif kind == "encoder-decoder" or generates(loaded):
        load_generating_model(folder, device="cpu")
    else:
        load_as(AutoModel, "model", folder, device="cpu")


def _may_be_shared(file: Path, folder: Path) -> bool:
    """Whether a file is one of a model, and no link out of its folder (the Hub's cache links to its own ``blobs``)."""
    homes = folder.resolve(), folder.resolve().parent.parent / "blobs"
    return any(file.match(pattern) for pattern in SHARED) and file.resolve().parent in homes


def _shared(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration without folders of this machine, and without the code that a stranger's model names."""
    own = {"_name_or_path", "name_or_path", "auto_map"}
    return without_folders({key: value for key, value in config.items() if key not in own})


def _json(content: Any) -> str:
    return json.dumps(content, indent=2) + "\n"


def _classes(source: str | Path) -> dict[str, type]:
    """The classes of a model of this package, by the Auto class that loads each."""
    config = load_config(source)
    if config.model_type == "variant":
        raise ConfigError(
            f"{source} is a model of {config.file}, which transformers cannot load without Contextwise; leave out `standalone`"
        )
    model = AutoModelForCausalLM._model_mapping.get(type(config), PreTrainedModel)
    if not is_ours(model.__module__) and not model.__module__.startswith("transformers."):
        raise ConfigError(
            f"{source} is a model of the package {model.__module__.split('.')[0]}, whose code is not copied; leave out "
            "`standalone`, and import that package where the model is loaded"
        )
    if not is_ours(model.__module__):
        raise ConfigError(
            f"{source} is a stock {config.model_type}, which loads everywhere without extra code; leave out `standalone`"
        )
    inner: Any = getattr(config, "backbone_config", None)
    if is_ours(type(inner).__module__):
        raise ConfigError(
            f"{source} is a {config.model_type} on a {inner.model_type}, which transformers cannot build without "
            "Contextwise; leave out `standalone`"
        )
    return {"AutoConfig": type(config), "AutoModelForCausalLM": model}


def _code(modules: list[str]) -> dict[str, str]:
    """File name -> text of these modules and every module of this package that they import, with relative imports.

    No function of theirs may have a statement that imports one: transformers refuses code whose imports are not installed.
    """
    files: dict[str, str] = {}
    pending = list(modules)
    while pending:
        module = pending.pop()
        if (file := f"{_flat(module)}.py") in files:
            continue
        text = _source(module)
        lines = text.splitlines(keepends=True)
        imports = [
            node for node in ast.parse(text).body if isinstance(node, ast.ImportFrom) and is_ours(str(node.module))
        ]
        for node in reversed(imports):
            homes, names = _homes(str(node.module)), dict[str, list[str]]()
            for alias in node.names:
                names.setdefault(homes.get(alias.name, str(node.module)), []).append(ast.unparse(alias))
            lines[node.lineno - 1 : node.end_lineno] = [
                f"from .{_flat(home)} import {', '.join(of)}\n" for home, of in names.items()
            ]
            pending += names
        files[file] = "".join(lines)
    return files


def _source(module: str) -> str:
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).read_text(encoding="utf-8")


def _homes(module: str) -> dict[str, str]:
    """Names that a module of this package has from another one, as a public module all of its names; and from which."""
    nodes = [node for node in ast.walk(ast.parse(_source(module))) if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in nodes if is_ours(str(node.module)) for alias in node.names}


def _flat(module: str) -> str:
    return module.replace(".", "_")
