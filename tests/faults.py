"""A disk that fails in the middle of a command, and a power failure after which only what was synced is left."""

# ruff: noqa: PTH100, PTH115, PTH118, PTH120
import builtins
import contextlib
import errno
import hashlib
import io
import os
import resource
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import safetensors.torch
import yaml
from safetensors import SafetensorError

from contextwise import cli
from contextwise.base.files import PARTIAL
from small import recipe_values, save_model, small_gpt2, write_documents
from sweeping import sweep_values

POWER_FAILS = 99
"""Exit status of a process in which the power failed."""
COMMANDS = {
    "prepare": "prepare text.jsonl --tokenizer train:300 --out out/corpus",
    "prepare again": "prepare text.jsonl --tokenizer train:300 --out old/corpus --overwrite",
    "train": "train recipe.yaml --out out/run",
    "evaluate": "evaluate model --corpus old/corpus --limit 2 --out out/loss",
    "evaluate again": "evaluate model --corpus old/corpus --limit 2 --out old/loss --overwrite",
    "curve": "curve model --corpus old/corpus --limit 2 --out out/curve",
    "embed": "model embed model lines.txt --out out/v.npy",
    "export": "export model --out out/shared",
    "report": "report old/run --out out/report.html",
    "report again": "report old/run --out old/report.html",
    "compare": "compare old/run model --corpus old/corpus --out out/compared.json --html out/compared.html",
    "trial": "trial trial.yaml --out out/trial",
    "sweep": "plan sweep sweep.yaml --out out/sweep",
    "demo": "demo --quick --out out/demo",
    "reproduce": "reproduce paper/table --recipes recipes --out out/reproduced",
}
"""Commands that write, in the folder of :func:`write_template`."""
_ERRORS = {"fsync": errno.EIO, "rename": errno.EIO}


