"""Trained models beside the exact figures of the parity task: Table 1 and Figure 7 of the intrinsic-entropy document."""

from pathlib import Path
from typing import Any

from pydantic import Field

from contextwise.analysis.fits import LineFit, fit_line
from contextwise.analysis.spectra import intrinsic_entropies, relative_eigenvalues, shared_rank
from contextwise.base.errors import ConfigError
from contextwise.base.runs import RunFolder
from contextwise.base.tables import Table
from contextwise.data.synthetic.samples import Samples
from contextwise.experiments.run_set import RunSet
from contextwise.reproductions.claims import Claim, exact, point, undecided
from contextwise.reproductions.intrinsic_entropy.parity_models import (
    data_of,
    feature_eigenvalues,
    held_out,
    measure_contexts,
    open_parity_model,
    parity_runs,
    spectra_plot,
)
from contextwise.reproductions.item import Item, ItemMeasure, Outcome, Plot, registered


class OneModel(ItemMeasure):
    """A measure of one trained model at several contexts."""

    name: str
    recipe: dict[str, Any]
    contexts: list[int] = Field(min_length=1)
    samples: int = Field(65_536, ge=1000, description="held-out samples that are measured")

    def run_set(self, folder: Path) -> RunSet:
        runs = parity_runs(self.recipe, folder, self.name)
        data = data_of(runs.runs[0])
        beyond = [context for context in self.contexts if context > (data.context or data.bits)]
        if beyond:
            raise ConfigError(
                f"contexts has {beyond[0]}, but the inputs have {data.context or data.bits} bits"
            )
        return runs

    def trained(self, folder: Path) -> tuple[Any, Samples]:
        """The model, trained if it was not, and the samples to measure it on."""
        runs = self.run_set(folder)
        runs.train_missing()
        (run,) = runs.runs
        return open_parity_model(RunFolder(run.folder)), held_out(data_of(run))


@registered("parity_table")
class ParityTable(OneModel):
    """Cross entropy of a trained model beside the lowest possible, at several contexts (Appendix C.4, Table 1)."""

    tolerance: float = Field(gt=0, description="nats above the lowest that count as reached")

    def measure(self, item: Item, folder: Path) -> Outcome:
        model, samples = self.trained(folder)
        measured = measure_contexts(model, samples, self.contexts, self.samples)
        printed_pairs = zip(item.printed["model"], item.printed["minimum"], strict=True)
        printed = dict(zip(item.printed["contexts"], printed_pairs, strict=True))
        same_task = samples.parity.bits == item.printed["bits"]
        rows = []
        for context, loss in measured.items():
            cells = [str(context), f"{loss.minimum:.4f}", f"{loss.estimate:.4f}", f"{loss.excess:+.4f}"]
            if same_task:
                cells += [f"{value:.4f}" for value in printed[context]] if context in printed else ["", ""]
            rows.append(cells)
        head = ["context", "lowest", "model", "excess"]
        paper = ["paper: model", "paper: lowest"] if same_task else []
        tables = [Table("Cross entropy of the answer, nats", head + paper, rows)]
        if not same_task:
            rows = [
                [str(c), f"{low:.4f}", f"{own:.4f}", f"{own - low:+.4f}"] for c, (own, low) in printed.items()
            ]
            title = f"The paper's own, at {item.printed['bits']} bits and {item.printed['tasks']} tasks"
            tables.append(Table(title, head, rows))
        worst = max(measured, key=lambda context: abs(measured[context].loss - measured[context].minimum))
        gap = measured[worst].loss - measured[worst].minimum
        gaps = [loss.loss - loss.minimum for loss in measured.values()]
        claim = Claim.of(
            f"at every context the trained model is within {self.tolerance:g} nats of the lowest cross entropy",
            exact(abs(gap) <= self.tolerance, *gaps),
            f"at most {gap:+.4f} nats, at a context of {worst}",
        )
        series = {
            "model": [
                point(c, loss.estimate) for c, loss in measured.items()
            ],
            "lowest": [{"x": c, "y": loss.minimum} for c, loss in measured.items()],
        }  # fmt: skip
        plot = Plot("Cross entropy of the answer", "visible bits", "nats", series)
        figures = {"contexts": {c: vars(loss) for c, loss in measured.items()}}
        return Outcome(tables, [claim], figures, plots=[plot])


@registered("parity_entropy")
class ParityEntropy(OneModel):
    """Whether cross entropy is linear in the intrinsic entropy of the leading N directions (Figure 7)."""

    linear: float = Field(0.94, gt=0, lt=1, description="R² from which a line counts as one")

    def measure(self, item: Item, folder: Path) -> Outcome:
        model, samples = self.trained(folder)
        losses = {
            context: loss.loss
            for context, loss in measure_contexts(model, samples, self.contexts, self.samples).items()
        }
        spectra = {
            context: feature_eigenvalues(model, samples, context, self.samples) for context in self.contexts
        }
        entropies = {context: intrinsic_entropies(values) for context, values in spectra.items()}
        shared = shared_rank(spectra)
        lines = {
            n: fit_line({context: float(values[n - 1]) for context, values in entropies.items()}, losses)
            for n in range(2, shared + 1)
        }
        first = first_lasting(lines, self.linear)
        width = len(next(iter(spectra.values())))
        chosen = sorted({2, 5, 10, 20, 40, 70, 100, 200, shared} & set(lines) | ({first} if first else set()))
        rows = [
            [
                str(n),
                f"{lines[n].r_squared:.4f}",
                f"{lines[n].slope.value:.5f}",
                f"{lines[n].correlation:+.4f}",
            ]
            for n in chosen
        ]
        title = f"Cross entropy against S_N over {len(self.contexts)} contexts (features of {width} channels)"
        best = max(line.r_squared for line in lines.values())
        lasting = f"from N = {first} on, of {shared}; R² {lines[shared].r_squared:.4f} at the last"
        claim = Claim.of(
            f"cross entropy is linear in S_N (R² of {self.linear:g} or more) from some N on",
            exact(first is not None, best),
            lasting if first else f"R² {best:.4f} at best, {lines[shared].r_squared:.4f} at N = {shared}",
        )
        falling = all(line.slope.value < 0 for n, line in lines.items() if first and n >= first)
        claims = [
            claim,
            Claim.of(
                "the loss falls as the entropy grows",
                exact(falling) if first else undecided("no line lasts"),
                "slopes below 0" if first else "",
            ),
        ]
        figures = {
            "eigenvalues": {context: values.tolist() for context, values in spectra.items()},
            "losses": losses,
            "r_squared": {n: line.r_squared for n, line in lines.items()},
        }
        against = {
            f"N = {n}": sorted(
                ({"x": float(entropies[c][n - 1]), "y": losses[c]} for c in self.contexts),
                key=lambda p: p["x"],
            )
            for n in chosen
        }
        plots = [
            spectra_plot({context: relative_eigenvalues(values) for context, values in spectra.items()}),
            Plot("Cross entropy against S_N", "S_N, nats", "nats", against),
        ]
        return Outcome(
            [Table(title, ["N", "R²", "slope", "correlation"], rows)], claims, figures, plots=plots
        )


def first_lasting(lines: dict[int, LineFit], threshold: float) -> int | None:
    """The smallest N from which on every line has at least that R²; None if the last one has not."""
    first = None
    for n in sorted(lines, reverse=True):
        if lines[n].r_squared < threshold:
            break
        first = n
    return first
