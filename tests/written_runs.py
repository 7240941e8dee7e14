"""Run folders written by hand: plausible figures, no trainer."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import yaml

from contextwise.base.files import write_sealed_json
from contextwise.base.runs import RunFolder
from contextwise.evaluation.scoring.scores import totals
from measured import write_evaluation
from small import run_summary, write_rows

DOCUMENTS = 40
STEPS = 390
TOKENS_PER_STEP = 4096


def write_run(
    folder: Path,
    name: str = "GPT-2",
    seed: int = 0,
    shift: float = 0.0,
    speed: float = 9000.0,
    parameters: int = 1_350_000,
    evaluated: bool = True,
    finished: bool = True,
) -> RunFolder:
    """A run whose loss is that of the others plus ``shift`` nats per token."""
    run = RunFolder(folder / f"{''.join(c for c in name if c.isalnum())[:40]}-{seed}")
    run.path.mkdir(parents=True)
    recipe = {
        "name": name,
        "seed": seed,
        "data": {"corpus": "corpus", "context": 256},
        "model": {"family": "gpt2", "size": "nano"},
        "training": {"evaluation_tokens": 65_536},
    }
    run.recipe_file.write_text(yaml.safe_dump(recipe))
    write_sealed_json(
        run.environment_file, {"processor": "a processor", "cores": 2, "versions": {"torch": "2.13.0"}, "gpus": []}
    )
    random = np.random.default_rng(seed + len(name))
    lines = []
    for step in range(10, STEPS + 1, 10):
        spent = {
            "step": step,
            "tokens": step * TOKENS_PER_STEP,
            "flops": step * 3e10,
            "seconds": step * TOKENS_PER_STEP / speed,
        }
        loss = 3.9 + 4.4 * (step / 8 + 1) ** -0.9 + shift
        lines.append({"kind": "train", **spent, "loss": loss + random.normal(0, 0.05)})
        if step % 50 == 0 or step == STEPS:
            lines.append({"kind": "validation", **spent, "loss": loss + 0.05})
    write_rows(run.metrics_file, lines)
    if finished:
        corpus = {"path": "corpus", "fingerprint": "c0ffee"}
        spent = {
            "tokens": STEPS * TOKENS_PER_STEP,
            "seconds": STEPS * TOKENS_PER_STEP / speed,
            "tokens_per_second": speed,
        }
        run.write_summary(run_summary(name=name, seed=seed, parameters=parameters, corpus=corpus, context=256, **spent))
    if evaluated:
        evaluate(run, name, shift, parameters)
    return run


def evaluate(run: RunFolder, name: str, shift: float, parameters: int) -> None:
    """An evaluation of :data:`DOCUMENTS` documents: the same lengths and difficulties for every run."""
    shared, own = np.random.default_rng(1), np.random.default_rng(len(name))
    tokens = shared.integers(100, 4000, DOCUMENTS)
    nats = tokens * (4.0 + shared.normal(0, 0.4, DOCUMENTS) + shift + own.normal(0, 0.02, DOCUMENTS))
    documents = pa.table(
        {
            "document": pa.array(np.arange(DOCUMENTS, dtype=np.int32)),
            "document_hash": pa.array([f"{i:04x}" for i in range(DOCUMENTS)]),
            "tokens": tokens,
            "bytes": tokens * 3,
            "words": tokens // 2,
            "nats": nats,
        }
    )
    summary = {
        "label": "corpus-validation",
        "model": str(run.path),
        "parameters": parameters,
        "corpus": {"path": "corpus", "fingerprint": "c0ffee", "split": "validation", "tokenizer_hash": "beef"},
        "context": 256,
        "stride": 128,
        **totals(documents),
    }
    write_evaluation(run.evaluation / "corpus-validation", summary, documents)
