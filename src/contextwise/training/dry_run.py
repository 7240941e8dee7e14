"""A dry run: the time and the peak memory of a training run, measured on its first steps, of which nothing is kept.

The steps are those of the run itself: its first examples, forward and backward passes of its micro-batches, the optimizer, then
a checkpoint and the export, all in a temporary folder on the disk of the run folder. A step has two micro-batches at most:
further ones take as long as the second and hold no more memory.
"""

import tempfile
import time
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from transformers import TrainerCallback

from contextwise.base.files import disk_errors
from contextwise.base.machine import memory, peak_memory
from contextwise.base.progress import interruption, say
from contextwise.base.runs import RunFolder
from contextwise.base.undisturbed import without_launch_settings
from contextwise.models.building import training_memory
from contextwise.training.branching import trunk_checkpoint
from contextwise.training.export import export_model
from contextwise.training.inputs import TrainingInputs
from contextwise.training.recipe import Recipe
from contextwise.training.run import build_trainer, fast_steps, processes_of, training_arguments
from contextwise.training.trainer import PretrainingTrainer

MOST_STEPS = 12
"""Steps of a dry run; fewer if they are long, at least two. The first is not timed."""
TIMED_FLOPS = {"cpu": 2e12, "cuda": 2e14}
"""Operations of a dry run, about ten seconds, unless two steps need more."""


@dataclass(frozen=True)
class DryRun:
    """What a run takes.

    Pages of the memory-mapped corpus that a long run reads are not counted in its memory; the system can drop them.
    """

    device: str  # "cpu", or the GPU's name
    processes: int  # that train together
    threads: int  # of each process
    precision: str  # of the matrix products, "bf16" or "fp32"
    micro_batch_tokens: int  # of a forward pass
    micro_batches: int  # forward passes of a step, of each process
    # 0 if the machine has too little memory for them: then seconds are None, and the peak is estimated.
    timed_steps: int
    step_seconds: float | None  # of a step of the run, a median
    training_seconds: float | None  # of the tokens of the run, of a branch those of its decay
    validation_seconds: float | None  # of validations and context curves, a forward pass as a third of a training step
    peak_bytes: int  # the most memory of the process, or of the GPU
    start_bytes: int  # memory before the model
    free_bytes: int  # available on the machine or the GPU
    notes: dict[str, str] = field(default_factory=dict)  # by subject


@without_launch_settings()
def dry_run(recipe: Recipe, *, saves: bool = True) -> DryRun:
    """Measure the first steps of a recipe's run; the run folder is not written to.

    The peak is that of the whole process so far, so call this in a process of its own. With ``saves`` a checkpoint and the
    exported model count in it; the time of a step needs neither. Raises what :func:`contextwise.training.train` would.
    """
    run = RunFolder(recipe.folder)
    run.check_free(recipe.resolved())
    trained_steps = recipe.total_steps
    if trunk_checkpoint(recipe, run) is not None:
        trained_steps = recipe.training.decay(trained_steps)
    longer = recipe.with_training(steps=2, tokens=None, epochs=None)
    inputs = TrainingInputs.open(longer if trained_steps < 2 else recipe)
    processes = processes_of(recipe)
    on_cpu = processes.device.type == "cpu"
    args = training_arguments(recipe, run, inputs, processes)
    micro = args.per_device_train_batch_size
    passes = recipe.examples_per_step // processes.num_processes // micro
    start = memory().resident if on_cpu else torch.cuda.memory_allocated()
    free = memory().available if on_cpu else torch.cuda.mem_get_info()[0]
    state, activations = training_memory(inputs.config, micro * sum(inputs.lengths))
    needed = state + (0 if recipe.training.gradient_checkpointing else activations * (1 if args.bf16 else 2))
    peak, timed, step_seconds = start + needed, 0, None
    # Several processes must decide alike, and shards are smaller.
    if needed < free or processes.num_processes > 1:
        beside = next(folder for folder in recipe.folder.absolute().parents if folder.is_dir())
        with disk_errors("the dry run", recipe.folder):
            temporary = tempfile.TemporaryDirectory(prefix=f".{recipe.folder.name}-dry-run-", dir=beside)
        with temporary as folder, fast_steps(processes.device.type):
            short = _shortened(recipe, min(passes, 2) * micro * processes.num_processes)
            short = short.with_training(precision="bf16" if args.bf16 else "fp32")  # that of a run that has begun
            trainer = build_trainer(short, RunFolder(folder), inputs, processes)
            steps = _Steps(trainer, recipe.total_steps, passes, TIMED_FLOPS["cpu" if on_cpu else "cuda"])
            trainer.add_callback(steps)
            trainer.train()
            interruption.check("stopped while the first steps were timed; run the same command again")
            if saves:
                trainer._save_checkpoint()
                weights = trainer.whole_weights()
                if processes.is_main_process:
                    export_model(trainer.run, inputs, weights)
        peak = max(start, peak_memory())  # the system counts the two at different moments
        timed, step_seconds = len(steps.seconds), median(steps.seconds)
    stages = {"context stages": "timed are steps of the longest windows; those of shorter ones take less"}
    validation = step_seconds and step_seconds / recipe.tokens_per_step * _held_out_tokens(recipe, inputs) / 3
    return DryRun(
        device="cpu" if on_cpu else torch.cuda.get_device_name(),
        processes=processes.num_processes,
        threads=torch.get_num_threads(),
        precision="bf16" if args.bf16 else "fp32",
        micro_batch_tokens=micro * recipe.data.context,
        micro_batches=passes,
        timed_steps=timed,
        step_seconds=step_seconds,
        training_seconds=step_seconds and step_seconds * trained_steps,
        validation_seconds=validation,
        peak_bytes=peak,
        start_bytes=start,
        free_bytes=free,
        notes=stages if len(recipe.windows) > 1 else {},
    )


