"""Small corpora and recipes for tests, made from nothing."""

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from transformers import GPT2Config, GPT2LMHeadModel

from contextwise.data.tokenizers import byte_tokenizer

SENTENCE = (
    "the a of model token context window loss learns reads writes predicts next chunk long short and but not with"
)
WORDS = SENTENCE.split(" ")


def write_documents(path: Path, count: int = 120, seed: int = 0) -> Path:
    """JSON Lines of made-up sentences, with metadata; the same bytes for the same seed."""
    draw = random.Random(seed)
    with path.open("w") as file:
        for i in range(count):
            text = " ".join(draw.choices(WORDS, k=draw.randint(5, 160))) + f" number {i}."
            file.write(json.dumps({"text": text, "title": f"document {i}", "year": 1900 + i}) + "\n")
    return path


EXACT = {"precision": "fp32"}
"""For runs whose losses are computed anew, or whose sums in another order are compared: equal to five digits, not to three."""


def recipe_values(corpus: Path, output: Path, **training: object) -> dict:
    """A run of a tiny ContextLM: 12 steps of 4 windows of 32 tokens."""
    settings = {
        "steps": 12,
        "tokens_per_step": 128,
        "warmup_steps": 2,
        "learning_rate": 3e-3,
        "save_every": 4,
        "precision": "bf16",  # what `auto` takes on most GPUs and newer CPUs; torch computes it on every machine
    }
    settings |= {"log_every": 2, "evaluate_every": 6, "evaluation_tokens": 256}
    return {
        "name": "tiny",
        "data": {"corpus": str(corpus), "context": 32},
        "model": {"layers": 2, "width": 32, "heads": 2, "context_predictor": {"predictor_layers": 1}},
        "training": settings | training,
        "output": str(output),
    }


def as_on_an_accelerator(monkeypatch) -> None:
    """Let models take the ways that they take where reading a value from the device would wait for it."""
    monkeypatch.setattr("contextwise.models.masks._may_read", False)


def save_model(folder: Path, model: Any, tokenizer: Any = None) -> Path:
    """Save a model with its tokenizer, by default that of bytes, as a run exports them."""
    model.save_pretrained(folder)
    (tokenizer or byte_tokenizer().tokenizer).save_pretrained(folder)
    return folder


def small_gpt2(vocab_size: int = 257, positions: int = 48, seed: int = 0, **config: Any) -> GPT2LMHeadModel:
    """A GPT-2 of a few thousand parameters, never trained."""
    torch.manual_seed(seed)
    shape = {"n_embd": 16, "n_layer": 1, "n_head": 2} | config
    return GPT2LMHeadModel(GPT2Config(vocab_size=vocab_size, n_positions=positions, **shape)).eval()


def write_run(folder: Path, model: Any, tokenizer: Any, recipe: dict) -> Path:
    """A run that was never trained: a recipe and a model."""
    save_model(folder / "model", model, tokenizer)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    return folder


def run_summary(**values: Any) -> dict[str, Any]:
    """The summary of a run that was never trained."""
    counts = ("parameters", "trained_parameters", "context", "steps", "tokens", "input_tokens", "target_tokens")
    known = dict.fromkeys((*counts, "seed"), 1) | dict.fromkeys(("flops", "seconds", "tokens_per_second"), 1.0)
    known |= {"name": "made up", "objective": "causal", "precision": "fp32", "validation_loss": None}
    return known | {"corpus": {"path": "nowhere", "fingerprint": "c0ffee"}, "fingerprints": {}} | values


def loss_rows(arms: Iterable[str], seeds: int, documents: Iterable[Any], tokens: int = 9) -> list[dict[str, Any]]:
    """Losses of arms on documents for ``decide``: the second arm loses 0.5 nats more on each, a later seed a ninth more."""
    return [
        {"arm": arm, "seed": seed, "document": document, "tokens": tokens, "nats": 20 + number + seed / 9 + place / 2}
        for place, arm in enumerate(arms)
        for seed in range(seeds)
        for number, document in enumerate(documents)
    ]


class Memory:
    """A corpus in memory, with what windows and objectives read of one."""

    def __init__(self, documents: Iterable[Any], end_of_text: int | None = 99) -> None:
        self.documents = [np.array(d, dtype=np.uint16) for d in documents]
        self.end_of_text, self.path, self.split, self.manifest = end_of_text, "memory", "train", {}
        self.lengths = np.array([len(d) for d in self.documents], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.documents)

    def document(self, index: int) -> Any:
        return self.documents[index]


def write_rows(path: Path, rows: Iterable[Any]) -> Path:
    """A file of JSON Lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
