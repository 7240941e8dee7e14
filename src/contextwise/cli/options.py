"""Options that several commands have, said once."""

from pathlib import Path
from typing import Annotated

import typer

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
AsJson = Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …; auto: a GPU if there is one.")]
