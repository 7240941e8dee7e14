"""The optimizer and the learning-rate schedule of a run."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel, get_scheduler
from transformers.pytorch_utils import Conv1D

from contextwise.training.parametrization import Scale
from contextwise.training.settings import TrainingSettings


def create_optimizer(
    module: nn.Module, settings: TrainingSettings, learning_rate: float, scales: Mapping[str, Scale] | None = None
) -> torch.optim.Optimizer:
    """Create the optimizer of the trained parameters.

    AdamW decays matrices only (not biases, norms and gates). With ``settings.optimizer: muon``, Muon
    (https://kellerjordan.github.io/posts/muon) updates the matrices between embedding and vocabulary head instead.

    Args:
        learning_rate: of AdamW.
        scales: factors of the rates, by the name of the parameter in the module or in the model that it trains.
    """
    layers = [part for part in module.modules() if isinstance(part, nn.Linear | nn.Embedding | Conv1D)]
    matrices = {id(layer.weight) for layer in layers}
    hidden: set[int] = set()
    if settings.optimizer == "muon":
        embeddings = {id(layer.weight) for layer in layers if isinstance(layer, nn.Embedding)}
        shapes = {
            head.weight.shape
            for model in module.modules()
            if isinstance(model, PreTrainedModel) and (head := model.get_output_embeddings()) is not None
        }
        heads = {id(layer.weight) for layer in layers if layer.weight.shape in shapes}  # those of training too
        hidden = matrices - embeddings - heads
    scales = scales or {}
    adamw = _Groups(settings.weight_decay, settings.independent_weight_decay, learning_rate)
    muon = _Groups(settings.muon_weight_decay, settings.independent_weight_decay, settings.muon_learning_rate)
    adamw.add([], decayed=True)
    adamw.add([], decayed=False)
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            scale = scales.get(name) or scales.get(name.removeprefix("model."), Scale())
            if id(parameter) in hidden:
                muon.add([parameter], decayed=True, factor=scale.muon)
            else:
                adamw.add([parameter], decayed=id(parameter) in matrices, factor=scale.adamw)
    first = torch.optim.AdamW(adamw.groups, lr=learning_rate, betas=(settings.beta1, settings.beta2), fused=True)
    if not muon.groups:
        return first
    second = torch.optim.Muon(
        muon.groups,
        lr=settings.muon_learning_rate,
        momentum=settings.muon_momentum,
        adjust_lr_fn=settings.muon_adjustment,
    )
    return JoinedOptimizer(first, second)


class _Groups:
    """Parameter groups of an optimizer, one for each pair of weight decay and factor of the rate.

    Args:
        independent: let parameters of all rates decay equally fast: AdamW and Muon multiply the decay by the rate.
    """

    def __init__(self, weight_decay: float, independent: bool, learning_rate: float) -> None:
        self.weight_decay, self.independent, self.learning_rate = weight_decay, independent, learning_rate
        self.by_kind: dict[tuple[bool, float], dict[str, Any]] = {}

    def add(self, parameters: list[nn.Parameter], decayed: bool, factor: float = 1.0) -> None:
        decay = (self.weight_decay / (factor if self.independent else 1.0)) if decayed else 0.0
        new = {"params": [], "weight_decay": decay, "lr": self.learning_rate * factor}
        self.by_kind.setdefault((decayed, factor), new)["params"] += parameters

    @property
    def groups(self) -> list[dict[str, Any]]:
        return list(self.by_kind.values())


class JoinedOptimizer(torch.optim.Optimizer):
    """Several optimizers of disjoint parameters as one: for the Trainer, schedules and checkpoints.

    Parameter groups and state are shared with the parts, so that a schedule or a restored state reaches them.
    """

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        self.parts = parts
        super().__init__([group for part in parts for group in part.param_groups], {})
        self._share()

    def _share(self) -> None:
        start = 0
        for part in self.parts:
            end = start + len(part.param_groups)
            part.param_groups, part.state = self.param_groups[start:end], self.state
            start = end

    def __setstate__(self, state: dict[str, Any]) -> None:  # how `load_state_dict` replaces groups and state
        super().__setstate__(state)
        self._share()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for part in self.parts:
            part.step()


def learning_rate_share(settings: TrainingSettings, steps: int) -> Callable[[float], float]:
    """The schedule of a run of ``steps`` full steps: a function from full steps so far to a share of the maximum rate."""
    warmup, end = settings.warmup(steps), settings.final_learning_rate
    kind, options = "constant_with_warmup", dict[str, Any]()
    if settings.schedule == "cosine":
        kind, options = "cosine_with_min_lr", {"min_lr_rate": end}
    elif settings.schedule in ("linear", "wsd"):
        decay = steps - warmup if settings.schedule == "linear" else settings.decay(steps)
        options = {"num_decay_steps": decay, "decay_type": "linear", "min_lr_ratio": end}
        kind = "warmup_stable_decay"
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    schedule: Any = get_scheduler(kind, optimizer, warmup, steps, options)
    return schedule.lr_lambdas[0]
