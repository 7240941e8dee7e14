"""Hashes of files, folders and JSON values, by which what changed since it was written is found.

A folder is sealed by ``manifest.json``, which holds size and SHA-256 of its files, and a hash of itself.
"""

import hashlib
import json
from collections.abc import Hashable
from functools import lru_cache
from pathlib import Path
from typing import Any

from contextwise.base.errors import CheckpointError, refuse_pipe

MANIFEST = "manifest.json"
SEAL, _SEALED = "sha256", "contextwise-files"


def sha256_file(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes."""
    refuse_pipe(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def content_key(**content: Any) -> str:
    """SHA-256, hexadecimal, of JSON values by name."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def weights_digest(folder: Path) -> str:
    """SHA-256, hexadecimal, of the weights and configurations of a model's folder.

    Of the folders in it those of a sentence-transformers model's modules count (``1_Pooling``), not runs that are stored there.
    """
    names = [f"{part}{name}" for part in ("", "[0-9]_*/") for name in ("*.safetensors", "*.bin", "config.json")]
    files = [file for name in names for file in folder.glob(name)]
    return content_key(**{file.relative_to(folder).as_posix(): sha256_file(file) for file in files})


def sealed(values: dict[str, Any]) -> dict[str, Any]:
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


def seal(folder: Path) -> None:
    """Write ``manifest.json``, the last file of a folder, for all its files except texts (``*.md``)."""
    files = {
        file.relative_to(folder).as_posix(): {"bytes": file.stat().st_size, "sha256": sha256_file(file)}
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.suffix != ".md" and file != folder / MANIFEST
    }
    text = json.dumps(sealed({"format": _SEALED, "files": files}), indent=2)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def sealed_files(folder: Path) -> set[str]:
    """Names of the files and folders of a folder that :func:`seal` has listed."""
    listed = unsealed(json.loads((folder / MANIFEST).read_text(encoding="utf-8")))["files"]
    return {name.split("/")[0] for name in listed}


def damage(folder: Path, *, required: bool = True, unread: str = "", alone: str = "") -> str | None:
    """Describe what changed in a folder since :func:`seal`; None if it is intact.

    Args:
        required: whether a folder without such a manifest counts as damaged; folders of others may have none, or their own.
        unread: pattern of names of files to leave out.
        alone: name of the only file to check.
    """
    file = folder / MANIFEST
    if not file.exists():
        return f"it has no {MANIFEST}" if required else None
    try:
        refuse_pipe(file)
        manifest = json.loads(file.read_text(encoding="utf-8"))
        if not required and not (isinstance(manifest, dict) and manifest.get("format") == _SEALED):
            return None
        for name, entry in unsealed(manifest)["files"].items():
            file = folder / name
            if (unread and file.match(unread)) or alone not in ("", name):
                continue
            if not file.is_file():
                return f"{name} is missing"
            if file.stat().st_size != entry["bytes"] or sha256_file(file) != entry["sha256"]:
                return f"{name} has changed since it was written"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"its {MANIFEST} cannot be read ({error})"
    return None


def check_intact(folder: str | Path, unread: str = "") -> None:
    """Check the folder of a model or tokenizer before it is loaded, if it was sealed; ``unread`` as for :func:`damage`.

    Raises:
        CheckpointError: a file has changed.
    """
    path = Path(folder)
    if not (path / MANIFEST).is_file():
        return
    files = sorted((file.name, file.lstat()) for file in path.iterdir())
    state = tuple((name, about.st_ino, about.st_size, about.st_mtime_ns) for name, about in files)
    if (problem := _known_damage(path, unread, state)) is not None:
        raise CheckpointError(
            f"{folder} is damaged: {problem}; restore it, or, if the change is meant, remove {path / MANIFEST}"
        )


@lru_cache(maxsize=64)
def _known_damage(folder: Path, unread: str, state: Hashable) -> str | None:
    """The damage of a folder whose files are in this state: weights and tokenizer are loaded one after the other."""
    return damage(folder, required=False, unread=unread)
