"""Options that several commands have, said once."""

from pathlib import Path
from typing import Annotated

import typer

from contextwise.base.errors import ConfigError

Model = Annotated[
    str, typer.Argument(help="A run, a Hugging Face model folder, or a name on the Hub.", show_default=False)
]
Split = Annotated[str, typer.Option(help="Which documents of the corpus.")]
BatchTokens = Annotated[int, typer.Option(help="Tokens of one forward pass.")]
Dtype = Annotated[
    str, typer.Option(help="float32, bfloat16, float16; auto: float32 on the CPU, else as saved.")
]
Out = Annotated[
    Path | None,
    typer.Option(help="Folder of the result.", show_default="with the run's evaluations"),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace another result in --out.")]
Corpus = Annotated[Path, typer.Option(help="A prepared corpus.", show_default=False)]
Limit = Annotated[int | None, typer.Option(min=1, help="Only the first N documents.", show_default=False)]
Context = Annotated[
    int | None,
    typer.Option(
        help="Tokens that the model sees.", show_default="the training context, else the model's, up to 1024"
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")]
Chat = Annotated[bool, typer.Option("--chat", help="Ask through the model's chat template.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …; auto: a GPU if there is one.")]


def numbers(text: str, name: str, example: str) -> tuple[int, ...]:
    """Whole numbers with commas between.

    Args:
        name: of the option that ``text`` was given for.

    Raises:
        ConfigError: something else.
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(
            f"{name} is {text!r}; give whole numbers with commas between, such as {example}"
        ) from None
