"""``contextwise attention``: which tokens models attend to, and where predicting the context helped."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from contextwise.base.errors import ConfigError, DataError
from contextwise.cli.options import Device, Dtype


def attention(
    models: Annotated[
        list[str],
        typer.Argument(
            help="One to three runs, Hugging Face model folders, or names on the Hub, with the same tokenizer.",
            show_default=False,
        ),
    ],
    text: Annotated[
        str,
        typer.Option(
            help="File with the text; - is standard input. One last line break is left out.",
            show_default=False,
        ),
    ],
    context_chunk: Annotated[
        int | None,
        typer.Option(
            help="Tokens of a chunk in which attention is summed.",
            show_default="the ContextLM's, else 4",
        ),
    ] = None,
    start: Annotated[
        bool,
        typer.Option(
            "--start/--no-start",
            help="The token that begins a document before the text, as in training.",
        ),
    ] = True,
    out: Annotated[Path, typer.Option(help="The page.")] = Path("attention.html"),
    csv: Annotated[
        Path | None,
        typer.Option(
            help="Write tokens.csv and attention.csv (each layer and head) into this folder.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON, not a table.")] = False,
    dtype: Dtype = "auto",
    device: Device = "auto",
) -> None:
    """Show which tokens a model attends to, and where predicting the context helped.

    One page: the text coloured by the attention that each token receives, for
    one to three models side by side, by layer and head, and in bars by chunk.
    For a ContextLM also the context lens: the loss of each token without the
    predicted context, less the loss with it.
    """
    if out.is_dir():
        raise ConfigError(f"{out} is a folder; give the name of a file for the page with --out")
    if csv is not None and csv.exists() and not csv.is_dir():
        raise ConfigError(f"{csv} is a file; give a folder for the CSV files with --csv")
    if text != "-" and out.exists() and Path(text).exists() and out.samefile(text):
        raise ConfigError(f"--out is {out}, the file with the text, which would be lost; give another name")
    words = _read(text)

    from rich.console import Console

    from contextwise.evaluation.attention import read_with_models
    from contextwise.reports.attention import numbers, terminal_report, write_attention_page, write_csv

    reading = read_with_models(
        models, words, context_chunk=context_chunk, start=start, dtype=dtype, device=device
    )
    write_attention_page(reading, out, ["contextwise", *sys.argv[1:]])
    if csv is not None:
        write_csv(reading, csv)
    if as_json:
        print(json.dumps(numbers(reading), indent=2, ensure_ascii=False, allow_nan=False))
        return
    printed = Console(highlight=False)
    printed.print(terminal_report(reading))
    printed.print(f"page: {out}", markup=False, soft_wrap=True)
    if csv is not None:
        printed.print(f"CSV: {csv}", markup=False, soft_wrap=True)


def _read(text: str) -> str:
    """The text of a file or of standard input, less one last line break.

    Raises:
        DataError: there is no such file, or it is no UTF-8 text.
    """
    where = "standard input" if text == "-" else text
    try:
        content = sys.stdin.buffer.read() if text == "-" else Path(text).read_bytes()
        return content.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where} is no UTF-8 text (byte {error.start}); save it as UTF-8 and try again"
        ) from None
    except OSError as error:
        raise DataError(
            f"the text {where} cannot be read: {error.strerror}; give a file, or - for standard input"
        ) from None
