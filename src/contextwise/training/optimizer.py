"""The optimizer and the learning-rate schedule of a run."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel, get_scheduler
from transformers.pytorch_utils import Conv1D

from contextwise.training.settings import TrainingSettings


def create_optimizer(
    module: nn.Module, settings: TrainingSettings, learning_rate: float
) -> torch.optim.Optimizer:
    """Create the optimizer of the trained parameters.

    AdamW decays matrices only (not biases, norms and gates). With ``settings.optimizer: muon``, Muon
    (https://kellerjordan.github.io/posts/muon) updates the matrices between embedding and vocabulary head instead.

    Args:
        learning_rate: of AdamW.
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
        heads = {
            id(layer.weight) for layer in layers if layer.weight.shape in shapes
        }  # those of training too
        hidden = matrices - embeddings - heads
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    decayed = [p for p in trained if id(p) in matrices - hidden]
    others = [p for p in trained if id(p) not in matrices]
    adamw = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}],
        lr=learning_rate,
        betas=(settings.beta1, settings.beta2),
        fused=True,
    )
    inner = [p for p in trained if id(p) in hidden]
    if not inner:
        return adamw
    muon = torch.optim.Muon(
        inner,
        lr=settings.muon_learning_rate,
        weight_decay=settings.muon_weight_decay,
        momentum=settings.muon_momentum,
    )
    return JoinedOptimizer(adamw, muon)


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
