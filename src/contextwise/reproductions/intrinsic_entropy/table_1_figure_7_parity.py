"""Trained models beside the exact figures of the parity task: Table 1 and Figure 7 of the intrinsic-entropy document.

Legend of shapes: N samples, F channels of the context feature.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import Field

from contextwise.analysis.fits import LineFit, fit_line
from contextwise.analysis.spectra import intrinsic_entropies, relative_eigenvalues, shared_rank
from contextwise.base.config import validate
from contextwise.base.errors import ConfigError
from contextwise.base.estimates import Estimate
from contextwise.base.runs import RunFolder
from contextwise.data.synthetic import ParityData, Samples
from contextwise.models.parity import ParityMLP, ParityTransformer
from contextwise.reproductions.claims import Claim, exact, point, undecided
from contextwise.reproductions.item import Item, ItemMeasure, Outcome, Plot, Table, registered
from contextwise.training.inputs import VALIDATION_SEED
from contextwise.training.recipe import Recipe, SyntheticData
from contextwise.training.run import train

NORMAL = 1.959964
"""Standard errors on each side of a 95% interval."""
_AT_ONCE = 4096


@dataclass(frozen=True)
class ContextLoss:
    """A trained model at one context.

    Attributes:
        loss: mean cross entropy of the answers, nats.
        standard_error: of ``loss`` over samples.
        excess: ``loss`` minus the mean of what nobody can do better than on the same samples: log 2 where the task's larger
            bit is not visible, and 0 elsewhere. Free of the chance in how many of the samples are which.
        minimum: the exact lowest cross entropy.
    """

    loss: float
    standard_error: float
    excess: float
    minimum: float

    @property
    def estimate(self) -> Estimate:
        """The loss with its interval over samples."""
        half = NORMAL * self.standard_error
        return Estimate(self.loss, self.loss - half, self.loss + half)


@torch.no_grad()
def measure_contexts(model: Any, samples: Samples, contexts: list[int], count: int) -> dict[int, ContextLoss]:
    """Cross entropy of the same ``count`` samples with only the nearest bits visible, for each number of bits.

    Raises:
        ConfigError: more bits than the samples show.
    """
    parity, found = samples.parity, {}
    for context in contexts:
        nats, hidden = [], []
        for numbers in _pieces(count):
            batch = samples.batch(numbers, visible=context)
            logits = model(batch["input_ids"].to(model.device)).logits.float().cpu()
            nats.append(torch.nn.functional.cross_entropy(logits, batch["labels"][:, 0], reduction="none"))
            hidden.append(parity.larger[samples.draw(numbers).tasks] > context)
        losses, lowest = torch.cat(nats).double().numpy(), math.log(2) * np.concatenate(hidden)
        found[context] = ContextLoss(
            float(losses.mean()),
            float(losses.std(ddof=1) / math.sqrt(count)),
            float((losses - lowest).mean()),
            parity.minimum_cross_entropy(context),
        )
    return found


@torch.no_grad()
def feature_eigenvalues(model: Any, samples: Samples, context: int, count: int) -> np.ndarray:
    """Eigenvalues of the centred covariance of the context feature with ``context`` bits visible, (F,), the largest first."""
    total: Any = 0.0
    products: Any = 0.0
    for numbers in _pieces(count):
        batch = samples.batch(numbers, visible=context)
        feature = model.context_feature(batch["input_ids"].to(model.device)).double().cpu().numpy()
        total, products = total + feature.sum(0), products + feature.T @ feature
    mean = total / count
    covariance = products / count - np.outer(mean, mean)
    return np.linalg.eigvalsh(covariance)[::-1].clip(min=0)


def _pieces(count: int) -> list[np.ndarray]:
    return np.array_split(np.arange(count), max(1, -(-count // _AT_ONCE)))


def parity_recipe(values: dict[str, Any], folder: Path, name: str, **data: Any) -> Recipe:
    """A run of an item, in ``folder``.

    Args:
        data: settings of ``data.synthetic`` on top of the item's.
    """
    synthetic = values["data"]["synthetic"] | data
    whole = values | {"name": name, "data": {"synthetic": synthetic}, "output": str(folder / name)}
    return validate(Recipe, whole, f"the recipe of {name}")


def open_parity_model(run: RunFolder) -> Any:
    """The model of a finished run, ready to be asked."""
    kinds = {kind.config_class.model_type: kind for kind in (ParityMLP, ParityTransformer)}
    from transformers import AutoConfig

    kind = kinds[AutoConfig.from_pretrained(run.model).model_type]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return kind.from_pretrained(run.model, use_safetensors=True).to(device).eval()


def held_out(data: ParityData) -> Samples:
    """The samples that runs are validated and measured on."""
    return Samples(data, VALIDATION_SEED, "validation")


class OneModel(ItemMeasure):
    """A measure of one trained model at several contexts."""

    name: str
    recipe: dict[str, Any]
    contexts: list[int] = Field(min_length=1)
    samples: int = Field(65_536, ge=1000, description="held-out samples that are measured")

    def recipes(self, folder: Path) -> list[Recipe]:
        recipe = parity_recipe(self.recipe, folder, self.name)
        section = recipe.data
        assert isinstance(section, SyntheticData)
        data = section.synthetic
        beyond = [context for context in self.contexts if context > (data.context or data.bits)]
        if beyond:
            raise ConfigError(
                f"contexts has {beyond[0]}, but the inputs have {data.context or data.bits} bits"
            )
        return [recipe]

    def trained(self, folder: Path) -> tuple[Any, Samples]:
        """The model, trained if it was not, and the samples to measure it on."""
        (recipe,) = self.recipes(folder)
        assert isinstance(recipe.data, SyntheticData)
        return open_parity_model(train(recipe)), held_out(recipe.data.synthetic)


@registered("parity_table")
class ParityTable(OneModel):
    """Cross entropy of a trained model beside the lowest possible, at several contexts (Appendix C.4, Table 1)."""

    tolerance: float = Field(gt=0, description="nats above the lowest that count as reached")

    def measure(self, item: Item, folder: Path) -> Outcome:
        model, samples = self.trained(folder)
        found = measure_contexts(model, samples, self.contexts, self.samples)
        printed = dict(
            zip(
                item.printed["contexts"],
                zip(item.printed["model"], item.printed["minimum"], strict=True),
                strict=True,
            )
        )
        same_task = samples.parity.bits == item.printed["bits"]
        rows = []
        for context, one in found.items():
            theirs = printed.get(context) if same_task else None
            cells = [
                str(context),
                f"{one.minimum:.4f}",
                f"{one.loss:.4f} ± {NORMAL * one.standard_error:.4f}",
            ]
            cells += [f"{one.excess:+.4f}"]
            rows.append([*cells, *(f"{value:.4f}" for value in theirs)] if theirs else cells)
        head = ["context", "lowest", "model", "excess"]
        head += ["paper: model", "paper: lowest"] if same_task else []
        tables = [Table("Cross entropy of the answer, nats", head, rows)]
        if not same_task:
            shown = [
                [str(c), f"{low:.4f}", f"{own:.4f}", f"{own - low:+.4f}"] for c, (own, low) in printed.items()
            ]
            title = f"The paper's own, at {item.printed['bits']} bits and {item.printed['tasks']} tasks"
            tables.append(Table(title, ["context", "lowest", "model", "excess"], shown))
        worst = max(found, key=lambda context: abs(found[context].loss - found[context].minimum))
        gap = found[worst].loss - found[worst].minimum
        gaps = [one.loss - one.minimum for one in found.values()]
        claim = Claim.of(
            f"at every context the trained model is within {self.tolerance:g} nats of the lowest cross entropy",
            exact(abs(gap) <= self.tolerance, *gaps),
            f"at most {gap:+.4f} nats, at a context of {worst}",
        )
        series = {
            "model": [
                point(c, one.estimate) for c, one in found.items()
            ],
            "lowest": [{"x": c, "y": one.minimum} for c, one in found.items()],
        }  # fmt: skip
        plot = Plot("Cross entropy of the answer", "visible bits", "nats", series)
        figures = {"contexts": {c: vars(one) for c, one in found.items()}}
        return Outcome(tables, [claim], figures, plots=[plot])


@registered("parity_entropy")
class ParityEntropy(OneModel):
    """Whether cross entropy is linear in the intrinsic entropy of the leading N directions (Figure 7)."""

    linear: float = Field(0.94, gt=0, lt=1, description="R² from which a line counts as one")

    def measure(self, item: Item, folder: Path) -> Outcome:
        model, samples = self.trained(folder)
        losses = {
            context: one.loss
            for context, one in measure_contexts(model, samples, self.contexts, self.samples).items()
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


def spectra_plot(relative: dict[int, np.ndarray]) -> Plot:
    """Relative eigenvalues of each context, without those that are zero."""
    series = {
        f"{context} bits": [{"x": i, "y": float(value)} for i, value in enumerate(values, 1) if value > 0]
        for context, values in relative.items()
    }
    return Plot("Relative eigenvalues", "index i", "λ_i / λ_1", series, logarithmic="y")


def first_lasting(lines: dict[int, LineFit], threshold: float) -> int | None:
    """The smallest N from which on every line has at least that R²; None if the last one has not."""
    first = None
    for n in sorted(lines, reverse=True):
        if lines[n].r_squared < threshold:
            break
        first = n
    return first
