"""Export a model: its folder, optionally with its code.

transformers loads code from a model's folder if ``config.json`` names it (``auto_map``), and follows relative imports
between its files. So for ``trust_remote_code=True`` where Contextwise is not installed, the modules that the model class
needs are copied, flat, next to the weights, with relative imports of each other.
"""

import ast
import importlib.util
import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoModel, AutoModelForCausalLM, PreTrainedModel

from contextwise.base.errors import CheckpointError, ConfigError, one_line
from contextwise.base.files import atomic_directory, check_new, output_folder, read_json, without_folders
from contextwise.base.hashes import MANIFEST, check_intact, seal
from contextwise.base.plugins import is_ours
from contextwise.base.pretrained import without_bars
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
from contextwise.models.spec import meta_model
from contextwise.models.variant.code import known_code, run_code
from contextwise.models.variant.modeling import ties_of, unsaved_values

SHARED = ("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja", "*.md", "LICENSE*", "NOTICE*")
"""Files of a model that an export holds: no code, nothing that would have to be unpickled."""
CONFIGS = ("config.json", "generation_config.json", "tokenizer_config.json")


def export_model_folder(source: str | Path, out: Path, standalone: bool = False, card: str | None = None) -> Path:
    """Copy a model's folder: weights, configuration, tokenizer and texts, optionally with the code of Contextwise.

    Other files, such as Python code and pickles of a stranger's model, stay behind; so do folders of this machine.

    Args:
        source: a finished run, or a model's folder.
        out: the folder to write; it must not exist yet.
        standalone: add the code of the model's class, for ``trust_remote_code=True``.
        card: text of ``README.md``.

    Raises:
        CheckpointError: ``source`` contains no model, or its weights are missing, not finite or of another configuration.
        ConfigError: ``out`` exists already, or ``standalone`` is set for a stock model.
    """
    folder = Path(model_folder(source))
    if not folder.is_dir():
        raise CheckpointError(f"{source} is not a folder on this machine; download it first")
    check_intact(folder)
    _check_weights(folder)
    config = read_json(folder / "config.json", "the model's configuration")
    variant = config.get("file") if config.get("model_type") == "variant" else None
    check_new(out)
    out = output_folder(out)
    files: dict[str, str | bytes] = {} if card is None else {"README.md": card}
    own = None
    if standalone and variant:
        own = _own_model(source)
        files |= _own_code(own, load_config(source))
    elif standalone:
        classes = _classes(source)
        files |= _code([kind.__module__ for kind in classes.values()])
        auto_map = {auto: f"{_flat(kind.__module__)}.{kind.__name__}" for auto, kind in classes.items()}
        files["config.json"] = _json(_shared(config) | {"auto_map": auto_map})
    with atomic_directory(out, "the exported model") as target:
        if own is not None:
            with without_bars():
                own.save_pretrained(target)
        for file in sorted(folder.iterdir()):
            if file.name in (*files, MANIFEST) or not file.is_file() or (target / file.name).exists():
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
            (target / name).write_bytes(text.encode() if isinstance(text, str) else text)
        seal(target)
    return out


def _check_weights(folder: Path) -> None:
    """Check that a model's folder holds all weights of its configuration, and that each is finite.

    Raises:
        CheckpointError: names the file or the weights.
    """
    if not any(folder.glob("*.safetensors")):
        pickles = sorted(file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in folder.glob(pattern))
        fix = "give the folder of a whole model, or export the run again"
        if pickles:
            fix = (
                f"{pickles[0]} is a pickle, which may run code: load it where you trust it, and save it as safetensors"
            )
        raise CheckpointError(f"{folder} holds no weights to export: there is no file *.safetensors; {fix}")
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, "pt") as tensors:
                names = tensors.keys()
                wrong = next((name for name in names if not _finite(tensors.get_tensor(name))), None)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{file} is damaged: {one_line(error)}; download or export it again") from None
        if wrong is not None:
            raise CheckpointError(
                f"the weights {wrong} in {file} hold numbers that are not finite; train or download the model again"
            )
    # Loading compares the weights with the configuration. Code that comes with a stranger's model stays unread.
    if not trust.remote_code and "auto_map" in read_json(folder / "config.json", "the model's configuration"):
        return
    config = load_config(folder)
    if kind_of(config) == "encoder":
        load_without_heads(AutoModel, "model", folder, device="cpu")  # it may have been saved with others
    elif kind_of(config) == "encoder-decoder" or generates(config):
        load_generating_model(folder, device="cpu")
    else:
        load_as(AutoModel, "model", folder, device="cpu")


def _finite(weights: torch.Tensor) -> bool:
    """Whether no weight is infinite or NaN; types of eight bits without these are finite."""
    return not weights.is_floating_point() or not weights.numel() or bool(weights.float().isfinite().all())


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
    model = AutoModelForCausalLM._model_mapping.get(type(config), PreTrainedModel)
    if not is_ours(model.__module__):
        raise ConfigError(
            f"{source} is a stock {config.model_type}, which loads everywhere without extra code; leave out `standalone`"
        )
    return {"AutoConfig": type(config), "AutoModelForCausalLM": model}


