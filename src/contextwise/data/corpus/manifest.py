"""Manifest of a prepared corpus (``manifest.json``): its contents, with a hash of every file and of the manifest itself."""

import hashlib
import json
from importlib import metadata
from pathlib import Path
from typing import Any

from contextwise.base.errors import DataError
from contextwise.base.files import read_json, sha256_file, write_json

FILE = "manifest.json"
FORMAT = "contextwise-corpus"
VERSION = 1
_AGAIN = "prepare the corpus again, or fetch it again"


def package_version() -> str:
    """Installed version of Contextwise."""
    return metadata.version("contextwise")


def write_manifest(folder: Path, content: dict[str, Any]) -> None:
    """Write the manifest: ``content``, the format, its version and a digest of the manifest."""
    manifest = {
        "format": FORMAT,
        "format_version": VERSION,
        "created_with": f"contextwise {package_version()}",
        **content,
    }
    write_json(folder / FILE, {**manifest, "digest": _digest(manifest)}, "the manifest")


def is_corpus(folder: Path) -> bool:
    """Whether a folder has the manifest of a prepared corpus; the other files are not checked."""
    try:
        content = json.loads((folder / FILE).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and content.get("format") == FORMAT


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read and check a manifest.

    Raises:
        DataError: the manifest is missing, damaged or changed, or its format version is not supported.
    """
    path = folder / FILE
    manifest = read_json(path, "the corpus's manifest")
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise DataError(
            f"{path} is not the manifest of a corpus; give a folder that `contextwise prepare` wrote"
        )
    if manifest.get("format_version") != VERSION:
        raise DataError(
            f"{path} has format version {manifest.get('format_version')!r}, but this Contextwise reads "
            f"version {VERSION}; prepare the corpus again with it"
        )
    digest = manifest.pop("digest", None)
    if digest != _digest(manifest):
        raise DataError(f"{path} was changed after the corpus was prepared; {_AGAIN}")
    return {**manifest, "digest": digest}


def check_files(folder: Path, files: dict[str, dict[str, Any]], hashes: bool = False) -> None:
    """Check the existence and size of every file and, with ``hashes``, its content.

    Raises:
        DataError: a file is missing or differs; the message names it.
    """
    for name, entry in files.items():
        path = folder / name
        if not path.is_file():
            raise DataError(f"the corpus {folder} is incomplete: {name} is missing; {_AGAIN}")
        if path.stat().st_size != entry["bytes"]:
            raise DataError(
                f"the corpus {folder} is damaged: {name} has {path.stat().st_size:,} bytes, "
                f"its manifest says {entry['bytes']:,}; {_AGAIN}"
            )
        if hashes and sha256_file(path) != entry["sha256"]:
            raise DataError(
                f"the corpus {folder} is damaged: the bytes of {name} changed since it was prepared; {_AGAIN}"
            )


def _digest(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
