"""A training run from recipe to exported model; started again, it goes on where it stopped."""

from pathlib import Path

import torch
from accelerate import PartialState
from transformers import set_seed
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from contextwise.base.errors import Interrupted
from contextwise.base.memory import keep_freed_memory
from contextwise.base.progress import say
from contextwise.base.runs import RunFolder
from contextwise.models.flops import training_flops_per_example, training_flops_per_target
from contextwise.models.sizes import readable_count
from contextwise.training import checkpoints
from contextwise.training.arguments import training_arguments
from contextwise.training.claim import ClaimedRun, find_checkpoint, fingerprints
from contextwise.training.cue.settings import TRAINED
from contextwise.training.early import EarlyStopping
from contextwise.training.export import export_model, write_summary
from contextwise.training.live import LiveProgress
from contextwise.training.meter import Meter, StepCost, peak_flops
from contextwise.training.recipe import Recipe, with_newer_settings
from contextwise.training.signals import StopRequest
from contextwise.training.start import starting_model, trained_parameters
from contextwise.training.task import Task
from contextwise.training.trainer import PretrainingTrainer, StepAbandoned


def train(recipe: Recipe) -> RunFolder:
    """Run a recipe to its end, or go on with it.

    1. See that the run folder holds nothing else; open the corpus and check the recipe against it.
    2. Claim the run folder; find the newest sound checkpoint, if the run was begun before.
    3. Train; a signal to stop saves and ends the process.
    4. Export the model with its tokenizer, and write the summary.

    Returns:
        The finished run's folder.

    Raises:
        ConfigError, DataError, CheckpointError: the input is at fault.
        TrainingError: a loss or gradient that is not finite.
        Interrupted: a signal asked to stop; all is saved.
    """
    run = RunFolder(recipe.folder)
    run.check_free(recipe.resolved(), with_newer_settings)
    task = Task.of(recipe)
    processes = PartialState(cpu=not torch.cuda.is_available())  # gloo on CPU, NCCL on GPU
    if processes.device.type == "cpu":
        keep_freed_memory()

    with StopRequest().listening() as stop, ClaimedRun(run, recipe, processes):
        if run.finished:
            if processes.is_main_process:
                say(f"{run.path} is finished already: nothing to do")
            return run
        checkpoint = find_checkpoint(run, task.corpora, processes, recipe.data.verify)
        trainer = _trainer(recipe, run, task, processes, stop)
        if processes.is_main_process:
            trainer.add_callback(LiveProgress(recipe.name, recipe.training.total_steps))
            _announce(recipe, task, trainer.model, checkpoint)
        early = EarlyStopping.of(trainer, recipe.training.patience)
        _train_or_stop(trainer, stop, checkpoint, recipe.training.total_steps, early)
        _finish(trainer, run, recipe, task, processes, early)
    return run


def _trainer(
    recipe: Recipe, run: RunFolder, task: Task, processes: PartialState, stop: StopRequest
) -> PretrainingTrainer:
    set_seed(recipe.seed)
    model = starting_model(recipe, task.config)
    if recipe.training.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    trainer = PretrainingTrainer(
        model=model,
        args=training_arguments(
            recipe, run, type(model)._no_split_modules or [], processes, bool(task.validation)
        ),
        run=run,
        stream=task.stream,
        validation=task.validation,
        meter=_meter(recipe, task, processes),
        stop=stop,
        fingerprints=fingerprints(task.corpora),
        keep=recipe.training.keep_checkpoints,
        curve=task.curve,
        curve_every=recipe.training.contextwise_every,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    return trainer


def _meter(recipe: Recipe, task: Task, processes: PartialState) -> Meter:
    peak = peak_flops(torch.cuda.get_device_name() if torch.cuda.is_available() else None)
    inputs, outputs = task.lengths
    examples = recipe.training.tokens_per_step // recipe.data.context
    trained = None if recipe.model.cue is None else TRAINED[recipe.model.cue.stage]
    cost = StepCost(
        recipe.training.tokens_per_step,
        examples * training_flops_per_example(task.config, inputs, outputs, trained),
        training_flops_per_target(task.config, trained),
    )
    return Meter(cost, peak * processes.num_processes if peak else None)


def _announce(recipe: Recipe, task: Task, model: torch.nn.Module, checkpoint: Path | None) -> None:
    if task.added_tokens:
        shown = ", ".join(task.added_tokens[:6]) + (" …" if len(task.added_tokens) > 6 else "")
        say(f"{len(task.added_tokens)} special tokens were added to the tokenizer: {shown}")
    count = sum(parameter.numel() for parameter in model.parameters())
    parameters, trained = readable_count(count), trained_parameters(model)
    frozen = f", {readable_count(trained)} of them trained" if trained < count else ""
    tokens = readable_count(recipe.training.total_steps * recipe.training.tokens_per_step)
    start = f"going on from step {checkpoints.step_of(checkpoint)}" if checkpoint else "from the start"
    say(f"{recipe.name}: {parameters} parameters{frozen}, {tokens} tokens, {start}")


def _train_or_stop(
    trainer: PretrainingTrainer,
    stop: StopRequest,
    checkpoint: Path | None,
    steps: int,
    early: EarlyStopping | None,
) -> None:
    """Train to the last step.

    Raises:
        Interrupted: asked to stop before that; the state is saved.
    """
    try:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    except StepAbandoned as abandoned:
        # The weights are still those of the step before, and so must be the random numbers.
        trainer.save(abandoned.random)
    if trainer.state.global_step < steps and not (early is not None and early.over):
        raise Interrupted(
            f"stopped by {stop.name or 'a signal'} at step {trainer.state.global_step} of {steps}; "
            "the same command goes on from there"
        )


def _finish(
    trainer: PretrainingTrainer,
    run: RunFolder,
    recipe: Recipe,
    task: Task,
    processes: PartialState,
    early: EarlyStopping | None,
) -> None:
    """Last validation, export, summary. The summary comes last: with it the run counts as finished.

    Raises:
        Interrupted: asked to stop during the last validation.
    """
    validated = [row["step"] for row in run.metrics("validation")]
    processes.wait_for_everyone()
    if trainer.validation and trainer.state.global_step not in validated:
        trainer.evaluate()
        if trainer.evaluation_pending:
            raise Interrupted("stopped in the last validation; the same command goes on from there")
    weights = trainer.whole_weights() if early is None else early.best_weights()
    if processes.is_main_process:
        export_model(run, task, weights)
        write_summary(run, recipe, task, trainer.meter, trained_parameters(trainer.model))
    processes.wait_for_everyone()
