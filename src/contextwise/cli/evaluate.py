"""``contextwise evaluate``: loss, perplexities and bits per byte of a model on held-out documents."""

import json
from pathlib import Path
from typing import Annotated

import typer

from contextwise.base.progress import console


def evaluate(
    model: Annotated[
        str,
        typer.Argument(help="A run, a Hugging Face model folder, or a name on the Hub.", show_default=False),
    ],
    corpus: Annotated[Path, typer.Option("--corpus", help="A prepared corpus.", show_default=False)],
    split: Annotated[str, typer.Option(help="Which documents of the corpus.")] = "validation",
    context: Annotated[
        int | None,
        typer.Option(
            help="Tokens of a window; not given: the training context, else the model's, up to 1024.",
            show_default=False,
        ),
    ] = None,
    stride: Annotated[
        int | None,
        typer.Option(
            help="Between windows: each token is predicted from CONTEXT - STRIDE tokens at least, "
            "or from all that precede it; not given: half the context.",
            show_default=False,
        ),
    ] = None,
    limit_documents: Annotated[
        int | None, typer.Option(help="Score only the first N documents.", show_default=False)
    ] = None,
    batch_tokens: Annotated[
        int | None, typer.Option(help="Tokens of one forward pass; not given: 16384.", show_default=False)
    ] = None,
    dtype: Annotated[
        str, typer.Option(help="float32, bfloat16, float16; auto: float32 on the CPU, else as saved.")
    ] = "auto",
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …; auto: a GPU if there is one.")] = "auto",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder to write; not given: RUN/evaluation/CORPUS-SPLIT, or evaluation/MODEL/CORPUS-SPLIT.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Score every token of held-out documents.

    Prints loss, perplexities and bits per byte with 95% intervals over
    documents, and writes them with the loss of each document and each token.
    """
    from rich.console import Console

    from contextwise.data import Corpus
    from contextwise.evaluation.evaluator import evaluate_model, trained_on
    from contextwise.evaluation.tables import evaluation_heading, evaluation_table
    from contextwise.training.signals import StopRequest

    documents = Corpus.open(corpus, split=split)
    with StopRequest().listening() as stop:
        evaluation = evaluate_model(
            model,
            documents,
            context=context,
            stride=stride,
            limit_documents=limit_documents,
            batch_tokens=batch_tokens,
            dtype=dtype,
            device=device,
            out=out,
            should_stop=lambda: bool(stop),
        )
    if trained_on(model, documents):
        console.print(
            "note: the run was trained on these very documents; they are not held out", soft_wrap=True
        )
    if as_json:
        print(json.dumps(evaluation.summary, indent=2, ensure_ascii=False))
        return
    printed = Console(highlight=False)
    printed.print(evaluation_heading(evaluation.summary))
    printed.print(evaluation_table(evaluation.summary))
    printed.print(f"written to {evaluation.path}/", markup=False, soft_wrap=True)
