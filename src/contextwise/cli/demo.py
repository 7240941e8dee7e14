"""``contextwise demo``: from nothing to a page that says which of three models is better."""

import dataclasses
import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from contextwise.base.errors import ConfigError
from contextwise.base.progress import console

if TYPE_CHECKING:
    from contextwise.comparison.comparison import Comparison
    from contextwise.data import Corpus

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

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT-2", {}),
    "gpt2-plus-2": ("GPT-2 +2 layers (PM)", {"extra_layers": 2}),
    "contextlm": (
        "ContextLM",
        {"context_predictor": {"chunk_size": 4, "predictor_layers": 2, "injection": "gate"}},
    ),
}
"""Folder -> name, and what sets the model apart: as it is, parameter-matched to ContextLM, and ContextLM."""


def demo(
    quick: Annotated[
        bool, typer.Option("--quick", help="A smaller corpus and fewer steps: about a minute.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for corpus, runs and page; runs/demo if not given.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the weights and of the order of the data.")] = 0,
) -> None:
    """Train three small models on real text, and see which is better, by how much, at what cost.

    The text is the source of Python's own standard library. The same command again goes on where it was
    stopped.
    """
    started = time.monotonic()
    scale = QUICK if quick else FULL
    command = f"contextwise demo{' --quick' * quick}{f' --seed {seed}' * bool(seed)}"
    if out is None:
        # Scales and seeds do not mix in one folder: a corpus or a run that is there is used again.
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


def run_demo(scale: DemoScale, out: Path, seed: int, command: str) -> Path:
    """Everything that the demo does; what an earlier call with the same settings finished is used as it is.

    Args:
        command: what a reader of the page types to do it again.

    Returns:
        The page.

    Raises:
        ConfigError, DataError: ``out`` holds something else, or cannot be written to.
    """
    from contextwise.comparison.compared_runs import evaluate_all
    from contextwise.comparison.comparison import compare
    from contextwise.data import Corpus
    from contextwise.evaluation.generation import Sampling, sample_runs, time_runs
    from contextwise.reports import write_report
    from contextwise.training import train

    _say("1/4 the corpus: the source of Python's standard library")
    corpus = _corpus(scale, out / "corpus")
    _say(f"2/4 three models, trained on the same {scale.tokens:,} tokens in the same order")
    runs = [train(_recipe(scale, corpus, out / folder, seed, *model)) for folder, model in MODELS.items()]
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


def _corpus(scale: DemoScale, path: Path) -> "Corpus":
    """The corpus at ``path``, made if it is not there.

    Raises:
        ConfigError: there is another one.
    """
    from contextwise.data import Corpus, prepare_corpus

    tokenizer = f"train:{scale.vocabulary}"
    if path.exists():
        corpus = Corpus.open(path, split="train")
    else:
        corpus = prepare_corpus(
            "stdlib", tokenizer, path, limit=scale.documents, validation=scale.held_out, reuse=True
        )
    there = corpus.manifest
    made = (there["tokenizer"]["name"], there["limit"], there["split_shares"]["validation"])
    if made != (tokenizer, scale.documents, scale.held_out):
        raise ConfigError(
            f"{path} holds another corpus than this; choose another folder with --out, or remove that one"
        )
    return corpus


def _recipe(
    scale: DemoScale, corpus: "Corpus", folder: Path, seed: int, name: str, model: dict[str, Any]
) -> Any:
    from contextwise.training import Recipe

    return Recipe.model_validate(
        {
            "name": name,
            "seed": seed,
            "data": {"corpus": str(corpus.path), "context": scale.context},
            "model": {"family": "gpt2", "size": scale.size, **model},
            "training": {
                "tokens": scale.tokens,
                "tokens_per_step": scale.tokens_per_step,
                "learning_rate": scale.learning_rate,
                "warmup_steps": scale.warmup_steps,
                "evaluate_every": scale.evaluate_every,
                "evaluation_tokens": scale.validation_tokens,
                "log_every": max(1, scale.evaluate_every // 10),
            },
            "output": str(folder),
        }
    )


def _print(comparison: "Comparison") -> None:
    """The table, and the verdict in words."""
    from contextwise.comparison.tables import comparison_tables
    from contextwise.reports import verdict

    printed = Console(highlight=False)
    table_alone = dataclasses.replace(comparison, differences=[], budgets=[], notes=[])
    printed.print(comparison_tables(table_alone))
    for paragraph in [*verdict(comparison), *comparison.notes]:
        printed.print(paragraph, markup=False)
