"""The verb ``contextwise model embed-contexts``."""

from pathlib import Path
from typing import Annotated

from typer import Argument

from contextwise.cli.common import AsJson, Device, Dtype, Model, Prints
from contextwise_papers.objectives.verbs import Vectors, check_vectors, report_vectors


def embed_contexts(
    model: Model,
    file: Annotated[Path, Argument(help="JSON Lines of objects from context to value; .gz too.")],
    out: Vectors,
    dtype: Dtype = "auto",
    device: Device = "auto",
    as_json: Annotated[AsJson, Prints("contextwise_papers.objectives.verbs:VectorsJson")] = False,
) -> None:
    """Turn the contexts of each line into the vector e_cue of a CUE model, or of its context encoder."""
    check_vectors(out)
    from contextwise_papers.cue.rescoring.contexts import write_cue_vectors

    shape = write_cue_vectors(model, file, out, dtype=dtype, device=device)
    report_vectors(out, shape, "e_cue of contexts", as_json)
