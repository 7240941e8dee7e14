"""Convert a recipe's training settings to transformers' ``TrainingArguments``."""

import os
from typing import Any

import torch
from accelerate import PartialState
from transformers import TrainingArguments

from contextwise.base.errors import ConfigError
from contextwise.base.runs import RunFolder
from contextwise.training.optimizer import schedule_arguments
from contextwise.training.recipe import Recipe, SyntheticData

DEFAULT_MICRO_BATCH_TOKENS = {"cpu": 8192, "cuda": 32768}


def training_arguments(
    recipe: Recipe, run: RunFolder, blocks: list[str], processes: PartialState, validates: bool
) -> TrainingArguments:
    """Build the arguments of the Trainer.

    Args:
        blocks: class names of the model's blocks, the units that FSDP shards.
        validates: whether there are examples to validate on.

    Raises:
        ConfigError: the batch cannot be divided evenly among the processes, or FSDP is set with a single process.
    """
    examples_per_process, micro = batch_shape(recipe, processes)
    settings = recipe.training
    on_cpu = processes.device.type == "cpu"
    bf16 = settings.precision == "bf16" or (
        settings.precision == "auto"
        and not on_cpu
        and torch.cuda.is_available()
        and torch.cuda.is_bf16_supported()
    )
    sharding: dict[str, Any] = {}
    if settings.fsdp:
        if processes.num_processes == 1:
            raise ConfigError(
                "training.fsdp shards over processes: start with torchrun --nproc-per-node 2 or more"
            )
        sharding = {
            "fsdp": True,
            "fsdp_config": {
                "version": 2,
                "transformer_layer_cls_to_wrap": blocks,
                "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            },
        }
    os.environ.setdefault("TENSORBOARD_LOGGING_DIR", str(run.path / "tensorboard"))
    return TrainingArguments(
        output_dir=str(run.path),
        run_name=recipe.name,
        seed=recipe.seed,
        data_seed=recipe.seed,
        max_steps=recipe.total_steps,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=examples_per_process // micro,
        train_sampling_strategy="sequential",
        dataloader_num_workers=settings.workers,
        dataloader_pin_memory=not on_cpu,
        dataloader_drop_last=True,
        remove_unused_columns=False,
        learning_rate=recipe.learning_rate,
        max_grad_norm=settings.clip,
        bf16=bf16,
        tf32=True if torch.cuda.is_available() and torch.cuda.get_device_capability()[0] >= 8 else None,
        torch_compile=settings.compile,
        use_cpu=on_cpu,
        ddp_find_unused_parameters=False,
        logging_strategy="steps",
        logging_steps=settings.log_every,
        logging_nan_inf_filter=False,
        eval_strategy="steps" if validates and settings.evaluate_every else "no",
        eval_steps=settings.evaluate_every or None,
        save_strategy="steps",
        save_steps=settings.save_every,
        report_to=list(settings.trackers) or "none",
        disable_tqdm=True,
        **schedule_arguments(settings, recipe.total_steps),
        **sharding,
    )


def batch_shape(recipe: Recipe, processes: PartialState) -> tuple[int, int]:
    """Examples per process in a step, and in one forward pass."""
    total, rest = divmod(recipe.examples_per_step, processes.num_processes)
    if rest or not total:
        raise ConfigError(
            f"training.tokens_per_step is {recipe.tokens_per_step}: its windows cannot be divided evenly among "
            f"{processes.num_processes} processes; make it a multiple of {processes.num_processes * recipe.data.context}"
        )
    default = DEFAULT_MICRO_BATCH_TOKENS.get(processes.device.type, 8192)
    if isinstance(recipe.data, SyntheticData):  # its models are small
        default = recipe.tokens_per_step
    limit = max(1, (recipe.training.micro_batch_tokens or default) // recipe.data.context)
    micro = max(size for size in range(1, total + 1) if total % size == 0 and size <= limit)
    return total, micro
