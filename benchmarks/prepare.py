"""``contextwise prepare`` against the tokenizers library alone, and against ``datasets.map``: MB of text a second.

Claims: at least 0.85 times the library alone, and at least 1.0 times ``datasets.map``. The library alone is the limit: texts in
memory, cut into pieces for all cores, with the same cache of words, whose tokens are thrown away. The other ways read the
same JSON Lines and end with token ids in Arrow files on disk; ours also hashes, splits, counts and keeps metadata.

Each run is a process of its own (runs in one process slow each other down). It reports its seconds without the imports, and its
peak of anonymous memory, without that of datasets' workers. The text is the standard library's own source, or ``--text``: any
sources that ``prepare`` reads. ``--megabytes 1000`` repeats it to that size: each copy of a document has its lines in
another order, with numbers between them.
"""

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.harness import peak_memory, publish

MODULE = "benchmarks.prepare"
LIMIT = "tokenizers alone"
WAYS = ("contextwise", LIMIT, "datasets.map", f"datasets.map, {os.cpu_count()} processes")


def write_text(sources: list[str], megabytes: float | None, path: Path) -> float:
    """Write the documents of ``sources`` as JSON Lines, repeated with changes up to a size; returns MB of text."""
    from contextwise.data.sources import BadRecord, open_source

    total, copies = 0, [0] if megabytes is None else count()
    with path.open("w") as file:
        for copy in copies:
            draw = random.Random(copy)
            for record in (record for name in sources for record in open_source(name).records("text")):
                if isinstance(record, BadRecord):
                    raise SystemExit(f"{record.where}: {record.why}")
                text = record.text if copy == 0 else changed(record.text, draw)
                file.write(json.dumps({"text": text}) + "\n")
                total += len(text.encode())
                if megabytes is not None and total >= megabytes * 1e6:
                    return total / 1e6
    return total / 1e6


def changed(text: str, draw: random.Random) -> str:
    """The lines of a text in another order, with numbers between them."""
    lines = text.split("\n")
    draw.shuffle(lines)
    return f"\n{draw.randrange(10**6)}\n".join("\n".join(lines[i : i + 20]) for i in range(0, len(lines), 20))


def alone(tokenizer: str, text: str) -> float:
    """Seconds that the tokenizers library takes for batches of texts in memory, on all cores."""
    from contextwise.data.documents import Skipped, in_batches, read_documents
    from contextwise.data.sources import open_source
    from contextwise.data.tokenizers import load_tokenizer, pieces

    loaded, seconds = load_tokenizer(tokenizer), 0.0
    records = open_source(text).records("text")
    for batch in in_batches(read_documents(records, False, None, Skipped())):
        cut = [piece for document in batch for piece in pieces(document.text, loaded.piece)]
        start = time.perf_counter()
        loaded.backend.encode_batch_fast(cut, add_special_tokens=False)
        seconds += time.perf_counter() - start
    return seconds


def with_datasets(tokenizer: str, text: str, out: Path, processes: int | None) -> float:
    """Seconds of the usual way: load_dataset, map in batches, save_to_disk."""
    import datasets
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(tokenizer)
    start = time.perf_counter()
    data = datasets.load_dataset("json", data_files=text, split="train", cache_dir=str(out / "cache"))
    mapped = data.map(
        lambda batch: {"input_ids": loaded(batch["text"], add_special_tokens=False)["input_ids"]},
        batched=True,
        remove_columns=["text"],
        num_proc=processes,
    )
    mapped.save_to_disk(str(out / "tokens"))
    return time.perf_counter() - start


def child(way: str, tokenizer: str, text: str) -> None:
    """Print the seconds that one way takes, and its peak of anonymous memory over what the imports hold."""
    import datasets  # noqa: F401  (every way but the limit imports it when it writes)

    from contextwise.data import prepare_corpus

    peak = [anonymous_bytes()]
    before = peak[0]

    def watch() -> None:
        while True:
            peak[0] = max(peak[0], anonymous_bytes())
            time.sleep(0.05)

    threading.Thread(target=watch, daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        if way == "contextwise":
            start = time.perf_counter()
            prepare_corpus(text, tokenizer, f"{folder}/corpus")
            seconds = time.perf_counter() - start
        elif way == LIMIT:
            seconds = alone(tokenizer, text)
        else:
            seconds = with_datasets(tokenizer, text, Path(folder), os.cpu_count() if "," in way else None)
    print(json.dumps({"seconds": seconds, "bytes": peak[0] - before}))


def anonymous_bytes() -> int:
    """Memory of this process that no file backs: the corpus's mapped files are not counted."""
    status = Path("/proc/self/status").read_text().split("\n")
    return int(next(line for line in status if line.startswith("RssAnon")).split()[1]) * 1024


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--text", nargs="+", default=["stdlib"], help="sources as for prepare")
    parser.add_argument("--megabytes", type=float, help="size of the text; as it is if not given")
    parser.add_argument("--tokenizer", default=None, help="folder; a byte-level BPE learned on the text if not given")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    if options.child:
        child(*options.child)
        return
    from contextwise.data import prepare_corpus

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = str(folder / "text.jsonl")
        megabytes = write_text(options.text, options.megabytes, Path(text))
        if options.tokenizer is None:
            prepare_corpus(options.text, "train:4096", folder / "corpus")
        tokenizer = options.tokenizer or str(folder / "corpus" / "tokenizer")
        runs: dict[str, list[dict[str, Any]]] = {way: [] for way in options.ways}
        for turn in range(options.rounds):
            for way in (*options.ways[turn % len(runs) :], *options.ways[: turn % len(runs)]):
                runs[way].append(peak_memory(MODULE, "--child", way, tokenizer, text))
                print(f"{way}: {megabytes / runs[way][-1]['seconds']:.2f} MB/s", flush=True)
    seconds = {way: [run["seconds"] for run in results] for way, results in runs.items()}
    speeds = {way: megabytes / statistics.median(times) for way, times in seconds.items()}
    peaks = {way: max(run["bytes"] for run in results) for way, results in runs.items()}
    ratios = {}
    for way in options.ways:
        pairs = zip(seconds[way], seconds[options.ways[0]], strict=True)
        ratios[way] = statistics.median(theirs / ours for theirs, ours in pairs)
        print(
            f"{way}: {speeds[way]:.2f} MB/s, at most {peaks[way] / 2**20:,.0f} MiB; "
            f"{options.ways[0]} has {ratios[way]:.2f} times its speed",
            flush=True,
        )
    result = {"megabytes": megabytes, "seconds": seconds, "mb_per_second": speeds, "peak_bytes": peaks}
    publish("prepare", result | {"speed_of_contextwise": ratios})


if __name__ == "__main__":
    main(sys.argv[1:])
