"""Measurements of intrinsic entropy that are made of numbers: no model."""

import numpy as np
import torch

from contextwise.evaluation.kernel.result import write_result
from contextwise.evaluation.scoring.truncated import Targets, TruncatedBatch
from contextwise_papers.intrinsic_entropy.entropy import Entropy, EntropyResult
from contextwise_papers.intrinsic_entropy.entropy.running import ContextState, entropy_files
from measured import result_header

SAMPLES, WIDTH = 120, 12


def state_of(context, growth, rotation, draw):
    """Features whose small directions grow with the context, as the source finds, and a loss that falls with S."""
    scales = np.exp(-0.5 * np.arange(WIDTH) * (1 - growth))
    features = torch.from_numpy(draw.normal(size=(SAMPLES, WIDTH)) * scales @ rotation)
    features -= features.mean(0)
    root = torch.linalg.cholesky(features.mT @ features / (SAMPLES - 1))
    features = torch.linalg.solve_triangular(root, features.mT, upper=False).mT * scales
    nats = (3 - 2 * growth + 0.3 * np.sin(np.arange(SAMPLES))).astype(np.float32)
    state = ContextState(context, SAMPLES, np.arange(SAMPLES))
    state.add(TruncatedBatch(context, 0, SAMPLES, nats, features))
    state.finish()
    return state


def measurement(folder, contexts, name="a model", notes=()):
    draw = np.random.default_rng(0)
    rotation = np.linalg.qr(draw.normal(size=(WIDTH, WIDTH)))[0]
    states = {c: state_of(c, 0.5 - c**-0.5, rotation, draw) for c in contexts}
    targets = Targets(np.arange(SAMPLES) // 10, np.full(SAMPLES, 300))
    losses = {str(c): {"value": float(states[c].nats.mean()), "low": 1.0, "high": 4.0} for c in contexts}
    last = losses[str(contexts[-1])]["value"]
    corpus = {"path": "corpora/books", "split": "validation", "fingerprint": "c0ffee", "tokenizer_hash": None}
    about = {"label": "corpus-validation", "model": f"runs/{name}", "name": name, "corpus": corpus}
    settings = Entropy(contexts=list(contexts)).model_dump(mode="json")
    summary = {
        **result_header("entropy", settings, **about),
        "samples": SAMPLES,
        "documents": 12,
        "width": WIDTH,
        "kept": SAMPLES,
        "losses": losses,
        "differences": {
            c: {"value": loss["value"] - last, "low": loss["value"] - last - 0.01, "high": loss["value"] - last + 0.01}
            for c, loss in losses.items()
            if loss["value"] != last
        },
        "notes": list(notes),
        "environment": {"python": "3.11", "versions": {"torch": "2.13"}, "gpus": []},
    }
    write_result(folder / "entropy", summary, entropy_files(targets, states))
    return EntropyResult.open(folder / "entropy")
