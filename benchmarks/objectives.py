"""All pretraining objectives on the same text: what each reads, is asked, costs and reaches, as one table in Markdown.

``python -m benchmarks.objectives --corpus corpora/stdlib --out runs/objectives`` trains every recipe of
``recipes/objectives`` with ``contextwise train``'s own code (a finished run is not trained again), reads the ledger, evaluates
the decoders on the next token of the held-out documents, and keeps it all as JSON.
"""

import argparse
import dataclasses
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import publish
from contextwise.base.config import read_yaml
from contextwise.base.progress import say
from contextwise.comparison.compared_runs import evaluate_all
from contextwise.comparison.ledger import LedgerRow, ledger
from contextwise.data import Corpus
from contextwise.models.kinds import kind_of
from contextwise.models.loading import load_config
from contextwise.training import load_recipe, train

RECIPES = Path(__file__).parents[1] / "recipes" / "objectives"


def next_token_losses(runs: list[Path], corpus: Path) -> dict[str, dict[str, Any]]:
    """Held-out loss of the decoders among the runs, in nats a token with its interval, by the run's name."""
    decoders = [run for run in runs if kind_of(load_config(run)) == "decoder"]
    results = evaluate_all(decoders, Corpus.open(corpus, split="validation"))
    return {run.name: result.summary["loss"] for run, result in zip(decoders, results, strict=True)}


def table(rows: list[LedgerRow], next_token: dict[str, dict[str, Any]]) -> str:
    """The ledger in Markdown, a row an objective."""
    heads = ["objective", "model", "parameters", "read", "asked", "FLOPs", "nats a target", "next token"]
    lines = [f"| {' | '.join(heads)} |", "|---|---|" + "---:|" * 6]
    for row in rows:
        found = next_token.get(row.name)
        cells = [
            row.name,
            row.family,
            f"{row.parameters / 1e6:.2f}M",
            f"{row.input_tokens:,.0f}",
            f"{row.target_tokens:,.0f}",
            f"{row.flops:.2e}",
            f"{row.loss:.3f}",
            "" if found is None else f"{found['value']:.3f} [{found['low']:.3f}, {found['high']:.3f}]",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True, help="a prepared corpus")
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--name", default="objectives", help="of the result file")
    parser.add_argument(
        "--tokens", type=int, default=None, help="training tokens of each; the recipes' own, 1M, if not given"
    )
    parser.add_argument("--threads", type=int, default=None)
    options = parser.parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    settings = [f"data.corpus={options.corpus}"]
    if options.tokens:
        settings.append(f"training.tokens={options.tokens}")
    runs = []
    for file in sorted(RECIPES.glob("*.yaml")):
        if "scales" in read_yaml(file):  # an item of contextwise reproduce
            continue
        recipe = load_recipe(file, settings, options.out / file.stem)
        train(recipe)
        runs.append(recipe.folder)
    found = ledger([str(run) for run in runs])
    next_token = next_token_losses(runs, options.corpus)
    print(table(found.rows, next_token))
    rows = [dataclasses.asdict(row) for row in found.rows]
    path = publish(
        options.name,
        {"corpus": options.corpus.name, "rows": rows, "budgets": found.budgets, "next_token": next_token},
    )
    say(f"{path}")


if __name__ == "__main__":
    main()
