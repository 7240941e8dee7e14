"""A corpus of C and Python source that travels in 64 MB: fetched, deduplicated by file, tokenized, packed.

``python -m benchmarks.source_corpus fetch FOLDER`` downloads packages from PyPI (``pip download``) and source packages of
Debian (``apt-get source``, where apt is) of the projects in ``source_corpus.yaml``, or of those that ``--pypi`` and
``--debian`` name. What cannot be fetched is named and left out. ``... prepare FOLDER`` makes the corpus ``FOLDER/corpus`` from
the archives; projects are held out whole, as files of a project resemble each other. ``... pack FOLDER`` writes
``FOLDER/corpus.tar.xz``, and ``... unpack FOLDER`` is its inverse, on the machine that trains. Nothing of it is part of this
repository.
"""

import argparse
import hashlib
import json
import lzma
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from contextwise.base.config import read_yaml
from contextwise.base.progress import say
from contextwise.data import prepare_corpus

PROJECTS = Path(__file__).with_suffix(".yaml")
SUFFIXES = (".c", ".h", ".py")
SOURCES = Path("/etc/apt")
SHORTEST, LONGEST = 200, 200_000
"""Bytes of a file: shorter ones are stubs, longer ones are tables and what programs have written."""
WIDEST = 200
"""Mean bytes of a line; a file of longer ones is data."""
HELD_OUT = 25
"""One project in so many is held out, by the hash of its name; at least one."""


def fetch(folder: Path, pypi: list[str], debian: list[str], seconds: int) -> None:
    """Download archives into ``pypi`` and ``debian`` of a folder; each has so many seconds."""
    for name in pypi:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--prefer-binary"]
        _run([*command, "--dest", str(folder / "pypi"), name], folder, name, seconds)
    if not debian:
        return
    lists, target = folder / "apt", folder / "debian"
    for each in (lists / "partial", lists / "sources", target):
        each.mkdir(parents=True, exist_ok=True)
    # The mirrors of Debian that this machine has, for sources.
    for path in [*SOURCES.glob("sources.list"), *SOURCES.glob("sources.list.d/*")]:
        if "debian" in (text := path.read_text()):
            own = re.sub(r"^(Types: )?deb\b", r"\1deb-src", text, flags=re.MULTILINE)
            (lists / "sources" / path.name).write_text(own)
    where = {"sourcelist": "/dev/null", "sourceparts": lists / "sources"}
    apt = ["apt-get", "--quiet", *(f"-oDir::Etc::{key}={value}" for key, value in where.items())]
    apt.append(f"-oDir::State::lists={lists}")
    if _run([*apt, "update"], target, "Debian's list of packages", seconds):
        for name in debian:
            _run([*apt, "source", "--download-only", name], target, name, seconds)


def _run(command: list[str], folder: Path, what: str, seconds: int) -> bool:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=seconds, check=False)
        why = done.stderr.strip().split("\n")[-1] if done.returncode else ""
    except (OSError, subprocess.TimeoutExpired) as error:
        why = str(error)
    say(f"{what}: {f'left out: {why[:200]}' if why else 'fetched'}")
    return not why


def archives(folder: Path) -> dict[str, Path]:
    """The archives of a folder by project; of a Debian package the upstream source alone."""
    found: dict[str, Path] = {}
    for path in sorted([*(folder / "pypi").glob("*"), *(folder / "debian").glob("*.orig*.tar.*")]):
        if path.suffix == ".whl":
            found[path.name.partition("-")[0]] = path
        elif path.suffix in (".gz", ".xz", ".bz2", ".zip", ".tgz"):
            found[path.name.partition("_")[0] if ".orig" in path.name else path.name.rpartition("-")[0]] = path
    return found