def _shortened(recipe: Recipe, examples: int) -> Recipe:
    """The recipe with this many examples in a step, and without measurements and checkpoints along the way."""
    never = max(2, recipe.total_steps) + 1
    data = recipe.data.model_copy(update={"context_stages": {}})  # the longest windows need the most memory
    return recipe.model_copy(update={"data": data}).with_training(
        steps=never - 1,
        tokens=None,
        epochs=None,
        tokens_per_step=examples * recipe.data.context,
        examples_per_step=None,
        branches=[],
        trunk=None,
        log_every=never,
        save_every=never,
        evaluate_every=0,
        trackers=[],
    )


def _held_out_tokens(recipe: Recipe, inputs: TrainingInputs) -> int:
    """Tokens of all validations and context curves of a run."""
    settings, steps = recipe.training, recipe.total_steps
    held_out: list[Any] = list(inputs.validation.values())
    validation = sum(len(examples) for examples in held_out)
    examples = validation * -(-steps // (settings.evaluate_every or steps))
    if inputs.curve is not None:
        examples += len(inputs.curve) * -(-steps // settings.curve_every)
    return examples * recipe.data.context


class _Steps(TrainerCallback):
    """Times steps of a run of ``total`` steps with so many forward passes each, and stops after about ``flops`` operations."""

    def __init__(self, trainer: PretrainingTrainer, total: int, passes: int, flops: float) -> None:
        self.share = passes / min(passes, 2)  # of the passes of a step here
        self.seconds: list[float] = []
        self.optimizer = self.before = self.checked = 0.0
        metrics = trainer.metrics
        example = metrics.example_flops[-1][1] + metrics.example_tokens * metrics.flops_per_target
        step = example * metrics.examples_per_step
        self.last = max(2, min(MOST_STEPS, total, int(flops / step)))
        if self.last * step > 3 * flops:
            say(f"{self.last} steps of {step:.1e} FLOPs each are timed, which may take minutes")

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # The trainer has read the loss from the device, so the step's passes have ended.
        self.checked = time.perf_counter()
        if state.global_step:
            passes = self.checked - self.before - self.optimizer
            self.seconds.append(passes * self.share + self.optimizer)
        self.before = self.checked

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.optimizer = time.perf_counter() - self.checked

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        stop = control.should_training_stop or interruption.requested
        control.should_training_stop = stop or state.global_step >= self.last
