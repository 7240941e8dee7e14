"""Options that several commands have, said once."""

from typing import Annotated

import typer

Model = Annotated[
    str, typer.Argument(help="A run, a Hugging Face model folder, or a name on the Hub.", show_default=False)
]
Split = Annotated[str, typer.Option(help="Which documents of the corpus.")]
BatchTokens = Annotated[
    int | None, typer.Option(help="Tokens of one forward pass; not given: 16384.", show_default=False)
]
Dtype = Annotated[
    str, typer.Option(help="float32, bfloat16, float16; auto: float32 on the CPU, else as saved.")
]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …; auto: a GPU if there is one.")]
