"""Losses and spectra of a real model at several visible contexts: intrinsic entropy, Figures 1, 2, 3, 10, 11, 13 and 15.

All of them share one measurement (:mod:`evaluation.measures.entropy`) in the folder of the reproduction; each item reports the
part of its figure.
"""

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from contextwise.analysis.intrinsic import IntrinsicEntropy, analyse
from contextwise.base.tables import Table
from contextwise.evaluation.kernel import measure
from contextwise.evaluation.measures.entropy import Entropy
from contextwise.reproductions.given_model import GivenModel
from contextwise.reproductions.intrinsic_entropy.views import VIEWS, Limits
from contextwise.reproductions.item import Item, Outcome, registered


@registered("real_entropy")
class RealEntropy(GivenModel):
    """The same held-out tokens predicted from the nearest l tokens, for each context l."""

    show: Literal["entropy", "context", "spectra", "density", "dimension"] = Field(
        description="the figure: loss against S_N, loss against context, eigenvalues, kernel density, loss against dimension"
    )
    contexts: list[int] = Field(min_length=4, description="visible tokens")
    samples: int = Field(ge=50, description="tokens to predict, the same at each context")
    kept: int = Field(2000, ge=2, description="features that the kernel density is of")
    well_trained: bool = Field(
        True,
        description="whether the law applies to models like the one that is trained; if not, a claim that fails is undecided",
    )
    limits: Limits = Limits()

    @field_validator("contexts")
    @classmethod
    def _contexts(cls, contexts: list[int]) -> list[int]:
        return sorted(Entropy(contexts=contexts).contexts)

    def tokens_read(self) -> int:
        return self.samples * sum(self.contexts)

    def measured(self, folder: Path) -> IntrinsicEntropy:
        """The measurement; an existing one is used again."""
        subject = self.subject(folder)
        out = self.measured_folder(folder, "entropy")
        held_out = self.held_out(folder)
        settings = Entropy(contexts=self.contexts, samples=self.samples, density_samples=self.kept)
        return analyse(measure(subject, settings, held_out, out=out, overwrite=True))

    def measure(self, item: Item, folder: Path) -> Outcome:
        entropy = self.measured(folder)
        summary = entropy.measurement.summary
        tables, claims, plots = VIEWS[self.show](entropy, self.limits)
        if not (self.well_trained or self.model):
            # The claims are on models near the Bayes model (Appendix G); for another one a failure is no evidence.
            reason = "fails for this small model, to which the document's claim does not apply"
            claims = [claim.without_refutation(reason) for claim in claims]
        about = [
            ["model", Path(summary["model"]).name],
            ["parameters", f"{summary['parameters']:,}"],
            ["targets, documents", f"{summary['samples']:,}, {summary['documents']:,}"],
            ["channels", f"{summary['width']:,}"],
            *(["note", note] for note in entropy.notes),
        ]
        figures = {
            "contexts": entropy.contexts,
            "losses": {str(c): loss.to_dict() for c, loss in entropy.losses.items()},
            "entropies": {
                str(n): {str(c): s for c, s in entropy.entropies[n].items()} for n in entropy.sizes
            },
            "measurement": entropy.measurement.path.name,
        }
        return Outcome(
            [*tables, Table("What was measured", ["", ""], about)], claims, figures, self.runs(folder), plots
        )
