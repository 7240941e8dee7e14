"""``contextwise entropy``: what a longer context does to a model's loss, and to the space of its features."""

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from contextwise.base.errors import ConfigError
from contextwise.cli.contextwise import contexts_of
from contextwise.cli.options import BatchTokens, Device, Dtype, Model, Split


def entropy(
    model: Model,
    corpus: Annotated[Path, typer.Option(help="A prepared corpus with long documents.", show_default=False)],
    contexts: Annotated[
        str,
        typer.Option(help="Visible tokens, with commas between; … goes on by the same factor."),
    ] = "16,32,…,256",
    split: Split = "validation",
    samples: Annotated[
        int, typer.Option(help="Tokens to predict, the same at each context; at least five for each channel.")
    ] = 10_000,
    layer: Annotated[
        str,
        typer.Option(
            help="Features: last is what the vocabulary head reads; or the number of a hidden state."
        ),
    ] = "last",
    uncentred: Annotated[
        bool, typer.Option("--uncentred", help="Scatter about the origin, not about the mean.")
    ] = False,
    density_samples: Annotated[
        int, typer.Option(help="Features kept on disk at each context, for the kernel density.")
    ] = 2_000,
    bandwidth: Annotated[
        float | None,
        typer.Option(
            help="Of the kernel density, in standard deviations; not given: Scott's.", show_default=False
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Draws the tokens.")] = 0,
    batch_tokens: BatchTokens = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder to write; not given: beside the run's evaluations.",
            show_default=False,
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(help="The page; not given: entropy.html in that folder.", show_default=False),
    ] = None,
    csv: Annotated[
        Path | None,
        typer.Option(help="Write the numbers of each figure as CSV into this folder.", show_default=False),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print losses, entropies, dimensions and fits as JSON.")
    ] = False,
) -> None:
    """Measure a model's loss and the spectrum of its features at several contexts.

    The same tokens are predicted from the nearest 16, 32, … tokens. From the
    covariance of the features: intrinsic entropy, intrinsic dimension, and how
    the loss goes with them. Stopped, the same command goes on where it was.
    """
    import sys

    from rich.console import Console

    from contextwise.analysis.density import check_bandwidth
    from contextwise.analysis.intrinsic import analyse
    from contextwise.base.config import validate
    from contextwise.data import Corpus
    from contextwise.evaluation.kernel import Subject, measure
    from contextwise.evaluation.measures.entropy import Entropy
    from contextwise.reports.entropy import terminal_report, write_csv, write_entropy_page

    if bandwidth is not None:
        check_bandwidth(bandwidth)
    if csv is not None and csv.exists() and not csv.is_dir():
        raise ConfigError(f"{csv} is a file; give a folder for the CSV files with --csv")
    if html is not None and html.is_dir():
        raise ConfigError(f"{html} is a folder; give the name of a file for the page with --html")
    settings = validate(
        Entropy,
        {
            "contexts": contexts_of(contexts),
            "samples": samples,
            "layer": _layer(layer),
            "centred": not uncentred,
            "density_samples": density_samples,
            "seed": seed,
        },
        "the command",
    )
    subject = Subject(model, dtype=dtype, device=device, batch_tokens=batch_tokens)
    measurement = measure(subject, settings, Corpus.open(corpus, split=split), out=out)
    found = analyse(measurement, bandwidth)
    printed = Console(highlight=False, stderr=as_json)
    if as_json:
        print(json.dumps(found.to_dict(), indent=2, ensure_ascii=False))
    else:
        printed.print(terminal_report(found))
    page = html or measurement.path / "entropy.html"
    write_entropy_page(found, page, ["contextwise", *sys.argv[1:]])
    printed.print(f"measurement: {measurement.path}", markup=False, soft_wrap=True)
    printed.print(f"page: {page}", markup=False, soft_wrap=True)
    if csv is not None:
        write_csv(found, csv)
        printed.print(f"CSV: {csv}", markup=False, soft_wrap=True)


def _layer(text: str) -> Literal["last"] | int:
    if text == "last":
        return "last"
    if text.isdecimal():
        return int(text)
    raise ConfigError(f"--layer is {text!r}, but must be last or the number of a hidden state, from 0")
