"""Held-out loss of ContextLM against its baselines: several seeds, the same batches, equal tokens and equal time.

Trains, with ``contextwise train``'s own code, each model of ``--models`` for each seed; evaluates all on the held-out
documents; prints the paired differences and keeps them as JSON. A run that is finished is not trained again. A model named
``NAME@RATIO`` gets RATIO times the tokens of the others: with the measured ratio of the training throughputs (see
``benchmarks.context_predictor``) both have had the same training time.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks.harness import publish
from contextwise.base.progress import say
from contextwise.data import Corpus
from contextwise.evaluation import compare, evaluate_missing
from contextwise.evaluation.tables import comparison_tables
from contextwise.training import Recipe, train

PREDICTOR = {"chunk_size": 4, "predictor_layers": 2}
MODELS: dict[str, dict[str, Any]] = {
    "pm": {"extra_layers": 2},
    "gpt2": {},
    "contextlm": {"context_predictor": PREDICTOR},
    "contextlm-every": {"context_predictor": {**PREDICTOR, "inject_every_layer": True}},
    "contextlm-add": {"context_predictor": {**PREDICTOR, "injection": "add"}},
}


def recipe(options: argparse.Namespace, model: str, seed: int) -> Recipe:
    """One run; all models of a seed read the same windows in the same order."""
    kind, _, ratio = model.partition("@")
    step = options.tokens_per_step
    tokens = round(options.tokens * float(ratio or 1) / step) * step
    return Recipe.model_validate(
        {
            "name": model,
            "seed": seed,
            "data": {"corpus": str(options.corpus), "context": options.context},
            "model": {"family": "gpt2", "size": options.size, **MODELS[kind]},
            "training": {
                "tokens": tokens,
                "tokens_per_step": step,
                "learning_rate": options.learning_rate,
                "precision": options.precision,
                "warmup_steps": options.warmup_steps,
                "evaluate_every": max(1, tokens // step // 8),
                "evaluation_tokens": 32_768,
                "save_every": 200,
                "keep_checkpoints": 1,
            },
            "output": str(options.out / f"{model}-seed{seed}"),
        }
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True, help="a prepared corpus")
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--name", required=True, help="of the result file")
    parser.add_argument("--models", nargs="+", default=["pm", "gpt2", "contextlm"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--size", default="nano")
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=1_310_720)
    parser.add_argument("--tokens-per-step", type=int, default=4096)
    parser.add_argument("--learning-rate", type=float, default=None)
    parser.add_argument("--warmup-steps", type=int, default=30)
    parser.add_argument("--limit-documents", type=int, default=None)
    parser.add_argument("--precision", choices=["auto", "fp32", "bf16"], default="auto")
    parser.add_argument("--threads", type=int, default=None)
    options = parser.parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    # Seed by seed, so that an unfinished grid has whole seeds.
    recipes = [recipe(options, model, seed) for seed in options.seeds for model in options.models]
    for one in recipes:
        train(one)
    sources = [str(one.folder) for one in sorted(recipes, key=lambda one: options.models.index(one.name))]
    held_out = Corpus.open(options.corpus, split="validation")
    label = evaluate_missing(sources, held_out, limit_documents=options.limit_documents)
    comparison = compare(sources, label=label, reference=options.models[0], all_pairs=True)
    Console(highlight=False).print(comparison_tables(comparison))
    settings = {
        name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()
    }
    settings["corpus"], settings["out"] = options.corpus.name, options.out.name
    path = publish(options.name, {"settings": settings, "comparison": comparison.to_dict()})
    say(f"{path}")


if __name__ == "__main__":
    main()
