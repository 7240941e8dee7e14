"""The verb ``contextwise measure attention``."""

import os
import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from contextwise.cli.common import Device, Dtype, refuse_absent, show_line, show_values
from contextwise.settings import ConfigError, DataError


def attention(
    models: Annotated[
        list[str],
        Argument(help="One to four runs, Hugging Face model folders, or names on the Hub, with the same tokenizer."),
    ],
    text: Annotated[
        str, Option(help="The text in quotes, a file with it, or - (standard input); without one last line break.")
    ],
    out: Annotated[Path, Option(help="The page.")] = Path("attention.html"),
    as_json: Annotated[bool, Option("--json", help="Print the numbers as JSON, not a table.")] = False,
    dtype: Dtype = "auto",
    device: Device = "auto",
) -> None:
    """Show which tokens and chunks of a text one to four models attend to."""
    refuse_absent(*models)
    if out.is_dir():
        raise ConfigError(f"{out} is a folder; give the name of a file for the page with --out")
    # os.path.exists is false for what cannot be the name of a file, such as a long text; Path.exists may raise an error.
    if text != "-" and out.exists() and os.path.exists(text) and out.samefile(text):  # noqa: PTH110
        raise ConfigError(f"--out is {out}, the file with the text, which would be lost; give another name")
    words = _read_text(text)

    from contextwise.report import terminal
    from contextwise_papers.contextlm.attention import numbers, read_with_models, received_table, write_attention_page

    reading = read_with_models(models, words, dtype=dtype, device=device)
    write_attention_page(reading, out, ["contextwise", *sys.argv[1:]])
    show_values(numbers(reading), as_json, terminal(received_table(reading)))
    if not as_json:
        show_line(f"page: {out}")


def _read_text(source: str) -> str:
    """The text of a file or of standard input, less one last line break; the words themselves where they name no file."""
    name = "standard input" if source == "-" else source
    if len(source.split()) > 1 and not os.path.exists(source):  # noqa: PTH110
        return source
    try:
        content = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
        return content.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise DataError(f"{name} is no UTF-8 text (byte {error.start}); save it as UTF-8 and try again") from None
    except OSError as error:
        raise DataError(
            f"the text {name} cannot be read: {error.strerror}; give a file, or - for standard input"
        ) from None
