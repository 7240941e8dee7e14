"""Held-out loss of ContextLM against its baselines: several seeds, the same batches, equal tokens and equal time.

``python -m benchmarks.quality benchmarks/injections.yaml --corpus corpora/stdlib --out runs --name NAME`` trains the run
set of the file (a shared recipe, arms with settings of their own, seeds), evaluates all runs on the held-out documents, prints
the paired differences and keeps them as JSON. A run that is finished is not trained again. For a comparison at equal time an
arm gets as many tokens as the measured ratio of the training speeds allows (``benchmarks.context_predictor``).
"""

import argparse
from pathlib import Path

import torch
from rich.console import Console

from benchmarks.harness import publish
from contextwise.base.config import read_yaml, validate, with_overrides
from contextwise.base.progress import say
from contextwise.comparison.compared_runs import evaluate_all
from contextwise.comparison.comparison import compare
from contextwise.comparison.tables import comparison_tables
from contextwise.data import Corpus
from contextwise.experiments.run_set import RunSet, RunSetSettings


def read_settings(path: Path, overrides: list[str]) -> RunSetSettings:
    """The run set of a file; ``overrides`` such as ``recipe.training.tokens=1310720`` or ``seeds=[0]`` go before the file's."""
    return validate(RunSetSettings, with_overrides(read_yaml(path), overrides), f"the run set {path}")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("settings", type=Path, help="a YAML file with recipe, arms and seeds")
    parser.add_argument("--set", action="append", default=[], help="a setting before the file's; repeatable")
    parser.add_argument("--corpus", type=Path, required=True, help="a prepared corpus")
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--name", required=True, help="of the result file")
    parser.add_argument("--references", nargs="+", help="arms to compare the others to; the first, if not given")
    parser.add_argument("--limit-documents", type=int, default=None)
    parser.add_argument("--threads", type=int, default=None)
    options = parser.parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    settings = read_settings(options.settings, options.set)
    run_set = RunSet.of(settings, options.out, corpus=options.corpus)
    run_set.train_missing()
    runs = {arm: run_set.folders(arm) for arm in settings.arms}
    sources = [str(run.path) for folders in runs.values() for run in folders]
    held_out = Corpus.open(options.corpus, split="validation")
    results = evaluate_all(sources, held_out, limit=options.limit_documents)
    comparisons = {}
    for reference in options.references or list(settings.arms)[:1]:
        comparison = compare(sources, results=results, reference=reference)
        Console(highlight=False).print(comparison_tables(comparison))
        comparisons[reference] = comparison.to_dict()
        comparisons[reference]["corpus"]["path"] = options.corpus.name
        for group in comparisons[reference]["groups"]:
            group["sources"] = [Path(source).name for source in group["sources"]]
    curves = {
        arm: {
            run.summary()["seed"]: [(row["tokens"], round(row["loss"], 4)) for row in run.metrics("validation")]
            for run in folders
        }
        for arm, folders in runs.items()
    }
    kept = {
        "corpus": options.corpus.name,
        "limit_documents": options.limit_documents,
        **settings.model_dump(mode="json"),
    }
    path = publish(options.name, {"settings": kept, "comparisons": comparisons, "validation_curves": curves})
    say(f"{path}")


if __name__ == "__main__":
    main()