@contextlib.contextmanager
def no_file_above(size: int) -> Iterator[None]:
    """While this lasts, the system refuses to let any file of this process grow beyond ``size`` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class _File(io.FileIO):
    """A file whose writes are operations of a disk."""

    def __init__(self, disk: "Disk", path: str, mode: str) -> None:
        self.disk = disk
        super().__init__(path, mode)

    def write(self, data: Any, /) -> int:
        self.disk.operation("write", self.name, lambda: super(_File, self).write(bytes(data)[: len(data) // 2]))
        return super().write(data)


class Disk:
    """The operations on files below a folder while the ``with`` block runs: opening to write, writes, fsync, rename, mkdir.

    Writes of libraries in Rust and C++ are one operation for each file; :func:`no_file_above` fails inside them.

    Args:
        fails: number of the operation that fails, from 1; 0: none.
        stays: whether all that take space fail after it too.
        power: what happens at that operation instead; its argument writes the first half of what is written there.
        removals: whether the removals of files and folders are operations too.

    Attributes:
        operations: all, in order.
        synced: inode -> time of change that was synced.
        renamed: (source, target) of the last rename whose folder was not synced.
    """

    def __init__(
        self,
        root: Path,
        fails: int = 0,
        stays: bool = False,
        power: "Callable[[Disk, Callable[[], Any]], None] | None" = None,
        removals: bool = False,
    ) -> None:
        self.root, self.fails, self.stays, self.power = str(root.resolve()), fails, stays, power
        self.removals = removals
        self.operations: list[str] = []
        self.started = time.time_ns()
        self.synced: dict[int, int] = {}
        self.renamed: tuple[str, str] | None = None
        self._open, self._fsync, self._rename, self._mkdir = builtins.open, os.fsync, os.rename, os.mkdir
        self._unlink, self._rmdir = os.unlink, os.rmdir

    def operation(self, kind: str, path: Any, half: Callable[[], Any] = lambda: None) -> None:
        name = os.path.abspath(os.fsdecode(path))
        if not name.startswith(self.root):
            return
        self.operations.append(f"{kind} {name.removeprefix(self.root)}")
        number = len(self.operations)
        later = self.stays and 0 < self.fails < number and kind not in _ERRORS
        if number == self.fails or later:
            if self.power is not None:
                self.power(self, half)
                return
            code = _ERRORS.get(kind, errno.ENOSPC)
            raise OSError(code, os.strerror(code))

    def open(self, file: Any, mode: str = "r", buffering: int = -1, *arguments: Any, **options: Any) -> Any:
        if isinstance(file, int) or not set("wax+") & set(mode) or not self._below(file):
            return self._open(file, mode, buffering, *arguments, **options)
        self.operation("open", file)
        raw = _File(self, os.fsdecode(file), mode.replace("b", "").replace("t", ""))
        if buffering == 0:
            return raw
        buffer = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffer if "b" in mode else io.TextIOWrapper(buffer, *arguments, **options)

    def _below(self, file: Any) -> bool:
        return os.path.abspath(os.fsdecode(file)).startswith(self.root)

    def fsync(self, descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        self.operation("fsync", path)
        self._fsync(descriptor)
        status = os.fstat(descriptor)
        self.synced[status.st_ino] = status.st_mtime_ns
        if self.renamed is not None and path == os.path.dirname(self.renamed[1]):
            self.renamed = None

    def rename(self, source: Any, target: Any, **options: Any) -> None:
        self.operation("rename", target)
        replaced = os.path.lexists(target)
        self._rename(source, target, **options)
        pair = os.path.abspath(os.fsdecode(source)), os.path.abspath(os.fsdecode(target))
        self.renamed = None if replaced else pair

    def mkdir(self, path: Any, *arguments: Any, **options: Any) -> None:
        self.operation("mkdir", path)
        self._mkdir(path, *arguments, **options)

    def unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        self.operation("unlink", _in_folder(path, dir_fd))
        self._unlink(path, dir_fd=dir_fd)

    def rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        self.operation("rmdir", _in_folder(path, dir_fd))
        self._rmdir(path, dir_fd=dir_fd)

    def _library(self, function: Any, error: type[Exception], place: int) -> Any:
        """A function of a library that writes the file at the argument ``place``."""

        def write(*arguments: Any, **options: Any) -> Any:
            if isinstance(arguments[place], str | os.PathLike):
                try:
                    self.operation("write", arguments[place])
                except OSError as problem:
                    raise error(f"I/O error: {problem.strerror} (os error {problem.errno})") from None
            return function(*arguments, **options)

        return write

    @contextlib.contextmanager
    def installed(self) -> Iterator["Disk"]:
        """Let all operations of this process pass here."""
        with contextlib.ExitStack() as stack:
            for module, name, function in (
                (builtins, "open", self.open),
                (io, "open", self.open),
                (os, "fsync", self.fsync),
                (os, "rename", self.rename),
                (os, "replace", self.rename),
                (os, "mkdir", self.mkdir),
                (pq, "write_table", self._library(pq.write_table, OSError, 1)),
                (pa.ipc, "new_stream", self._library(pa.ipc.new_stream, OSError, 0)),
                (
                    safetensors.torch,
                    "serialize_file",
                    self._library(safetensors.torch.serialize_file, SafetensorError, 1),
                ),
            ):
                stack.enter_context(mock.patch.object(module, name, function))
            if self.removals:
                for name, function in (("unlink", self.unlink), ("remove", self.unlink), ("rmdir", self.rmdir)):
                    stack.enter_context(mock.patch.object(os, name, function))
            yield self


def _in_folder(path: Any, folder: int | None) -> str:
    """A path that may be relative to an open folder."""
    inside = "" if folder is None else os.readlink(f"/proc/self/fd/{folder}")
    return os.path.join(inside, os.fsdecode(path))


def tree(folder: Path) -> dict[str, str]:
    """Relative path -> SHA-256 of every file below a folder, but locks and what a kill may leave beside a single file."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not (path.name.startswith(".") and (path.name.endswith(".lock") or PARTIAL in path.name))
    }


def until_power_fails(root: Path, words: list[str], fails: int) -> None:
    """Run a command in this process until its operation ``fails``, and leave on the disk what a power failure would.

    Of files that changed since they were last synced, nothing is left but the name; a rename whose folder was not synced
    has not happened.
    """

    def lose(disk: Disk, _: Callable[[], Any]) -> None:
        if disk.renamed is not None and os.path.lexists(disk.renamed[1]):
            disk._rename(disk.renamed[1], disk.renamed[0])
        for path in root.rglob("*"):
            status = path.stat()
            changed = path.is_file() and status.st_size and status.st_mtime_ns >= disk.started
            if changed and disk.synced.get(status.st_ino) != status.st_mtime_ns:
                os.truncate(path, 0)
        os._exit(POWER_FAILS)

    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    os.chdir(root)
    sys.argv = ["contextwise", *words]
    with Disk(root, fails, power=lose).installed():
        cli.main()


