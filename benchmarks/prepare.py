"""``contextwise prepare`` against ``datasets.map`` with the same tokenizer: MB of text a second.

Claim: at least 1.0 times. Both read the same JSON Lines and end with token ids in Arrow files on disk; ours also hashes,
splits, counts and keeps metadata. The text is the standard library's own source unless ``--text`` names JSON Lines files.
"""

import argparse
import contextlib
import io
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import datasets
from transformers import AutoTokenizer

from benchmarks.harness import publish
from contextwise.base.progress import console
from contextwise.data import iter_stdlib_documents, prepare_corpus


def with_datasets(text: list[str], tokenizer: Any, out: Path, processes: int | None) -> None:
    """The usual way: load_dataset, map in batches, save_to_disk."""
    cache = out / "cache"
    data = datasets.load_dataset("json", data_files=text, split="train", cache_dir=str(cache))
    mapped = data.map(
        lambda batch: {"input_ids": tokenizer(batch["text"], add_special_tokens=False)["input_ids"]},
        batched=True,
        remove_columns=["text"],
        num_proc=processes,
    )
    mapped.save_to_disk(str(out / "tokens"))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", nargs="*", default=[])
    parser.add_argument(
        "--tokenizer", default=None, help="folder; a byte-level BPE learned on the text if not given"
    )
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    datasets.disable_progress_bars()
    console.quiet = True
    seconds: dict[str, list[float]] = {"contextwise": [], "datasets.map": [], "datasets.map, 2 processes": []}
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stderr(io.StringIO()):
        folder = Path(name)
        text = options.text
        if not text:
            text = [str(folder / "stdlib.jsonl")]
            with open(text[0], "w") as file:  # noqa: PTH123
                for document in iter_stdlib_documents():
                    file.write(json.dumps({"text": document.text}) + "\n")
        learned = options.tokenizer or str(
            prepare_corpus(text, "train:4096", folder / "learn").path / "tokenizer"
        )
        tokenizer = AutoTokenizer.from_pretrained(learned)
        megabytes = sum(manifest_bytes(text, learned, folder)) / 1e6

        def run(which: str, out: Path) -> None:
            if which == "contextwise":
                prepare_corpus(text, learned, out)
            else:
                with_datasets(text, tokenizer, out, 2 if "2" in which else None)

        for round_ in range(options.rounds + 1):
            for which in seconds:
                out = folder / f"{which}{round_}"
                start = time.perf_counter()
                run(which, out)
                if round_:
                    seconds[which].append(time.perf_counter() - start)
                shutil.rmtree(out, ignore_errors=True)
    console.quiet = False
    speeds = {which: megabytes / statistics.median(times) for which, times in seconds.items()}
    ratios = {}
    for which in list(seconds)[1:]:
        pairs = zip(seconds[which], seconds["contextwise"], strict=True)
        ratios[which] = statistics.median(theirs / ours for theirs, ours in pairs)
        print(
            f"prepare: {speeds['contextwise']:.1f} MB/s, {which} {speeds[which]:.1f} MB/s: {ratios[which]:.2f}x",
            flush=True,
        )
    publish("prepare", {"megabytes": megabytes, "mb_per_second": speeds, "speed_of_contextwise": ratios})


def manifest_bytes(text: list[str], tokenizer: str, folder: Path) -> list[int]:
    """Bytes of text in each split, as prepare counts them."""
    manifest = prepare_corpus(text, tokenizer, folder / "count").manifest
    return [split["bytes"] for split in manifest["splits"].values()]


if __name__ == "__main__":
    main()
