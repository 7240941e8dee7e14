"""The optimizer and the learning-rate schedule of a run."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from transformers import get_scheduler

from contextwise.models.matrices import linear_weight, matrices_of
from contextwise.training.hyperparameters import TrainingSettings
from contextwise.training.parametrization import Scale, vocabulary_heads

EPSILON = 1e-8
"""AdamW's ε, torch's default."""
Tensors = list[torch.Tensor]


def create_optimizer(
    module: nn.Module,
    settings: TrainingSettings,
    learning_rate: float,
    scales: Mapping[str, Scale] | None = None,
    bf16: bool = False,
) -> torch.optim.Optimizer:
    """Create the optimizer of the trained parameters.

    AdamW, with ``learning_rate``, decays matrices only (not biases, norms and gates). With ``settings.optimizer: muon``, Muon
    (https://kellerjordan.github.io/posts/muon) updates the matrices between embedding and vocabulary head instead, but for
    stacks of them, such as those of experts. With ``bf16`` its updates are orthogonalized in bf16, as ``torch.optim.Muon``
    does, and not in float32. ``scales`` are factors of rates and of AdamW's ε, by the name of the parameter in the module or in
    the model that it trains.
    """
    decayed = {id(weight) for weight in matrices_of(module, embeddings=True)}
    hidden: set[int] = set()
    if settings.optimizer == "muon":
        layers = {id(weight) for part in module.modules() if (weight := linear_weight(part)) is not None}
        embeddings = {id(part.weight) for part in module.modules() if isinstance(part, nn.Embedding)}
        hidden = layers - embeddings - vocabulary_heads(module)
    scales = scales or {}
    # By whether they decay, the factor of their rate, and their ε.
    adamw: dict[Any, list[nn.Parameter]] = {(decays, 1.0, EPSILON): [] for decays in (True, False)}
    muon: dict[Any, list[nn.Parameter]] = {}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            scale = scales.get(name) or scales.get(name.removeprefix("model."), Scale())
            if id(parameter) in hidden:
                muon.setdefault((True, scale.muon, None), []).append(parameter)
            else:
                kind = (id(parameter) in decayed, scale.adamw, EPSILON * scale.epsilon)
                adamw.setdefault(kind, []).append(parameter)
    groups = _groups(adamw, learning_rate, settings.weight_decay)
    first = torch.optim.AdamW(groups, lr=learning_rate, betas=(settings.beta1, settings.beta2), eps=EPSILON, fused=True)
    if not muon:
        return first
    second = BatchedMuon(
        _groups(muon, settings.muon_learning_rate, settings.muon_weight_decay),
        lr=settings.muon_learning_rate,
        momentum=settings.muon_momentum,
        adjust_lr_fn=settings.muon_adjustment,
    )
    second.orthogonalized_in = torch.bfloat16 if bf16 else torch.float32
    return JoinedOptimizer(first, second)


def _groups(kinds: Mapping[Any, list[nn.Parameter]], rate: float, weight_decay: float) -> list[dict[str, Any]]:
    """The groups of an optimizer that have parameters; of several empty ones a checkpoint could not tell which is which.

    All matrices decay equally fast, whatever the factor of their rate: AdamW and Muon multiply the decay by the rate.
    """
    groups = []
    for (decays, factor, epsilon), parameters in kinds.items():
        group = {"params": parameters, "weight_decay": weight_decay / factor if decays else 0.0, "lr": rate * factor}
        groups.append(group | ({} if epsilon is None else {"eps": epsilon}))
    return [group for group in groups if group["params"]] or groups[:1]


class BatchedMuon(torch.optim.Muon):
    """Muon that orthogonalizes all matrices of one shape in one batch: the arithmetic of ``torch.optim.Muon`` in fewer calls.

    Matrices of a small model are far too small to fill a processor one by one. Sharded ones (DTensor) are left to torch's loop.
    """

    orthogonalized_in = torch.bfloat16
    """As torch does. A processor without bf16 instructions multiplies float32 several times as fast."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        if any(type(matrix) is not nn.Parameter for group in self.param_groups for matrix in group["params"]):
            super().step()
            return
        for group in self.param_groups:
            lists: tuple[Tensors, Tensors, Tensors] = ([], [], [])  # matrices, gradients, momenta
            self._init_group(group, *lists)
            of_shape: dict[torch.Size, list[tuple[torch.Tensor, ...]]] = {}
            for tensors in zip(*lists, strict=True):
                of_shape.setdefault(tensors[0].shape, []).append(tensors)
            for alike in of_shape.values():
                self._update(group, *map(list, zip(*alike, strict=True)))

    def _update(self, group: dict[str, Any], matrices: Tensors, gradients: Tensors, momenta: Tensors) -> None:
        torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
        directions = torch._foreach_lerp(gradients, momenta, group["momentum"]) if group["nesterov"] else momenta
        a, b, c = group["ns_coefficients"]
        x = torch.stack(directions).to(self.orthogonalized_in)
        rows, columns = matrices[0].shape
        wide = rows <= columns
        x = x if wide else x.mT.contiguous()
        x /= torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True).clamp(min=group["eps"])
        for _ in range(group["ns_steps"]):
            gram = x @ x.mT
            x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
        rates = {"original": max(1, rows / columns) ** 0.5, "match_rms_adamw": 0.2 * max(rows, columns) ** 0.5}
        torch._foreach_mul_(matrices, 1 - group["lr"] * group["weight_decay"])
        updates = (x if wide else x.mT).to(matrices[0].dtype).unbind()
        torch._foreach_add_(matrices, updates, alpha=-group["lr"] * rates[group["adjust_lr_fn"]])


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
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for part in self.parts:
            part.step()


def learning_rate_share(settings: TrainingSettings, steps: int) -> Callable[[float], float]:
    """The schedule of a run of ``steps`` steps: a function from the steps so far to a share of the maximum rate."""
    if settings.schedule == "one_cycle":
        return one_cycle(settings, steps)
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
    share = schedule.lr_lambdas[0]
    # That of transformers begins at the share of the end in some of the kinds.
    return lambda step: step / warmup if step < warmup else share(step)


def one_cycle(settings: TrainingSettings, steps: int) -> Callable[[float], float]:
    """The arithmetic of torch's OneCycleLR with two phases, as a share of the maximum: a cosine up, and a cosine down.

    In torch the maximum is at step ``pct_start * steps - 1``, which need not be whole, and the minimum at the last step. Torch
    changes beta1 in the opposite direction by default; here beta1 is constant.
    """
    rise, last = settings.warmup_steps, steps - 1
    top = float(rise * steps if rise < 1 else rise) - 1
    first, final = settings.first_learning_rate, settings.final_learning_rate

    def between(start: float, end: float, share: float) -> float:
        return end + (start - end) / 2.0 * (math.cos(math.pi * share) + 1)

    def share(step: float) -> float:
        step = min(step, last)
        if step <= top and top > 0:
            return between(first, 1.0, step / top)
        return between(1.0, final, (step - top) / (last - top) if last > top else 0.0)

    return share
