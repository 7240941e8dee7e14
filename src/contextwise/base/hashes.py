"""Hashes of files, folders and JSON values, by which what changed since it was written is found.

A folder is sealed by ``manifest.json``, which holds size and SHA-256 of its files, and a hash of itself.
"""

import contextlib
import hashlib
import json
from collections.abc import Hashable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from contextwise.base.errors import CheckpointError
from contextwise.base.schemas import parse_json

MANIFEST = "manifest.json"
SEAL, _SEALED = "sha256", "contextwise-files"
MODEL_FILES: tuple[str, ...] = ("*.safetensors", "*.safetensors.index.json", "config.json", "*.py")
MODEL_FILES += ("generation_config.json", "tokenizer*", "special_tokens_map.json", "added_tokens.json")
MODEL_FILES += ("chat_template*", "vocab.*", "merges.txt", "*.model", "adapter_config.json")
MODEL_FILES += ("modules.json", "[0-9]_*/*.safetensors", "[0-9]_*/config.json")  # of sentence-transformers
"""Files of a model folder that determine the model's outputs and its tokens."""


def sha256_file(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def content_key(**content: Any) -> str:
    """Hash named JSON values: SHA-256, hexadecimal."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def cache_folder(kind: str) -> Path:
    """Our folder for ``kind`` in Hugging Face's cache of this user."""
    from huggingface_hub.constants import HF_HOME  # refuses variables of the environment, which a command explains

    return Path(HF_HOME) / "contextwise" / kind


def content_digest(path: Path, files: Iterable[Path] | None = None) -> str:
    """SHA-256, hexadecimal, of a file's bytes; of a folder, of the names and bytes of ``files`` in it, by default all."""
    if not path.is_dir():
        return sha256_file(path)
    chosen = sorted(path.rglob("*") if files is None else files)
    hashes = {file.relative_to(path).as_posix(): sha256_file(file) for file in chosen if file.is_file()}
    return content_key(files=hashes)


def model_files(folder: Path) -> list[Path]:
    """The files of a model's folder that determine its outputs and its tokens."""
    files = {file for pattern in MODEL_FILES for file in folder.glob(pattern)}
    for index in folder.glob("*.safetensors.index.json"):  # shards may lie in folders below
        # transformers says what is wrong with an index
        with contextlib.suppress(OSError, ValueError, AttributeError, KeyError, TypeError):
            shards = parse_json(index.read_text(encoding="utf-8"))["weight_map"].values()
            files |= {folder / name for name in shards if isinstance(name, str)}
    return sorted(file for file in files if file.is_file())


def model_digest(folder: Path) -> str:
    """SHA-256, hexadecimal, of a model's weights, configurations and tokenizer: names and bytes of its files."""
    return content_digest(folder, model_files(folder))


def sealed(values: Mapping[str, Any]) -> dict[str, Any]:
    """JSON values with their hash under ``sha256``."""
    return {**values, SEAL: content_key(**values)}


def unsealed(values: Any) -> dict[str, Any]:
    """The values of :func:`sealed` without their hash; a ValueError if they changed since."""
    if not isinstance(values, dict) or SEAL not in values:
        raise ValueError("it has no hash")
    content = {name: value for name, value in values.items() if name != SEAL}
    if values[SEAL] != content_key(**content):
        raise ValueError("it has changed since it was written")
    return content


def listed_files(folder: Path, files: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """Name in the folder -> bytes and SHA-256 of each file, for a manifest."""
    return {
        file.relative_to(folder).as_posix(): {"bytes": file.stat().st_size, "sha256": sha256_file(file)}
        for file in sorted(files)
        if file.is_file()
    }


def difference(folder: Path, listed: Mapping[str, Mapping[str, Any]], contents: bool = True) -> str | None:
    """The first file that is not as :func:`listed_files` has it, as a clause, else None; without ``contents``: by size."""
    for name, entry in listed.items():
        file = folder / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != entry["bytes"] or (contents and sha256_file(file) != entry["sha256"]):
            return f"{name} has changed since it was written"
    return None


def seal(folder: Path) -> None:
    """Write ``manifest.json``, the last file of a folder, for all its files except texts (``*.md``)."""
    files = [file for file in folder.rglob("*") if file.suffix != ".md" and file != folder / MANIFEST]
    text = json.dumps(sealed({"format": _SEALED, "files": listed_files(folder, files)}), indent=2)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def sealed_files(folder: Path) -> set[str]:
    """Names of the files and folders of a folder that :func:`seal` has listed."""
    listed = unsealed(parse_json((folder / MANIFEST).read_text(encoding="utf-8")))["files"]
    return {name.split("/")[0] for name in listed}


def damage(folder: Path, *, required: bool = True, unread: str = "", alone: str = "") -> str | None:
    """Describe what changed in a folder since :func:`seal`; None if it is intact.

    Unless it is ``required``, a manifest may be missing or that of another program. ``unread`` is a pattern of files to leave
    out, ``alone`` the only file to check.
    """
    if not (folder / MANIFEST).exists():
        return f"it has no {MANIFEST}" if required else None
    try:
        manifest = parse_json((folder / MANIFEST).read_text(encoding="utf-8"))
        if not required and not (isinstance(manifest, dict) and manifest.get("format") == _SEALED):
            return None
        files = unsealed(manifest)["files"].items()
        wanted = {name: entry for name, entry in files if alone in ("", name)}
        read = {name: entry for name, entry in wanted.items() if not (unread and Path(name).match(unread))}
        return difference(folder, read)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"its {MANIFEST}, or a file that it lists, cannot be read ({error})"


def check_intact(folder: str | Path, unread: str = "") -> None:
    """Check the folder of a model or tokenizer before it is loaded, if it was sealed; a CheckpointError if it has changed."""
    path = Path(folder)
    if not (path / MANIFEST).is_file():
        return
    files = sorted((file.name, file.lstat()) for file in path.iterdir())
    state = tuple((name, about.st_ino, about.st_size, about.st_mtime_ns) for name, about in files)
    _check_files(path, unread, state)


@lru_cache(maxsize=64)
def _check_files(folder: Path, unread: str, state: Hashable) -> None:
    """Check a folder whose files are in this state, once if it is intact: weights and tokenizer are loaded in turn."""
    if (problem := damage(folder, required=False, unread=unread)) is not None:
        raise CheckpointError(
            f"{folder} is damaged: {problem}; restore it, or, if the change is meant, remove {folder / MANIFEST}"
        )