def files(archive: Path) -> Iterator[tuple[str, bytes]]:
    """Names and contents of the source files in an archive."""
    if archive.suffix in (".zip", ".whl"):
        with zipfile.ZipFile(archive) as opened:
            for name in opened.namelist():
                if name.endswith(SUFFIXES):
                    yield name, opened.read(name)
        return
    with tarfile.open(archive) as opened_tar:
        for member in opened_tar:
            if member.isfile() and member.name.endswith(SUFFIXES) and SHORTEST <= member.size <= LONGEST:
                content = opened_tar.extractfile(member)
                assert content is not None
                yield member.name, content.read()


def texts(folder: Path, share: float = 1.0) -> Iterator[tuple[str, str, str]]:
    """Project, name and text of each different file, or of a share of them by hash; white space alone makes no difference."""
    seen: set[bytes] = set()
    for project, archive in archives(folder).items():
        try:
            for name, content in files(archive):
                digest = hashlib.sha256(b" ".join(content.split())).digest()
                wide = len(content) > WIDEST * (content.count(b"\n") + 1)
                if wide or digest in seen or digest[0] >= 256 * share or not SHORTEST <= len(content) <= LONGEST:
                    continue
                try:
                    text = content.decode()
                except UnicodeDecodeError:
                    continue
                seen.add(digest)
                yield project, name, text
        except (tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, EOFError, OSError) as error:
            say(f"{archive.name}: the rest is left out: {error}")


def held_out(projects: list[str]) -> set[str]:
    """The projects whose files are for validation."""
    by_hash = sorted(projects, key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    return set(by_hash[: max(1, len(projects) // HELD_OUT)])


def prepare(folder: Path, vocabulary: int, share: float) -> None:
    """Make the corpus of the archives of a folder, or of a share of their files."""
    projects = list(archives(folder))
    if len(projects) < 2:
        raise SystemExit(f"{folder} has archives of {len(projects)} projects, and one is held out; fetch two or more")
    for_validation = held_out(projects)
    paths = {split: folder / f"{split}.jsonl" for split in ("train", "validation")}
    amounts = dict.fromkeys(paths, 0)
    with paths["train"].open("w") as train, paths["validation"].open("w") as validation:
        for project, name, text in texts(folder, share):
            split, file = ("validation", validation) if project in for_validation else ("train", train)
            file.write(json.dumps({"text": text, "title": f"{project}: {name}"}) + "\n")
            amounts[split] += len(text)
    say(", ".join(f"{split}: {amount / 1e6:.1f} MB" for split, amount in amounts.items()))
    sources = [f"{split}={path}" for split, path in paths.items()]
    corpus = prepare_corpus(sources, f"train:{vocabulary}", folder / "corpus", overwrite=True)
    say(f"{corpus.path}: {corpus.tokens:,} tokens to train on")


def pack(folder: Path) -> None:
    """Pack the corpus, and say how large it is."""
    target = folder / "corpus.tar.xz"
    with tarfile.open(target, "w:xz", preset=9) as archive:
        archive.add(folder / "corpus", "corpus")
    say(f"{target}: {target.stat().st_size / 2**20:.1f} MiB")


def unpack(folder: Path) -> None:
    """The inverse of :func:`pack`."""
    with tarfile.open(folder / "corpus.tar.xz") as archive:
        archive.extractall(folder, filter="data")


def main(arguments: list[str] | None = None) -> None:
    projects = read_yaml(PROJECTS)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=["fetch", "prepare", "pack", "unpack"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pypi", nargs="*", default=projects["pypi"], metavar="NAME")
    parser.add_argument("--debian", nargs="*", default=projects["debian"], metavar="NAME")
    parser.add_argument("--seconds", type=int, default=300, help="for each download")
    parser.add_argument("--vocabulary", type=int, default=16_384)
    parser.add_argument("--share", type=float, default=0.2, help="of the files; all would be too many to travel")
    options = parser.parse_args(arguments)
    options.folder = options.folder.absolute()
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.step == "fetch":
        fetch(options.folder, options.pypi, options.debian, options.seconds)
    elif options.step == "prepare":
        prepare(options.folder, options.vocabulary, options.share)
    else:
        {"pack": pack, "unpack": unpack}[options.step](options.folder)


if __name__ == "__main__":
    main()