def _own_model(source: str | Path) -> Any:
    """The model of a variant's own class, without the variant around it; a ConfigError if it is of no class of the user's."""
    variant: Any = load_generating_model(source, device="cpu")
    own, config = variant.model, variant.config
    if type(own).__module__ != run_code(config.sha256, config.file).__name__:
        raise ConfigError(
            f"{source} is a stock model that a function changed, which transformers cannot load without Contextwise; define a "
            "class, or leave out `standalone`"
        )
    stock = {name for name, _ in meta_model(own.config).named_buffers()}
    if unsaved := unsaved_values(own, stock):
        raise ConfigError(
            f"{source} keeps {unsaved[0][2]} outside of its saved state, which transformers does not compute again; make it a "
            "persistent buffer, or leave out `standalone`"
        )
    try:
        code = known_code(config.sha256, config.file).decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{config.file} is not UTF-8 text, as transformers reads code; save it as UTF-8") from None
    for node in ast.walk(ast.parse(code)):
        names = [str(getattr(node, "module", ""))] if isinstance(node, ast.ImportFrom) else []
        names += [each.name for each in node.names] if isinstance(node, ast.Import) else []
        if ours := [name for name in names if is_ours(name)]:
            raise ConfigError(f"{config.file} imports {ours[0]}, which needs Contextwise; leave out `standalone`")
    own._tied_weights_keys = dict(ties_of(own))
    own.all_tied_weights_keys = dict(own._tied_weights_keys)  # saved once
    if not variant.reads_cache:
        own.generation_config.use_cache = False
    return own


def _own_code(model: Any, variant: Any) -> dict[str, str | bytes]:
    """File name -> text: a variant's file, and a class and a configuration of its own, for which no stock class is taken."""
    name, stock = variant.name, type(model.config)
    stem = re.sub(r"\W", "_", f"variant_{Path(variant.file).stem}")
    text = EXPORTED.format(
        name=name,
        stem=stem,
        stock=stock.__name__,
        module=stock.__module__,
        model_type=f"{model.config.model_type}-{name.lower()}",
        options=_literal(variant.options),
        tied=model._tied_weights_keys,
    )
    auto_map = {"AutoConfig": f"exported_{stem}.{name}Config", "AutoModelForCausalLM": f"exported_{stem}.{name}"}
    about = {"model_type": f"{model.config.model_type}-{name.lower()}", "architectures": [name], "auto_map": auto_map}
    code = known_code(variant.sha256, variant.file)
    config = json.loads(model.config.to_json_string())
    return {f"{stem}.py": code, f"exported_{stem}.py": text, "config.json": _json(_shared(config) | about)}


def _literal(value: Any) -> str:
    """A JSON-like value as Python writes it; ``repr`` of an infinite number is no code."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key!r}: {_literal(each)}' for key, each in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_literal, value))}]"
    return f"float('{value}')" if isinstance(value, float) and not math.isfinite(value) else repr(value)


EXPORTED = '''"""{name} of {stem}.py, with the options that it was trained with."""

import functools

from {module} import {stock}

from .{stem} import {name} as Trained


class {name}Config({stock}):
    model_type = "{model_type}"


class {name}(Trained):
    config_class = {name}Config
    _tied_weights_keys = {tied}

    def __init__(self, config):
        super().__init__(config, **{options})

    @functools.wraps(Trained.forward)
    def forward(self, *args, **kwargs):
        out = super().forward(*args, **kwargs)
        if kwargs.get("use_cache") is False and getattr(out, "past_key_values", None) is not None:
            out.past_key_values = None  # of code that always keeps one
        return out
'''


def _code(modules: list[str]) -> dict[str, str]:
    """File name -> text of these modules and every module of this package that they import, with relative imports.

    What a function imports is not copied: it needs Contextwise. It is imported in a form that transformers, which refuses code
    whose imports are not installed, does not look at.
    """
    files: dict[str, str] = {}
    pending = list(modules)
    while pending:
        module = pending.pop()
        file = f"{_flat(module)}.py"
        if file in files:
            continue
        spec = importlib.util.find_spec(module)
        assert spec is not None and spec.origin is not None
        text = Path(spec.origin).read_text(encoding="utf-8")
        tree, lines = ast.parse(text), text.split("\n")
        for node in ast.walk(tree):
            if not isinstance(node, ast.ImportFrom) or not is_ours(node.module or ""):
                continue
            name, i = str(node.module), node.lineno - 1
            if node in tree.body:
                lines[i] = lines[i].replace(f"from {name} ", f"from .{_flat(name)} ")
                pending.append(name)
            else:
                source, imported = f"__import__({name!r}, fromlist=[''])", node.names
                parts = "; ".join(f"{each.asname or each.name} = {source}.{each.name}" for each in imported)
                lines[i] = lines[i][: node.col_offset] + parts
                for rest in range(node.lineno, node.end_lineno or 0):
                    lines[rest] = ""
        files[file] = "\n".join(lines)
    return files


def _flat(module: str) -> str:
    return module.replace(".", "_")
