"""All pretraining objectives on the same text: what each reads, is asked, costs and reaches, as one table in Markdown.

``python -m benchmarks.objectives --corpus corpora/stdlib --out runs/objectives`` trains a run set whose arms are the recipes of
the document ``objectives`` (a finished run is not trained again), lists them side by side, evaluates the decoders on the next
token of the held-out documents, and keeps it all as JSON.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.harness import publish
from contextwise.base.config import read_yaml
from contextwise.base.progress import say
from contextwise.base.runs import RunFolder, measured_on
from contextwise.comparison.compared_runs import evaluate_all
from contextwise.data import Corpus
from contextwise.experiments.run_set import Arm, RunSet, RunSetSettings
from contextwise.models.loading import kind_of, load_config
from contextwise_papers.item import RECIPES

OBJECTIVES = RECIPES / "objectives"


def side_by_side(runs: Mapping[str, RunFolder]) -> dict[str, Any]:
    """Of each run, per step, the tokens read (padding left out; an encoder-decoder's targets included), the tokens that counted
    in the loss, and operations; its own loss at the end, nats per target on the validation split, and ``at`` the budgets at
    which the run that took least ``tokens`` of text, or ``flops``, ends; None where it had not validated yet.

    A nat per target under one objective is not a nat under another: a masked token is predicted from both sides, a suffix from
    the text before it. So there are no differences.
    """
    summaries = {name: run.summary() for name, run in runs.items()}
    budgets = {kind: min(summary[kind] for summary in summaries.values()) for kind in ("tokens", "flops")}
    rows = []
    for name, run in runs.items():
        summary, model, at = summaries[name], run.recipe()["model"], {}
        validations = run.metrics("validation")
        for kind, budget in budgets.items():
            spent, losses = ([row[key] for row in validations] for key in (kind, "loss"))
            at[kind] = float(np.interp(budget, spent, losses)) if spent and spent[0] <= budget else None
        rows.append(
            {
                "name": name,
                **{key: summary[key] for key in ("objective", "parameters", "steps")},
                "family": model.get("pretrained") or model["family"],
                **{key: summary[key] / summary["steps"] for key in ("input_tokens", "target_tokens", "flops")},
                "loss": summary["validation_loss"],
                "validated_on": measured_on(run.recipe(), summary.get("validation_examples")).strip(),
                "at": at,
            }
        )
    return {"rows": rows, "budgets": budgets}


def next_token_losses(runs: Mapping[str, Path], corpus: Path) -> dict[str, dict[str, Any]]:
    """Held-out loss of the decoders among the runs, in nats a token with its interval, by the run's name."""
    decoders = {name: run for name, run in runs.items() if kind_of(load_config(run)) == "decoder"}
    results = evaluate_all([*decoders.values()], Corpus.open(corpus, split="validation"))
    return {name: result.summary["loss"] for name, result in zip(decoders, results, strict=True)}


def table(rows: Sequence[Mapping[str, Any]], next_token: dict[str, dict[str, Any]]) -> str:
    """The objectives side by side in Markdown, a row an objective."""
    heads = ["objective", "model", "parameters", "read", "asked", "FLOPs", "nats a target", "next token"]
    lines = [f"| {' | '.join(heads)} |", "|---|---|" + "---:|" * 6]
    for row in rows:
        loss = next_token.get(row["name"])
        cells = [
            row["name"],
            row["family"],
            f"{row['parameters'] / 1e6:.2f}M",
            f"{row['input_tokens']:,.0f}",
            f"{row['target_tokens']:,.0f}",
            f"{row['flops']:.2e}",
            f"{row['loss']:.3f}",
            "" if loss is None else f"{loss['value']:.3f} [{loss['low']:.3f}, {loss['high']:.3f}]",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True, help="a prepared corpus")
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--name", default="objectives", help="of the result file")
    parser.add_argument("--tokens", type=int, default=1_000_000, help="training tokens of each")
    parser.add_argument("--threads", type=int, default=None)
    options = parser.parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    recipes = {file.stem: read_yaml(file) for file in sorted(OBJECTIVES.glob("*.yaml"))}
    arms = {
        name: Arm(
            recipe={**recipe, "data": {**recipe["data"], "corpus": str(options.corpus)}},
            settings=[f"training.tokens={options.tokens}"],
        )
        for name, recipe in recipes.items()
        if "scales" not in recipe  # an item of contextwise reproduce
    }
    run_set = RunSet.of(RunSetSettings(arms=arms), options.out)
    run_set.train_missing()
    runs = {run.arm: run.folder for run in run_set.runs}
    costs = side_by_side({name: RunFolder(run) for name, run in runs.items()})
    next_token = next_token_losses(runs, options.corpus)
    print(table(costs["rows"], next_token))
    path = publish(options.name, {"corpus": options.corpus.name, **costs, "next_token": next_token})
    say(f"{path}")


if __name__ == "__main__":
    main()
