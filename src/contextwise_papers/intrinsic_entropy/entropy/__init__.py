"""Losses and spectra of a model's features at several visible contexts: ``contextwise measure entropy``.

The same targets are predicted from the nearest l tokens, for each context l (:mod:`contextwise.evaluation.scoring.truncated`).
The features from which they are predicted, one for each target, are added to a running covariance in 64-bit numbers; its
eigenvalues, the losses and a bounded sample of features are kept (intrinsic entropy, Section 2.2.2). Everything derived from
them is computed from the files (``analysis.py``).
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
from pydantic import BeforeValidator, Field, model_validator
from rich.console import RenderableType

from contextwise.measures import Measure, Outcome, Result, Subject, Work
from contextwise.report import Column, Table, counted
from contextwise.settings import ConfigError
from contextwise.stats import Estimate

if TYPE_CHECKING:
    import pyarrow as pa
    import torch

    from contextwise.data import Corpus

LEAST_SAMPLES = 50


def _layer(value: Any) -> Any:
    """``last``, or the number of a hidden state, also as text."""
    if value != "last" and not str(value).isdecimal():
        raise ValueError("must be last, or the number of a hidden state, from 0")
    return value if value == "last" else int(value)


Layer = Annotated[Literal["last"] | int, BeforeValidator(_layer)]


class EntropyResult(Result):
    """Losses, spectra and kept features at several contexts; its methods raise DataError for a file that is damaged."""

    @property
    def contexts(self) -> list[int]:
        """The contexts measured, the shortest first."""
        return list(self.summary["settings"]["contexts"])

    def losses(self) -> dict[int, float]:
        """Context -> mean loss in nats."""
        return {int(context): loss["value"] for context, loss in self.summary["losses"].items()}

    def spectra(self) -> "dict[int, np.ndarray]":
        """Context -> (D,) eigenvalues, the largest first."""
        table = self.table_of("spectra")
        context, values = table["context"].to_numpy(), table["eigenvalue"].to_numpy()
        return {length: values[context == length] for length in self.contexts}

    def targets(self) -> "pa.Table":
        """One row a target and context: ``context``, ``document``, ``position``, ``nats``."""
        return self.table_of("losses")

    def features(self, context: int) -> "torch.Tensor":
        """(K, D) features that were kept at a context."""
        from safetensors import safe_open

        def read(file: Path) -> "torch.Tensor":
            with safe_open(file, "pt") as content:
                return content.get_tensor(str(context))

        return self._read("features.safetensors", read)


class Entropy(Measure):
    """Measure a model's loss and the spectrum of its features at several contexts.

    The same tokens are predicted from the nearest 16, 32, … tokens. From the covariance of the features: intrinsic entropy,
    intrinsic dimension, and how the loss depends on them. A stopped measurement resumes.
    """

    name = "entropy"
    version = 2
    result = EntropyResult

    contexts: list[int] = Field(
        default=[16, 32, 64, 128, 256],
        min_length=1,
        description="Visible tokens, each a measurement; all targets have the longest of them before them.",
    )
    samples: int = Field(default=10_000, ge=1, description="Targets: tokens whose loss and features are measured.")
    layer: Layer = Field(
        default="last",
        description="Which features: last, what the vocabulary head reads, or the number of a hidden state.",
    )
    density_samples: int = Field(
        default=2000, ge=2, description="Features kept on disk for each context, for the density estimate."
    )
    seed: int = Field(default=0, ge=0, description="Of the choice of targets.")
    bos: bool | None = Field(
        default=None,
        description="Put the tokenizer's start token (else the corpus's end-of-text) before every window, not counted as "
        "visible; default: if the tokenizer itself puts one before a text.",
    )

    @model_validator(mode="after")
    def _different_contexts(self) -> Self:
        if min(self.contexts) < 1 or len(set(self.contexts)) < len(self.contexts):
            given = ", ".join(map(str, self.contexts))
            raise ValueError(f"contexts is {given}; give different lengths of at least 1 token, such as 16,32,64")
        return self

    def resolved(self, subject: Subject, corpus: "Corpus | None") -> Self:
        from contextwise.evaluation.scoring.truncated import choose_targets

        assert corpus is not None
        contexts = sorted(self.contexts)
        samples = len(choose_targets(corpus, contexts[-1], self.samples, self.seed))
        if samples < LEAST_SAMPLES:
            raise ConfigError(
                f"{samples} samples are too few for a spectrum: each eigenvalue would be uncertain by more than a fifth of "
                f"itself (the square root of 2 / samples); set samples to {LEAST_SAMPLES} or more, and take a corpus "
                f"({corpus.path}) with as many tokens that have the longest context before them"
            )
        start = corpus.window_start(self.bos) is not None
        return self.model_copy(update={"contexts": contexts, "bos": start})

    def run(self, subject: Subject, corpus: "Corpus | None", work: Work) -> Outcome:
        from contextwise_papers.intrinsic_entropy.entropy.running import measure_entropy

        assert corpus is not None
        return measure_entropy(self, subject, corpus, work)

    @classmethod
    def table(cls, summary: dict[str, Any]) -> RenderableType:
        settings, on, differences = summary["settings"], summary["corpus"], summary["differences"]
        title = (
            f"{summary['model']} on {on['path']}, split {on['split']}: the same {summary['samples']:,} tokens of "
            f"{counted(summary['documents'], 'document')} at {counted(len(settings['contexts']), 'context')}. What follows "
            "from their spectra: contextwise_papers.intrinsic_entropy.analysis.IntrinsicEntropy(RESULT)."
        )
        columns = [Column("context", "integer"), Column("loss", "estimate", ".4f", interval="own")]
        columns.append(Column("minus\nlongest", "difference", interval="own"))
        rows = [
            [
                context,
                *(None if each is None else Estimate.from_dict(each) for each in (loss, differences.get(str(context)))),
            ]
            for context, loss in ((each, summary["losses"][str(each)]) for each in settings["contexts"])
        ]
        return Table(title, columns, rows, summary["notes"])
