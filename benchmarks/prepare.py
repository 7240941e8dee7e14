"""``contextwise prepare`` against ``datasets.map`` with the same tokenizer: MB of text a second.

Claim: at least 1.0 times. Both read the same JSON Lines and end with token ids in Arrow files on disk; ours also hashes,
splits, counts and keeps metadata. Each run is a process of its own (runs in one process slow each other down), and reports
its seconds without the imports. The text is the standard library's own source unless ``--text`` names JSON Lines files.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import publish

WAYS = ("contextwise", "datasets.map", "datasets.map, 2 processes")


def with_datasets(text: list[str], tokenizer: Any, out: Path, processes: int | None) -> None:
    """The usual way: load_dataset, map in batches, save_to_disk."""
    import datasets

    data = datasets.load_dataset("json", data_files=text, split="train", cache_dir=str(out / "cache"))
    mapped = data.map(
        lambda batch: {"input_ids": tokenizer(batch["text"], add_special_tokens=False)["input_ids"]},
        batched=True,
        remove_columns=["text"],
        num_proc=processes,
    )
    mapped.save_to_disk(str(out / "tokens"))


def one(way: str, tokenizer: str, out: Path, text: list[str]) -> None:
    """Child process: prints the seconds that one way took."""
    from transformers import AutoTokenizer

    from contextwise.data import prepare_corpus

    loaded = AutoTokenizer.from_pretrained(tokenizer)
    start = time.perf_counter()
    if way == "contextwise":
        prepare_corpus(text, tokenizer, out)
    else:
        with_datasets(text, loaded, out, 2 if "2" in way else None)
    print(json.dumps(time.perf_counter() - start))


def measure(way: str, tokenizer: str, text: list[str]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "benchmarks.prepare",
            "--child",
            way,
            tokenizer,
            f"{folder}/out",
            *text,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.strip().split("\n")[-1])


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--text", nargs="*", default=[])
    parser.add_argument(
        "--tokenizer", default=None, help="folder; a byte-level BPE learned on the text if not given"
    )
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    if options.child:
        way, tokenizer, out, *text = options.child
        one(way, tokenizer, Path(out), text)
        return
    from contextwise.data import prepare_corpus
    from contextwise.data.sources.stdlib import iter_stdlib_documents

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = options.text
        if not text:
            text = [str(folder / "stdlib.jsonl")]
            lines = (json.dumps({"text": document.text}) + "\n" for document in iter_stdlib_documents())
            Path(text[0]).write_text("".join(lines))
        corpus = prepare_corpus(text, options.tokenizer or "train:4096", folder / "corpus")
        megabytes = sum(split["bytes"] for split in corpus.manifest["splits"].values()) / 1e6
        tokenizer = options.tokenizer or str(corpus.path / "tokenizer")
        seconds: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(options.rounds):
            for way in WAYS:
                seconds[way].append(measure(way, tokenizer, text))
    speeds = {way: megabytes / statistics.median(times) for way, times in seconds.items()}
    ratios = {}
    for way in WAYS[1:]:
        pairs = zip(seconds[way], seconds["contextwise"], strict=True)
        ratios[way] = statistics.median(theirs / ours for theirs, ours in pairs)
        print(
            f"prepare: {speeds['contextwise']:.1f} MB/s, {way} {speeds[way]:.1f} MB/s: {ratios[way]:.2f}x",
            flush=True,
        )
    publish("prepare", {"megabytes": megabytes, "mb_per_second": speeds, "speed_of_contextwise": ratios})


if __name__ == "__main__":
    main(sys.argv[1:])
