"""``contextwise demo``: from nothing to a page that says which of three models is better."""

import dataclasses
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from contextwise.base.progress import console

if TYPE_CHECKING:
    from contextwise.comparison.comparison import Comparison
    from contextwise.experiments.demo import DemoScale


def demo(
    quick: Annotated[
        bool, typer.Option("--quick", help="A smaller corpus and fewer steps: about a minute.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for corpus, runs and page.", show_default="runs/demo"),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the weights and of the order of the data.")] = 0,
) -> None:
    """Train three small models on real text, and see which is better, by how much, at what cost.

    The text is the source of Python's own standard library. Run the same command again to resume.
    """
    from contextwise.experiments.demo import FULL, QUICK

    started = time.monotonic()
    scale = QUICK if quick else FULL
    command = f"contextwise demo{' --quick' * quick}{f' --seed {seed}' * bool(seed)}"
    if out is None:
        # A folder for each scale and seed: what has finished in it is used again.
        out = Path("runs/demo" + "-quick" * quick + f"-seed{seed}" * bool(seed))
    else:
        command += f" --out {shlex.quote(str(out))}"
    page = run_demo(scale, out, seed, command)
    console.print(
        f"{(time.monotonic() - started) / 60:.1f} minutes; runs and corpus: {out}/",
        markup=False,
        soft_wrap=True,
    )
    Console(highlight=False).print(f"page: {page}", markup=False, soft_wrap=True)


def run_demo(scale: "DemoScale", out: Path, seed: int, command: str) -> Path:
    """Prepare, train, evaluate and compare; what an earlier call with the same settings finished is used again.

    Args:
        command: what a reader of the page types to repeat it.

    Returns:
        The page.

    Raises:
        ConfigError, DataError: ``out`` holds something else, or cannot be written to.
    """
    from contextwise.base.runs import RunFolder
    from contextwise.comparison.compared_runs import evaluate_all
    from contextwise.comparison.comparison import compare
    from contextwise.data import Corpus
    from contextwise.evaluation.generation import Sampling, sample_runs, time_runs
    from contextwise.experiments.demo import PROMPT, demo_corpus, demo_runs
    from contextwise.reports.runs import write_report

    _say("1/4 the corpus: the source of Python's standard library")
    corpus = demo_corpus(scale, out / "corpus")
    _say(f"2/4 three models, trained on the same {scale.tokens:,} tokens in the same order")
    run_set = demo_runs(scale, out, corpus.path, seed)
    run_set.train_missing()
    runs = [RunFolder(run.folder) for run in run_set.runs]
    sources = [str(run.path) for run in runs]
    _say("3/4 their loss on documents that none of them has seen")
    results = evaluate_all(sources, Corpus.open(corpus.path, split="validation"))
    _say("4/4 the time of a generated token, and a text of each")
    time_runs(runs, new_tokens=scale.timed_tokens)
    sample_runs(runs, PROMPT, scale.sample_tokens, Sampling(seed=seed))
    comparison = compare(sources, results=results, all_pairs=True)
    page = out / "report.html"
    write_report(
        runs,
        page,
        comparison,
        title="Contextwise: three models on Python's standard library",
        command=command,
    )
    _print(comparison)
    return page


def _say(text: str) -> None:
    console.print(text, style="bold", markup=False)


def _print(comparison: "Comparison") -> None:
    """The table, and the verdict in words."""
    from contextwise.comparison.tables import comparison_tables
    from contextwise.comparison.verdict import verdict

    printed = Console(highlight=False)
    table_alone = dataclasses.replace(comparison, differences=[], budgets=[], notes=[])
    printed.print(comparison_tables(table_alone))
    for paragraph in [*verdict(comparison), *comparison.notes]:
        printed.print(paragraph, markup=False)
