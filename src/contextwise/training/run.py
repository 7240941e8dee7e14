"""A training run from recipe to exported model; a stopped run resumes from its newest checkpoint."""

from pathlib import Path

import torch
from accelerate import PartialState
from transformers import set_seed
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from contextwise.base.errors import Interrupted
from contextwise.base.machine import keep_freed_memory
from contextwise.base.progress import interruption, say
from contextwise.base.runs import RunFolder
from contextwise.models.sizes import readable_count
from contextwise.models.spec import training_flops_per_example, training_flops_per_target
from contextwise.training import checkpoints
from contextwise.training.arguments import training_arguments
from contextwise.training.export import export_model, write_summary
from contextwise.training.hooks.curve import ContextCurve
from contextwise.training.hooks.early_stopping import EarlyStopping
from contextwise.training.hooks.progress import ProgressLine
from contextwise.training.inputs import TrainingInputs
from contextwise.training.metrics import RunMetrics, StepCost, peak_flops
from contextwise.training.model import starting_model, trained_parameters
from contextwise.training.recipe import CueModel, Recipe, with_newer_settings
from contextwise.training.recipe.cue import TRAINED
from contextwise.training.resume import find_checkpoint, fingerprints, run_lock
from contextwise.training.trainer import PretrainingTrainer, StepAbandoned


def train(recipe: Recipe) -> RunFolder:
    """Train a recipe to its end; a stopped run resumes from its newest checkpoint.

    1. Check that the run folder contains no other run; open the corpus and check the recipe against it.
    2. Lock the run folder; find the newest intact checkpoint.
    3. Train; a signal to stop saves and ends the process.
    4. Export the model with its tokenizer, and write the summary.

    Returns:
        The finished run's folder.

    Raises:
        ConfigError, DataError, CheckpointError: the input is invalid.
        TrainingError: a loss or gradient is not finite.
        Interrupted: a signal requested a stop; the state is saved.
    """
    run = RunFolder(recipe.folder)
    run.check_free(recipe.resolved(), with_newer_settings)
    inputs = TrainingInputs.open(recipe)
    processes = PartialState(cpu=not torch.cuda.is_available())  # gloo on CPU, NCCL on GPU
    if processes.device.type == "cpu":
        keep_freed_memory()

    with interruption.listening(), run_lock(run, recipe, processes):
        if run.finished:
            if processes.is_main_process:
                say(f"{run.path} is finished already: nothing to do")
            return run
        verify = getattr(recipe.data, "verify", True)
        checkpoint = find_checkpoint(run, inputs.corpora, processes, verify)
        trainer = _trainer(recipe, run, inputs, processes)
        if processes.is_main_process:
            trainer.add_callback(ProgressLine(recipe.name, recipe.total_steps))
            _announce(recipe, inputs, trainer.model, checkpoint)
        if inputs.curve is not None:
            trainer.add_callback(ContextCurve(trainer, inputs.curve, recipe.training.curve_every))
        early = None
        if recipe.training.patience is not None and inputs.validation:
            early = EarlyStopping(trainer, recipe.training.patience)
            trainer.add_callback(early)
        _train_or_stop(trainer, checkpoint, early)
        _finish(trainer, run, recipe, inputs, processes, early)
    return run


def _trainer(
    recipe: Recipe, run: RunFolder, inputs: TrainingInputs, processes: PartialState
) -> PretrainingTrainer:
    set_seed(recipe.seed)
    model = starting_model(recipe, inputs.config)
    if recipe.training.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    trainer = PretrainingTrainer(
        model=model,
        args=training_arguments(
            recipe, run, type(model)._no_split_modules or [], processes, bool(inputs.validation)
        ),
        run=run,
        stream=inputs.stream,
        validation=inputs.validation,
        metrics=_metrics(recipe, inputs, processes),
        fingerprints=fingerprints(inputs.corpora),
        settings=recipe.training,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    return trainer


def _metrics(recipe: Recipe, inputs: TrainingInputs, processes: PartialState) -> RunMetrics:
    peak = peak_flops(torch.cuda.get_device_name() if torch.cuda.is_available() else None)
    read, predicted = inputs.lengths
    trained = TRAINED[recipe.model.cue.stage] if isinstance(recipe.model, CueModel) else None
    cost = StepCost(
        recipe.tokens_per_step,
        recipe.examples_per_step * training_flops_per_example(inputs.config, read, predicted, trained),
        training_flops_per_target(inputs.config, trained),
    )
    return RunMetrics(cost, peak * processes.num_processes if peak else None)


def _announce(
    recipe: Recipe, inputs: TrainingInputs, model: torch.nn.Module, checkpoint: Path | None
) -> None:
    if inputs.added_tokens:
        shown = ", ".join(inputs.added_tokens[:6]) + (" …" if len(inputs.added_tokens) > 6 else "")
        say(f"{len(inputs.added_tokens)} special tokens were added to the tokenizer: {shown}")
    count = sum(parameter.numel() for parameter in model.parameters())
    parameters, trained = readable_count(count), trained_parameters(model)
    frozen = f", {readable_count(trained)} of them trained" if trained < count else ""
    tokens = readable_count(recipe.total_steps * recipe.tokens_per_step)
    start = f"resuming from step {checkpoints.step_of(checkpoint)}" if checkpoint else "from the start"
    say(f"{recipe.name}: {parameters} parameters{frozen}, {tokens} tokens, {start}")


def _train_or_stop(trainer: PretrainingTrainer, checkpoint: Path | None, early: EarlyStopping | None) -> None:
    """Train to the last step.

    Raises:
        Interrupted: a stop was requested before that; the state is saved.
    """
    try:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    except StepAbandoned as abandoned:
        # The weights are still those of the step before, so the random state must be too.
        trainer.save(abandoned.random)
    steps = trainer.args.max_steps
    if trainer.state.global_step < steps and not (early is not None and early.over):
        raise Interrupted(
            f"stopped by {interruption.signal or 'a signal'} at step {trainer.state.global_step} of {steps}; "
            "run the same command again to resume"
        )


def _finish(
    trainer: PretrainingTrainer,
    run: RunFolder,
    recipe: Recipe,
    inputs: TrainingInputs,
    processes: PartialState,
    early: EarlyStopping | None,
) -> None:
    """Run the last validation, export the model, and write the summary, which marks the run as finished.

    Raises:
        Interrupted: a stop was requested during the last validation.
    """
    validated = [row["step"] for row in run.metrics("validation")]
    processes.wait_for_everyone()
    if trainer.validation and trainer.state.global_step not in validated:
        trainer.evaluate()
        if trainer.evaluation_pending:
            raise Interrupted("stopped in the last validation; run the same command again to resume")
    weights = trainer.whole_weights() if early is None else early.best_weights()
    if processes.is_main_process:
        export_model(run, inputs, weights)
        write_summary(run, recipe, inputs, trainer.metrics, trained_parameters(trainer.model))
    processes.wait_for_everyone()
