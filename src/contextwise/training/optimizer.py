"""The optimizer of a run."""

import torch
from torch import nn
from transformers import TrainingArguments
from transformers.pytorch_utils import Conv1D


def adamw(module: nn.Module, args: TrainingArguments) -> torch.optim.AdamW:
    """AdamW on the trained parameters; weight decay on matrices only (not on biases, norms and gates)."""
    matrices = {
        id(part.weight) for part in module.modules() if isinstance(part, nn.Linear | nn.Embedding | Conv1D)
    }
    decayed: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for parameter in module.parameters():
        if parameter.requires_grad:
            (decayed if id(parameter) in matrices else others).append(parameter)
    return torch.optim.AdamW(
        [{"params": decayed, "weight_decay": args.weight_decay}, {"params": others, "weight_decay": 0.0}],
        lr=args.learning_rate,
        betas=(args.adam_beta1, args.adam_beta2),
        eps=args.adam_epsilon,
        fused=True,
    )
