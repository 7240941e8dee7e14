"""transformers' Trainer, with our data order, losses, measurements and checkpoints.

The order of operations in a step (the hooks are the Trainer's own):

1. ``training_step``: forward and backward of all micro-batches of the step; the loss stays on the device.
2. ``on_pre_optimizer_step``: reduce the loss over all processes; if it or the gradient is not finite, stop before the
   weights change.
3. Optimizer and schedule.
4. Log, evaluate, save. A run that a signal stops ends with a whole step, its validation and a checkpoint.

The host waits for the accelerator once in a step, in ``check_step``, where all values that it needs are read together.
"""

import contextlib
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from accelerate.utils import gather_object
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME

from contextwise.base.errors import ContextwiseError, DivergedError
from contextwise.base.files import atomic_directory, write_json
from contextwise.base.hashes import seal
from contextwise.base.progress import interruption
from contextwise.base.runs import RunFolder
from contextwise.base.undisturbed import random_state, restore_random_state
from contextwise.training import checkpoints
from contextwise.training.batches import (
    NOT_FOR_MODELS,
    StepIndices,
    collate,
    collate_step,
    divided,
    end_with_parent,
    pairs_in,
    tokens_read,
)
from contextwise.training.inputs import TrainingInputs, targets_in
from contextwise.training.metrics import RunMetrics
from contextwise.training.model import TrainedModel
from contextwise.training.optimizer import create_optimizer, learning_rate_share
from contextwise.training.parametrization import parameter_scales
from contextwise.training.recipe import Recipe