def fresh(template: Path, folder: Path) -> Path:
    """A copy of a folder; file times are those of now."""
    shutil.rmtree(folder, ignore_errors=True)
    return Path(shutil.copytree(template, folder, copy_function=shutil.copyfile))


@contextlib.contextmanager
def small_demo() -> Iterator[None]:
    """A demo of seconds, on short files, with as many steps each time."""
    from contextwise.data.sources import stdlib
    from contextwise.experiments import demo
    from contextwise.experiments.trial import trial

    short = [(name, path) for name, path in stdlib.stdlib_files() if path.stat().st_size < 1000]
    settings = ("tokens=128", "seeds=2", "recipe.data.context=16", "recipe.training.tokens_per_step=64")
    shape = {"layers": 1, "width": 16, "heads": 2}
    settings += tuple(f"recipe.model.{name}={value}" for name, value in shape.items())
    small = replace(demo.QUICK, trial=settings, documents=24, held_out=0.5, vocabulary=300)
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(stdlib, "stdlib_files", lambda: short))
        stack.enter_context(mock.patch.object(demo, "QUICK", small))
        stack.enter_context(mock.patch.object(demo, "KNOWN", "a-model-that-is-nowhere"))
        stack.enter_context(
            mock.patch.object(trial, "seconds_per_step", lambda recipes, *_: dict.fromkeys(recipes, 1.0))
        )
        yield


def write_template(folder: Path) -> None:
    """Write a text, a corpus, a recipe, a model, and results of earlier commands."""
    from contextwise.data import Corpus, prepare_corpus
    from contextwise.evaluation.kernel import measure
    from contextwise.evaluation.measures.loss import Loss
    from contextwise.training import Recipe, train

    write_documents(folder / "text.jsonl", 12)
    (folder / "lines.txt").write_text("one line\nanother\n")
    prepare_corpus(folder / "text.jsonl", "bytes", folder / "old" / "corpus", validation=0.6)
    values = recipe_values(folder / "old" / "corpus", folder / "old" / "run", steps=2, save_every=1)
    values["training"] |= {"evaluate_every": 1, "log_every": 1}
    train(Recipe.model_validate(values))
    del values["output"]
    values["data"]["corpus"] = "old/corpus"
    (folder / "recipe.yaml").write_text(yaml.safe_dump(values))
    shared = {"data": {"context": 16}, "model": {"layers": 1, "width": 16, "heads": 2}}
    shared["training"] = {"tokens_per_step": 64, "warmup_steps": 0, "evaluation_tokens": 16}
    paired = {"corpus": "old/corpus", "arms": ["gpt2", "pm"], "recipe": shared, "tokens": 128}
    paired |= {"seeds": 2, "rates": "fixed", "limit": 6}
    (folder / "trial.yaml").write_text(yaml.safe_dump(paired))
    sweep = sweep_values(Path("old/corpus"), Path("unused"), grid={"data.context": [16], "training.steps": [4]})
    (folder / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    parity = {"bits": 8, "tasks": 10, "first": 4, "shortest": 2, "validation_samples": 16}
    mlp = {"family": "parity_mlp", "width": 8, "feature_size": 4}
    schedule = {"steps": 2, "evaluate_every": 2, "save_every": 1, "examples_per_step": 4}
    trained = {"data": {"synthetic": parity}, "model": mlp, "training": schedule}
    settings = {"name": "one", "tolerance": 10, "contexts": [3], "samples": 1000, "recipe": trained}
    printed = {"bits": 8, "tasks": 10, "contexts": [3], "model": [0.6], "minimum": [0.6]}
    item = {"title": "A table", "source": "a paper", "measure": "parity_table", "printed": printed}
    item["scales"] = {"tiny": {"machine": "one CPU thread", "settings": settings}}
    (folder / "recipes" / "paper").mkdir(parents=True)
    (folder / "recipes" / "paper" / "table.yaml").write_text(yaml.safe_dump(item))
    save_model(folder / "model", small_gpt2())
    corpus = Corpus.open(folder / "old" / "corpus", "validation")
    measure(folder / "model", Loss(limit=1), corpus, out=folder / "old" / "loss")
    (folder / "old" / "report.html").write_text("an older page")
