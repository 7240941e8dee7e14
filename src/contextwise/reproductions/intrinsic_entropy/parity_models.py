"""Models trained on the parity task, and their losses and spectra at each context beside the exact figures.

Legend of shapes: N samples, F channels of the context feature.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from contextwise.base.estimates import Estimate
from contextwise.base.intervals import NORMAL, plus_minus
from contextwise.base.runs import RunFolder
from contextwise.data.synthetic import ParityData
from contextwise.data.synthetic.samples import Samples
from contextwise.experiments.run_set import Run, RunSet, RunSetSettings
from contextwise.models.parity import ParityMLP, ParityTransformer
from contextwise.reproductions.item import Plot
from contextwise.training.inputs import VALIDATION_SEED
from contextwise.training.recipe import SyntheticData

_AT_ONCE = 4096


@dataclass(frozen=True)
class ContextLoss:
    """A trained model at one context.

    Attributes:
        loss: mean cross entropy of the answers, nats.
        standard_error: of ``loss`` over samples.
        excess: ``loss`` minus the mean of the lowest possible loss on the same samples: log 2 where the task's larger bit is
            not visible, and 0 elsewhere. Without the sampling noise of how many samples are of which kind.
        minimum: the exact lowest cross entropy.
    """

    loss: float
    standard_error: float
    excess: float
    minimum: float

    @property
    def estimate(self) -> Estimate:
        """The loss with its interval over samples."""
        return plus_minus(self.loss, NORMAL * self.standard_error)


@torch.no_grad()
def measure_contexts(model: Any, samples: Samples, contexts: list[int], count: int) -> dict[int, ContextLoss]:
    """Cross entropy of the same ``count`` samples with only the nearest bits visible, for each number of bits.

    Raises:
        ConfigError: more bits than the samples show.
    """
    parity, measured = samples.parity, {}
    for context in contexts:
        nats, hidden = [], []
        for numbers in _pieces(count):
            batch = samples.batch(numbers, visible=context)
            logits = model(batch["input_ids"].to(model.device)).logits.float().cpu()
            nats.append(torch.nn.functional.cross_entropy(logits, batch["labels"][:, 0], reduction="none"))
            hidden.append(parity.larger[samples.draw(numbers).tasks] > context)
        losses, lowest = torch.cat(nats).double().numpy(), math.log(2) * np.concatenate(hidden)
        measured[context] = ContextLoss(
            float(losses.mean()),
            float(losses.std(ddof=1) / math.sqrt(count)),
            float((losses - lowest).mean()),
            parity.minimum_cross_entropy(context),
        )
    return measured


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


def parity_runs(
    recipe: dict[str, Any],
    folder: Path,
    name: str,
    seeds: list[int] | None = None,
    **axes: list[int],
) -> RunSet:
    """The runs of a recipe.

    Args:
        axes: values of settings of ``data.synthetic``.
    """
    grid = {f"data.synthetic.{setting}": values for setting, values in axes.items()}
    own = [recipe.get("seed", 0)]
    return RunSet.of(RunSetSettings(recipe=recipe, arms={name: []}, seeds=seeds or own, grid=grid), folder)


def data_of(run: Run) -> ParityData:
    """The samples' settings of a run."""
    section = run.recipe().data
    assert isinstance(section, SyntheticData)
    return section.synthetic


def open_parity_model(run: RunFolder) -> Any:
    """The model of a finished run, for evaluation."""
    kinds = {kind.config_class.model_type: kind for kind in (ParityMLP, ParityTransformer)}
    from transformers import AutoConfig

    kind = kinds[AutoConfig.from_pretrained(run.model).model_type]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return kind.from_pretrained(run.model, use_safetensors=True).to(device).eval()


def held_out(data: ParityData) -> Samples:
    """The samples that runs are validated and measured on."""
    return Samples(data, VALIDATION_SEED, "validation")


def spectra_plot(relative: dict[int, np.ndarray]) -> Plot:
    """Relative eigenvalues of each context, without those that are zero."""
    series = {
        f"{context} bits": [{"x": i, "y": float(value)} for i, value in enumerate(values, 1) if value > 0]
        for context, values in relative.items()
    }
    return Plot("Relative eigenvalues", "index i", "λ_i / λ_1", series, logarithmic="y")