class PretrainingTrainer(Trainer):
    """Trains a language model on the examples of an objective."""

    def __init__(
        self,
        model: TrainedModel,
        args: TrainingArguments,
        run: RunFolder,
        inputs: TrainingInputs,
        metrics: RunMetrics,
        recipe: Recipe,
    ) -> None:
        self.run, self.validation, self.metrics = run, inputs.validation, metrics
        self.fingerprints, self.recipe, self.settings = inputs.fingerprints, recipe, recipe.training
        self._losses: list[torch.Tensor] = []  # of the micro-batches of a step, as `_parts` and `_inputs`
        self._parts: list[torch.Tensor] = []
        self._inputs: list[dict[str, torch.Tensor]] = []
        self._targets = torch.zeros(2)  # and pairs, of all processes
        self._norm: torch.Tensor | None = None
        self.optimizer: Any = None
        self.control: Any = None
        self._globalstep_last_logged = 0
        super().__init__(
            model=model,
            args=args,
            data_collator=collate,
            train_dataset=inputs.stream,
            eval_dataset=inputs.validation or None,
            callbacks=[_StepHooks(self)],
        )
        # The Trainer divides each loss by the number of micro-batches; `compute_loss` undoes that.
        self.model_accepts_loss_kwargs = False

    def train(self, *arguments: Any, **options: Any) -> Any:
        try:
            return super().train(*arguments, **options)
        except ContextwiseError as error:
            if "DataLoader worker" in str(error):  # torch has put the traceback of that process into the message
                error.args = (str(error).rpartition(f".{type(error).__name__}: ")[2].strip(),)
            raise

    # ---- forward and backward ----

    def get_train_dataloader(self) -> DataLoader:
        """Load this process's micro-batches of one step at a time, of which the Trainer makes no gradient accumulation."""
        args, limit, processes = self.args, self.args.per_device_train_batch_size, self.accelerator.num_processes
        return DataLoader(
            self.train_dataset,
            batch_sampler=StepIndices(
                args.max_steps, self.recipe.examples_per_step, args.process_index, processes, limit
            ),
            collate_fn=partial(collate_step, limit=limit),
            num_workers=args.dataloader_num_workers,
            worker_init_fn=end_with_parent,
            pin_memory=args.dataloader_pin_memory,
        )

    def _prepare_input(self, data: Any) -> Any:
        """Move tensors to the device as in the Trainer, but without waiting for it."""
        if isinstance(data, torch.Tensor):
            return data.to(self.args.device, non_blocking=True)
        return super()._prepare_input(data)

    def training_step(self, model: nn.Module, inputs: Any, *args: Any) -> torch.Tensor:
        """Forward and backward of a step's micro-batches; returns the mean of their losses, ()."""
        self._inputs = [divided(self._prepare_inputs(batch), self._context) for batch in inputs]
        self.current_gradient_accumulation_steps = len(self._inputs)
        counts = [torch.stack([targets_in(batch), pairs_in(batch)]) for batch in self._inputs]
        self._targets = torch.stack(counts).sum(0)
        if self.accelerator.num_processes > 1:
            dist.all_reduce(self._targets)
        for number, batch in enumerate(self._inputs, start=1):
            last = number == len(self._inputs)
            with contextlib.nullcontext() if last else self.accelerator.no_sync(model):
                self._losses.append(super().training_step(model, batch))
            self._parts.append(self.part_sums(model))
        return torch.stack(self._losses).sum()

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *_: Any, **__: Any) -> torch.Tensor:
        """Compute a micro-batch's share in the mean over all targets of its step, nats.

        The Trainer then averages over micro-batches, and the processes over each other.
        """
        batch = {name: value for name, value in inputs.items() if name not in NOT_FOR_MODELS}
        if not model.training:
            return model(**batch)
        shares = self.current_gradient_accumulation_steps * self.accelerator.num_processes
        targets, pairs = self._targets / shares
        return model(**batch, targets=targets, pairs=pairs)

    @property
    def _context(self) -> int:
        """The context of the windows in the step that is being taken."""
        examples = self.state.global_step * self.recipe.examples_per_step
        for stage, context in self.recipe.windows:
            if examples < stage:
                return context
            examples -= stage
        return self.recipe.data.context

    def part_sums(self, model: nn.Module) -> torch.Tensor:
        """Sums and counts of the last batch's losses by part: (2, parts)."""
        last = self.unwrapped(model).last
        return torch.stack([last.sums.double(), last.counts.double()])

    def sum_over_processes(self, values: torch.Tensor) -> torch.Tensor:
        """The sums of ``values`` over all processes; every process must call it."""
        if self.accelerator.num_processes == 1:
            return values
        shared = values.to(self.args.device, torch.float64)
        dist.all_reduce(shared)
        return shared.cpu()

    def unwrapped(self, model: nn.Module) -> Any:
        return self.accelerator.unwrap_model(model, keep_torch_compile=False)

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        """The norm before clipping, or without any (``clip: 0``)."""
        self._norm = super()._get_grad_norm(model, grad_norm)
        return self._norm

    def check_step(self) -> None:
        """Sum the step's loss over the processes; a DivergedError before the weights change if one is not finite."""
        encoder_decoder = self.unwrapped(self.model_wrapped).model.config.is_encoder_decoder
        read = torch.stack([tokens_read(inputs, encoder_decoder) for inputs in self._inputs]).sum()
        processes = self.accelerator.num_processes
        loss_here = torch.stack(self._losses).sum() / processes
        parts_here = torch.stack(self._parts).sum(0).flatten()
        stop_here = torch.full_like(loss_here, interruption.requested)
        norm = torch.zeros_like(loss_here) if self._norm is None else self._norm
        norm_here = (norm.full_tensor() if isinstance(norm, DTensor) else norm).to(loss_here) / processes
        here = torch.stack([loss_here, norm_here, stop_here, read]).double()
        # One transfer from the device for all values: a step waits for the device once.
        values = self.sum_over_processes(torch.cat([here, parts_here]))
        loss, norm, stop, inputs_read, *parts = values.tolist()
        if not (math.isfinite(loss) and math.isfinite(norm)):
            self._refuse_step(loss, norm)
        if stop:
            self.control.should_save = self.control.should_training_stop = True
        names = self.unwrapped(self.model_wrapped).last.names
        means = [total / max(count, 1) for total, count in zip(parts, parts[len(names) :], strict=False)]
        by_name = dict(zip(names, means, strict=True)) if len(names) > 1 else {}
        self.metrics.add_step(loss, norm, round(inputs_read), round(parts[len(names)]), by_name)

    def _refuse_step(self, loss: float, norm: float) -> NoReturn:
        """Raise an error that names the windows of the step."""
        windows = gather_object([str(window) for inputs in self._inputs for window in inputs["window"].tolist()])
        what = f"the loss is {loss}" if not math.isfinite(loss) else f"the gradient's norm is {norm}"
        last = checkpoints.list_checkpoints(self.run.checkpoints)
        raise DivergedError(
            f"{what} at step {self.state.global_step + 1} (window{'s' * (len(windows) > 1)} "
            f"{', '.join(list(dict.fromkeys(windows))[:8])} of the training data); the step was not taken; "
            + (f"the last good checkpoint is {last[-1]}" if last else "there is no checkpoint before it")
            + "; a lower training.learning_rate or a longer warm-up is the usual fix"
        )

    def end_step(self) -> None:
        """Clear the micro-batches of a finished step."""
        self._losses.clear()
        self._parts.clear()
        self.metrics.stop_clock()

    def record(self, row: dict[str, Any]) -> None:
        """Append a row to ``metrics.jsonl``."""
        if self.is_world_process_zero():
            self.run.append_metrics(row)

    # ---- optimizer ----

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        if self.optimizer is None:
            module = model if model is not None else self.model
            scales = parameter_scales(self.recipe, self.model.model.config)
            rate, bf16 = self.args.learning_rate, self.args.bf16
            self.optimizer = create_optimizer(module, self.settings, rate, scales, bf16)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        share = learning_rate_share(self.settings, num_training_steps)
        rates = torch.optim.lr_scheduler.LambdaLR(optimizer or self.optimizer, lambda step: share(float(step)))
        self.lr_scheduler, self._created_lr_scheduler = rates, True
        return rates

    # ---- logging and evaluation ----

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Write a row of ``metrics.jsonl``, and pass it to the trackers."""
        if "learning_rate" in logs:
            row = self.metrics.training_row(self.state.global_step, logs["learning_rate"])
        elif "validation_loss" in logs:
            losses = {name.removeprefix("validation_"): value for name, value in logs.items()}
            row = self.metrics.row("validation", self.state.global_step, losses)
        else:
            return
        self.record(row)
        # Call the callbacks (trackers, progress) directly: the Trainer's own history would grow with every checkpoint.
        self.control = self.callback_handler.on_log(self.args, self.state, self.control, logs=row)

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        # Log before the Trainer does, which would read loss and norm from the device: `check_step` has read them.
        if self.control.should_log and self.state.global_step > self._globalstep_last_logged:
            self._globalstep_last_logged = self.state.global_step
            self.log({"learning_rate": kwargs["learning_rate"]})
        super()._maybe_log_save_evaluate(*args, **kwargs)
        self.metrics.start_clock()

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Compute the mean loss of each set of validation examples, in nats per target, and count those of the corpus."""
        metrics: dict[str, Any] = {}
        for name, examples in self.validation.items():
            metrics[f"validation_{name}"] = self._mean_loss(examples)
            if name == "loss":
                metrics["validation_examples"] = len(examples)  # type: ignore[arg-type]
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def shared_batches(self, examples: Any) -> Iterator[tuple[range, dict[str, torch.Tensor]]]:
        """Yield this process's batches of ``examples``: their indices, and the inputs on its device.

        Sharded models need all processes in every round: a process without examples in a round runs the first example with an
        empty range of indices.
        """
        rank, world = self.args.process_index, self.accelerator.num_processes
        count, batch = len(examples), max(1, self.args.per_device_train_batch_size)
        for start in range(0, count, batch * world):
            first = min(start + rank * batch, count)
            rows = range(first, min(first + batch, count))
            yield rows, self._prepare_inputs(collate([examples[i] for i in rows] or [examples[0]]))

    def _mean_loss(self, examples: Any) -> float:
        """Mean loss of all examples, in nats per target."""
        total = torch.zeros(2, dtype=torch.float64, device=self.args.device)
        model = self.model_wrapped
        model.eval()
        # Not compiled once more, for another precision.
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            for rows, inputs in self.shared_batches(examples):
                with self.compute_loss_context_manager():
                    self.compute_loss(model, inputs)
                if rows:
                    total += self.part_sums(model)[:, 0]
        total = self.sum_over_processes(total)
        return (total[0] / total[1]).item()

    # ---- checkpoints ----

    def _save_checkpoint(self, *_: Any, **__: Any) -> None:
        """Write ``checkpoints/step-N``; every process takes part, the first one writes."""
        target = self.run.checkpoints / f"step-{self.state.global_step}"
        random_states = gather_object([random_state()])
        weights = checkpoints.gather_weights(self.model_wrapped)
        moments = checkpoints.gather_optimizer(self.model_wrapped, _bare(self.optimizer))
        if self.is_world_process_zero() and not target.exists():
            self.run.sync_metrics()  # a run that resumes does not repeat the steps before the checkpoint
            with atomic_directory(target, "the checkpoint", held=True) as folder:
                checkpoints.write_weights(folder, weights)
                groups = checkpoints.write_optimizer(folder, moments)
                self.state.save_to_json(str(folder / TRAINER_STATE_NAME))
                state = {
                    "format": 1,
                    "step": self.state.global_step,
                    "metrics": self.metrics.state(),
                    "fingerprints": self.fingerprints,
                    "recipe": self.recipe.resolved(),
                    "optimizer_groups": groups,
                    "random": random_states,
                }
                write_json(folder / checkpoints.STATE, state, "the checkpoint")
                seal(folder)
            checkpoints.prune_run(self.run, self.recipe)
        self.accelerator.wait_for_everyone()

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        """Do nothing: weights are loaded with the optimizer, when the model is wrapped."""

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        folder = Path(checkpoint)
        state, optimizer = checkpoints.read_state(folder), _bare(self.optimizer)
        checkpoints.restore(folder, self.model_wrapped, optimizer, state["optimizer_groups"])
        schedule = {"last_epoch": state["step"], "_step_count": state["step"] + 1}
        rates = [group["lr"] for group in optimizer.param_groups]
        self.lr_scheduler.load_state_dict(self.lr_scheduler.state_dict() | schedule | {"_last_lr": rates})
        self.metrics.restore(state["metrics"])
        if folder.parent != self.run.checkpoints:
            self.metrics.branch(str(self.settings.trunk))

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            states = checkpoints.read_state(Path(checkpoint))["random"]
            if len(states) == self.accelerator.num_processes:
                with checkpoints.of_this_version(Path(checkpoint)):
                    restore_random_state(states[self.args.process_index])

    def whole_weights(self) -> dict[str, torch.Tensor]:
        """The trained model's weights, whole, on the CPU; every process must call it."""
        weights = checkpoints.gather_weights(self.model_wrapped)
        return {name.removeprefix("model."): tensor for name, tensor in weights.items()}


def _bare(optimizer: Any) -> torch.optim.Optimizer:
    return getattr(optimizer, "optimizer", optimizer)


class _StepHooks(TrainerCallback):
    """Hooks at points of a step for which the Trainer has no method to override."""

    def __init__(self, trainer: PretrainingTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        state.compute_steps(args, state.max_steps)  # a checkpoint's state has the intervals of another recipe
        self.trainer.metrics.start_clock()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.check_step()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.end_step()
        if state.global_step in self.trainer.recipe.branch_steps:
            control.should_save = True
