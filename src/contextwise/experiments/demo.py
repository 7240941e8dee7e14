"""The demo's corpus and run set: GPT-2, its parameter-matched form and ContextLM, on Python's own standard library."""

from dataclasses import dataclass
from pathlib import Path

from contextwise.base.errors import ConfigError
from contextwise.data import Corpus, prepare_corpus
from contextwise.experiments.run_set import FAST_TRAINING, Arm, RunSet, RunSetSettings

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
        evaluate_every: in steps of ``tokens_per_step`` tokens.
        evaluation_tokens: of the held-out text, for the curves; the table's losses are of all of it.
        timed_tokens: tokens of a text whose generation is timed.
    """

    documents: int | None = None
    held_out: float = 0.1
    vocabulary: int = 4096
    size: str = "nano"
    context: int = 256
    tokens: int = 1_048_576
    tokens_per_step: int = 4096
    evaluate_every: int = 50
    evaluation_tokens: int = 32_768
    timed_tokens: int = 128
    sample_tokens: int = 120


TRAINING = (
    "tokens",
    "tokens_per_step",
    "evaluate_every",
    "evaluation_tokens",
)
FULL = DemoScale()
QUICK = DemoScale(
    documents=160,
    tokens=81_920,
    tokens_per_step=2048,
    evaluate_every=10,
    evaluation_tokens=8_192,
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
    training = {name: getattr(scale, name) for name in TRAINING}
    recipe = {
        "data": {"context": scale.context},
        "model": {"family": "gpt2", "size": scale.size},
        "training": training | FAST_TRAINING | {"log_every": max(1, scale.evaluate_every // 10)},
    }
    arms = {folder: Arm(settings=settings) for folder, settings in ARMS.items()}
    settings = RunSetSettings(recipe=recipe, arms=arms, seeds=[seed])
    return RunSet.of(settings, out, corpus=corpus, content_ids=False)
