"""The demo's corpus and run set: GPT-2, its parameter-matched form and ContextLM, on Python's own standard library."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from contextwise.base.errors import ConfigError
from contextwise.data import Corpus, prepare_corpus
from contextwise.experiments.run_set import Arm, RunSet, RunSetSettings

PROMPT = "def read(self, path):\n    "


@dataclass(frozen=True)
class DemoScale:
    """All the sizes of a demo.

    Attributes:
        documents: modules of the standard library that make the corpus, the first by name; None: all.
        held_out: share of the documents that no model is trained on.
        size: named size of the GPT-2 backbone.
        context: tokens of a training window.
        tokens: training tokens of each model.
        warmup_steps, evaluate_every: in steps of ``tokens_per_step`` tokens.
        validation_tokens: of the held-out text, for the curves; the table's losses are of all of it.
        timed_tokens: tokens of a text whose generation is timed.
    """

    documents: int | None
    held_out: float
    vocabulary: int
    size: str
    context: int
    tokens: int
    tokens_per_step: int
    learning_rate: float
    warmup_steps: int
    evaluate_every: int
    validation_tokens: int
    timed_tokens: int
    sample_tokens: int = 120


FULL = DemoScale(
    documents=None,
    held_out=0.1,
    vocabulary=4096,
    size="nano",
    context=256,
    tokens=1_048_576,
    tokens_per_step=4096,
    learning_rate=1.5e-3,
    warmup_steps=30,
    evaluate_every=50,
    validation_tokens=32_768,
    timed_tokens=128,
)
QUICK = dataclasses.replace(
    FULL,
    documents=160,
    held_out=0.1,
    tokens=81_920,
    tokens_per_step=2048,
    warmup_steps=15,  # with fewer, the steps right after the warm-up are unstable
    evaluate_every=10,
    validation_tokens=8_192,
    timed_tokens=64,
)

ARMS = {
    "gpt2": ["name=GPT-2"],
    "gpt2-plus-2": ["name=GPT-2 +2 layers (PM)", "model.extra_layers=2"],
    "contextlm": [
        "name=ContextLM",
        "model.context_predictor.chunk_size=4",
        "model.context_predictor.predictor_layers=2",
        "model.context_predictor.injection=gate",
    ],
}
"""Folder -> what sets the model apart: as it is, parameter-matched to ContextLM, and ContextLM."""


def demo_corpus(scale: DemoScale, path: Path) -> Corpus:
    """The training split of the corpus at ``path``, which is prepared if it does not exist.

    Raises:
        ConfigError: there is another corpus.
    """
    tokenizer = f"train:{scale.vocabulary}"
    if path.exists():
        corpus = Corpus.open(path, split="train")
    else:
        corpus = prepare_corpus(
            "stdlib", tokenizer, path, limit=scale.documents, validation=scale.held_out, reuse=True
        )
    manifest = corpus.manifest
    existing = (manifest["tokenizer"]["name"], manifest["limit"], manifest["split_shares"]["validation"])
    if existing != (tokenizer, scale.documents, scale.held_out):
        raise ConfigError(
            f"{path} holds another corpus than this; choose another folder with --out, or remove that one"
        )
    return corpus


def demo_runs(scale: DemoScale, out: Path, corpus: Path, seed: int) -> RunSet:
    """The demo's three runs, in folders of ``out`` that have the arms' names."""
    training = {
        "tokens": scale.tokens,
        "tokens_per_step": scale.tokens_per_step,
        "learning_rate": scale.learning_rate,
        "warmup_steps": scale.warmup_steps,
        "evaluate_every": scale.evaluate_every,
        "evaluation_tokens": scale.validation_tokens,
        "log_every": max(1, scale.evaluate_every // 10),
    }
    recipe = {
        "data": {"context": scale.context},
        "model": {"family": "gpt2", "size": scale.size},
        "training": training,
    }
    arms = {folder: Arm(settings=settings) for folder, settings in ARMS.items()}
    settings = RunSetSettings(recipe=recipe, arms=arms, seeds=[seed])
    return RunSet.of(settings, out, corpus=corpus, content_ids=False)
