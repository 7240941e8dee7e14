"""``contextwise prepare``: text to a corpus."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from contextwise.base.progress import console

if TYPE_CHECKING:
    from contextwise.data import Corpus


def prepare(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help="JSON Lines (.jsonl, .jsonl.gz), Parquet or text files, folders or patterns of them, "
            "a Hugging Face dataset (folder, or Hub name, name:config or name:config:split), or stdlib. "
            "train=SOURCE test=SOURCE names the split of each, in place of shares. "
            "alpaca:SOURCE holds instructions, to be formatted.",
            show_default=False,
        ),
    ],
    tokenizer: Annotated[
        str,
        typer.Option(
            help="A tokenizer's folder or Hub name, train:N (learn a byte-level BPE of N tokens), or bytes.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder to write the corpus to.", show_default=False)],
    text_field: Annotated[str, typer.Option(help="Field or column that holds the text.")] = "text",
    limit: Annotated[
        int | None,
        typer.Option(help="Take at most so many documents (of each named split).", show_default=False),
    ] = None,
    validation: Annotated[
        float | None,
        typer.Option(help="Share of the documents held out for validation.", show_default="0.05"),
    ] = None,
    test: Annotated[
        float | None,
        typer.Option(help="Share of the documents held out for testing.", show_default="0"),
    ] = None,
    end_of_text: Annotated[
        str | None,
        typer.Option(help="Token that ends a document, if the tokenizer names none.", show_default=False),
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out bad records, and count them.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the corpus at --out.")] = False,
) -> None:
    """Tokenize text into a corpus: documents, split by their content, with their metadata."""
    from contextwise.data import prepare_corpus

    started = time.perf_counter()
    corpus = prepare_corpus(
        sources,
        tokenizer,
        out,
        text_field=text_field,
        limit=limit,
        validation=validation,
        test=test,
        end_of_text=end_of_text,
        skip_bad=skip_bad,
        overwrite=overwrite,
    )
    _report(corpus, time.perf_counter() - started)


def _report(corpus: "Corpus", seconds: float) -> None:
    """The table of what was written, and how fast."""
    table = Table()
    for name in ("split", "documents", "tokens", "bytes", "bytes/token"):
        table.add_column(name, justify="left" if name == "split" else "right")
    manifest = corpus.manifest
    for name, split in manifest["splits"].items():
        counts = [f"{split[key]:,}" for key in ("documents", "tokens", "bytes")]
        table.add_row(name, *counts, f"{split['bytes'] / split['tokens']:.2f}")
    console.print(table)
    megabytes = sum(split["bytes"] for split in manifest["splits"].values()) / 1e6
    console.print(
        f"vocabulary {corpus.vocab_size:,} ({manifest['tokenizer']['name']}), {manifest['dtype']}; "
        f"{megabytes:.1f} MB in {seconds:.1f} s: {megabytes / seconds:.1f} MB/s",
        markup=False,
    )
    skipped = manifest["skipped"]
    if skipped["bad"] or skipped["empty"]:
        console.print(f"left out: {skipped['bad']:,} bad records, {skipped['empty']:,} empty texts")
    if manifest["columns_as_json"]:
        console.print(f"kept as JSON text: {', '.join(manifest['columns_as_json'])}", markup=False)
    console.print(f"corpus: {corpus.path}", markup=False, soft_wrap=True)
