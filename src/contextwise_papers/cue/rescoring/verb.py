"""The verb ``contextwise model embed-contexts``."""

from pathlib import Path
from typing import Annotated, TypedDict

from typer import Argument

from contextwise.cli.common import AsJson, Device, Dtype, Model, Prints, show_json
from contextwise_papers.objectives.embedding.verb import Vectors, check_vectors, say_written


class ContextVectorsJson(TypedDict):
    """The vectors of ``embed-contexts``: float32, (vectors, width)."""

    path: Path
    vectors: int
    width: int


def embed_contexts(
    model: Model,
    file: Annotated[Path, Argument(help="JSON Lines of objects from context to value; .gz too.")],
    out: Vectors,
    dtype: Dtype = "auto",
    device: Device = "auto",
    as_json: Annotated[AsJson, Prints("contextwise_papers.cue.rescoring.verb:ContextVectorsJson")] = False,
) -> None:
    """Turn the contexts of each line into the vector e_cue of a CUE model, or of its context encoder."""
    check_vectors(out)
    from contextwise_papers.cue.rescoring.contexts import write_cue_vectors

    rows, width = write_cue_vectors(model, file, out, dtype=dtype, device=device)
    say_written(rows, width, "e_cue of contexts", out)
    if as_json:
        show_json(ContextVectorsJson(path=out, vectors=rows, width=width))
