"""Held-out loss of ContextLM against its baselines: several seeds, the same batches, equal tokens and equal time.

Trains, with ``contextwise train``'s own code, each model of ``--models`` for each seed; evaluates all on the held-out
documents; prints the paired differences and keeps them as JSON. A run that is finished is not trained again. `described` says
how a model is named; ``NAME@RATIO`` gets RATIO times the tokens of the others: with the measured ratio of the training
throughputs (see ``benchmarks.context_predictor``) both have had the same training time.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks.harness import publish
from contextwise.base.progress import say
from contextwise.base.runs import RunFolder
from contextwise.comparison.compared_runs import evaluate_all
from contextwise.comparison.comparison import compare
from contextwise.comparison.tables import comparison_tables
from contextwise.data import Corpus
from contextwise.models.contextlm.injection import INJECTIONS
from contextwise.models.contextlm.pooling import POOLINGS
from contextwise.training import Recipe, train


def described(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a model's name says: its ``model`` settings, and its ``training`` settings where they differ from the others'.

    ``gpt2``, ``pm`` (two more layers) or ``contextlm``; behind it, each with a dash, ``every`` (injected before every layer),
    ``wN`` (chunks of N tokens), ``pN`` (N predictor layers), ``lN`` (injected behind N layers), ``warmN`` (N warm-up
    steps), or a form of the injection or of the pooling: ``contextlm-every-norm_gate-w2``.
    """
    kind, *options = name.split("-")
    model: dict[str, Any] = {"pm": {"extra_layers": 2}, "gpt2": {}, "contextlm": {}}[kind]
    predictor: dict[str, Any] = {"chunk_size": 4, "predictor_layers": 2}
    training: dict[str, Any] = {}
    for option in options:
        letters, number = option.rstrip("0123456789"), option.lstrip("abcdefghijklmnopqrstuvwxyz_")
        if option in INJECTIONS:
            predictor["injection"] = option
        elif option in POOLINGS:
            predictor["pooling"] = option
        elif option == "every":
            predictor["inject_every_layer"] = True
        elif letters == "warm":
            training["warmup_steps"] = int(number)
        else:
            predictor[{"w": "chunk_size", "p": "predictor_layers", "l": "injection_layer"}[letters]] = int(
                number
            )
    return ({**model, "context_predictor": predictor} if kind == "contextlm" else model), training


def recipe(options: argparse.Namespace, name: str, seed: int) -> Recipe:
    """One run; all models of a seed read the same windows in the same order."""
    described_as, _, ratio = name.partition("@")
    model, training = described(described_as)
    step = options.tokens_per_step
    tokens = round(options.tokens * float(ratio or 1) / step) * step
    return Recipe.model_validate(
        {
            "name": name,
            "seed": seed,
            "data": {"corpus": str(options.corpus), "context": options.context},
            "model": {"family": options.family, "size": options.size, **model},
            "training": {
                "tokens": tokens,
                "tokens_per_step": step,
                "learning_rate": options.learning_rate,
                "precision": options.precision,
                "warmup_steps": options.warmup_steps,
                "evaluate_every": max(1, tokens // step // 16),
                "evaluation_tokens": 32_768,
                "save_every": 200,
                "keep_checkpoints": 1,
                **training,
            },
            "output": str(options.out / f"{name}-seed{seed}"),
        }
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True, help="a prepared corpus")
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--name", required=True, help="of the result file")
    parser.add_argument("--models", nargs="+", default=["pm", "gpt2", "contextlm"])
    parser.add_argument(
        "--references", nargs="+", help="models to compare the others to; the first, if not given"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--family", default="gpt2")
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
    results = evaluate_all(sources, held_out, limit=options.limit_documents)
    comparisons = {}
    for reference in options.references or options.models[:1]:
        comparison = compare(sources, results=results, reference=reference)
        Console(highlight=False).print(comparison_tables(comparison))
        comparisons[reference] = comparison.to_dict()
        comparisons[reference]["corpus"]["path"] = options.corpus.name
        for group in comparisons[reference]["groups"]:
            group["sources"] = [Path(source).name for source in group["sources"]]
    settings = {
        name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()
    }
    settings["corpus"], settings["out"] = options.corpus.name, options.out.name
    curves = {model: {} for model in options.models}  # type: dict[str, dict[int, list[tuple[int, float]]]]
    for one in recipes:
        rows = RunFolder(one.folder).metrics("validation")
        curves[one.name][one.seed] = [(row["tokens"], round(row["loss"], 4)) for row in rows]
    path = publish(
        options.name, {"settings": settings, "comparisons": comparisons, "validation_curves": curves}
    )
    say(f"{path}")


if __name__ == "__main__":
    main()
