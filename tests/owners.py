"""Outputs of every kind, written by several processes at once with delays before operations on files (after Jepsen).

A kind has a function that writes the output for a writer, whose name goes into every file of it. A snapshot of the output that
any process can ever see must be whole and of one writer.
"""

import hashlib
import io
import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from contextwise.base.errors import ContextwiseError
from contextwise.base.files import atomic_directory, atomic_write
from contextwise.base.hashes import MANIFEST, unsealed

DELAYED = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.scandir", "fcntl.flock", "shutil.rmtree"}
Snapshot = dict[str, bytes]


def delay_files(seed: int, longest: float = 0.004) -> None:
    """Let operations on files of this process wait now and then, before they begin."""
    draw = random.Random(seed)

    def hook(event: str, arguments: object) -> None:
        if event in DELAYED and draw.random() < 0.3:
            time.sleep(draw.uniform(0, longest))

    sys.addaudithook(hook)


def write(kind: str, target: Path, inputs: Path, writer: int, times: int, log: Path) -> None:
    """Write an output some times; each success is a line ``writer N`` of the log, each error of Contextwise another line."""
    delay_files(writer)
    sys.stderr = io.StringIO()
    for _ in range(times):
        try:
            KINDS[kind][0](target, inputs, f"writer {writer}")
            line = f"writer {writer}"
        except ContextwiseError as error:
            line = str(error)
        with log.open("a") as file:
            file.write(f"{line}\n")


def snapshot(path: Path) -> Snapshot | None:
    """The files of a folder, or the file, as ``path`` names it all the while; None if it did not."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    files: Snapshot = {}
    try:
        if path.is_dir():
            for folder, _, names, inside in os.fwalk(".", dir_fd=descriptor):
                for name in names:
                    with os.fdopen(os.open(name, os.O_RDONLY, dir_fd=inside), "rb") as file:
                        files[(Path(folder) / name).as_posix()] = file.read()
        else:
            with os.fdopen(os.dup(descriptor), "rb") as file:
                files["."] = file.read()
        return files if os.path.samestat(os.fstat(descriptor), path.stat()) else None
    except (FileNotFoundError, NotADirectoryError):  # it was replaced
        return None
    finally:
        os.close(descriptor)


def _writers(texts: list[str]) -> set[str]:
    return {name for text in texts for name in ("writer 0", "writer 1", "writer 2") if name in text}


def _file(target: Path, inputs: Path, writer: str) -> None:
    atomic_write(target, f"{writer}\n" * 2000)


def _whole_file(files: Snapshot) -> set[str]:
    lines = files["."].decode().splitlines()
    assert len(lines) == 2000
    return set(lines)


def _vectors(target: Path, inputs: Path, writer: str) -> None:
    number = int(writer.split()[1])
    from contextwise_papers.objectives.embedding import write_vectors

    write_vectors(target, np.full((20, 3), number))


def _whole_vectors(files: Snapshot) -> set[str]:
    array = np.load(io.BytesIO(files["."]), allow_pickle=False)
    assert array.shape == (20, 3)
    return {f"writer {int(number)}" for number in np.unique(array)}


def _folder(target: Path, inputs: Path, writer: str, replace: bool = True) -> None:
    with atomic_directory(target, replace=replace) as folder:
        (folder / "inner").mkdir()
        for name in ("a", "b", "inner/c"):
            atomic_write(folder / name, writer)


def _new_folder(target: Path, inputs: Path, writer: str) -> None:
    _folder(target, inputs, writer, replace=False)


def _whole_folder(files: Snapshot) -> set[str]:
    assert sorted(files) == ["a", "b", "inner/c"]
    return {content.decode() for content in files.values()}


def _corpus(target: Path, inputs: Path, writer: str) -> None:
    from contextwise.data import prepare_corpus

    prepare_corpus(inputs / f"{writer}.jsonl", "bytes", target, validation=0, overwrite=True)


def _new_corpus(target: Path, inputs: Path, writer: str) -> None:
    from contextwise.data import prepare_corpus

    prepare_corpus(inputs / f"{writer}.jsonl", "bytes", target, validation=0)


def _whole_corpus(files: Snapshot) -> set[str]:
    manifest = json.loads(files[MANIFEST])
    listed = manifest["tokenizer"]["files"] | manifest["splits"]["train"]["files"]
    assert set(files) == {*listed, MANIFEST, "dataset_dict.json"}
    for name, entry in listed.items():
        assert hashlib.sha256(files[name]).hexdigest() == entry["sha256"]
    return _writers([json.dumps(manifest["sources"])])


def _result(target: Path, inputs: Path, writer: str) -> None:
    from contextwise.data import Corpus
    from contextwise.evaluation.kernel import Subject, measure
    from contextwise.evaluation.measures.loss import Loss

    corpus = Corpus.open(inputs / "corpus")
    measure(Subject(inputs / writer, device="cpu"), Loss(context=16), corpus, out=target, overwrite=True)


def _whole_result(files: Snapshot) -> set[str]:
    assert sorted(files) == ["documents.parquet", MANIFEST, "summary.json", "tokens.parquet"]
    return _writers([files["summary.json"].decode()])


def _export(target: Path, inputs: Path, writer: str) -> None:
    from contextwise.models.export import export_model_folder

    export_model_folder(inputs / writer, target, card=writer)


def _whole_export(files: Snapshot) -> set[str]:
    listed = unsealed(json.loads(files[MANIFEST]))["files"]
    assert set(files) == {*listed, MANIFEST, "README.md"} and "model.safetensors" in files
    for name, entry in listed.items():
        assert hashlib.sha256(files[name]).hexdigest() == entry["sha256"]
    return _writers([files["README.md"].decode()])


KINDS: dict[str, tuple[Callable[[Path, Path, str], None], Callable[[Snapshot], set[str]]]] = {
    "file": (_file, _whole_file),
    "vectors": (_vectors, _whole_vectors),
    "folder": (_folder, _whole_folder),
    "new folder": (_new_folder, _whole_folder),
    "corpus": (_corpus, _whole_corpus),
    "new corpus": (_new_corpus, _whole_corpus),
    "result": (_result, _whole_result),
    "export": (_export, _whole_export),
}
"""How an output is written, and the writers of a snapshot, which has to be whole."""
REPLACED = {"file", "vectors", "folder", "corpus", "result"}
"""Kinds whose output a later writer replaces; one of the others belongs to the first."""
