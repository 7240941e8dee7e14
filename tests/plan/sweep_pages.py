"""A sweep for the tests of its page, and what they read and write."""

import csv
import io
from pathlib import Path
from typing import Any

from contextwise.base.files import write_json
from contextwise.base.hashes import seal
from contextwise.data import prepare_corpus
from contextwise.evaluation.measures.curve import Curve
from measured import result_header
from small import write_documents
from synthetic_sweep import write_sweep


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def write_curve(folder: Path, tokenizer: str, low: float = 2.5, **corpus: Any) -> Path:
    """A folder as ``contextwise curve`` writes it, as far as the page reads it."""
    folder.mkdir(parents=True)
    edges = [(1, 1), (2, 3), (4, 15), (16, 128)]
    bins = [
        {"visible_from": a, "visible_to": b, "loss": low + 1 / b, "low": low, "high": low + 2 / b, "targets": 9}
        | dict.fromkeys(("minus_longest", "minus_longest_low", "minus_longest_high"))
        for a, b in edges
    ]
    about = {"path": "nowhere", "fingerprint": "c0ffee", "split": "validation", "tokenizer_hash": tokenizer, **corpus}
    value = {"value": low, "low": low, "high": low}
    lowest = value | {"visible_from": 16, "visible_to": 128}
    effective = value | {"measured_from": 1, "measured_to": 128, "worth": 0.01}
    measures = {"lowest_bin": lowest, "best_context_loss": None, "effective_context": effective, "average_loss": None}
    settings = Curve(context=128, mode="running").model_dump(mode="json")
    summary = result_header("curve", settings, corpus=about, bins=bins, measures=measures)
    summary |= {"trained_context": 128, "rope_factor": None, "documents": 9, "targets": 36}
    write_json(folder / "summary.json", summary)
    for name in ("documents.parquet", "curve.parquet"):
        (folder / name).write_bytes(b"")
    seal(folder)
    return folder


def make_sweep(folder: Path) -> Path:
    """Three sizes, five contexts, two seeds, noise; the corpus is there; one run was measured afterwards too."""
    from contextwise.data import Corpus

    prepare_corpus(write_documents(folder / "text.jsonl"), "bytes", folder / "corpus", validation=0.1)
    fingerprint = Corpus.open(folder / "corpus").fingerprint
    found = write_sweep(
        folder / "sweep",
        seeds=(0, 1),
        measurements=12,
        noise=0.01,
        corpus=str(folder / "corpus"),
        fingerprint=fingerprint,
    )
    write_curve(found.run_folder("nano-c128-s0").evaluation / "corpus-validation-curve", "own")
    return found.path
