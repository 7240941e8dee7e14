"""A training run from recipe to exported model; a stopped run resumes from its newest checkpoint."""

import contextlib
import importlib.util
import multiprocessing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from transformers import TrainingArguments, set_seed
from transformers.trainer_callback import PrinterCallback

from contextwise.base.errors import (
    ConfigError,
    ContextwiseError,
    DivergedError,
    Interrupted,
    Problem,
    not_installed,
    one_line,
)
from contextwise.base.estimates import count
from contextwise.base.files import atomic_write, remove_leftovers, write_sealed_json
from contextwise.base.machine import keep_freed_memory, memory
from contextwise.base.plugins import is_ours
from contextwise.base.progress import interruption, say
from contextwise.base.runs import RunFolder
from contextwise.base.undisturbed import without_launch_settings
from contextwise.models.attention import fast_attention
from contextwise.models.building import parameter_count, training_memory
from contextwise.models.variant.code import known_code
from contextwise.training import checkpoints
from contextwise.training.batches import micro_batch_size, tokens_per_pass
from contextwise.training.branching import find_checkpoint, precision_of, trunk_checkpoint, write_environment
from contextwise.training.export import export_model, write_summary
from contextwise.training.hooks import ContextCurve, EarlyStopping, ProgressLine
from contextwise.training.identity import is_sound
from contextwise.training.inputs import TrainingInputs
from contextwise.training.metrics import RunMetrics, peak_flops
from contextwise.training.model import TrainedModel, compile_for, run_flops, starting_model
from contextwise.training.recipe import Recipe
from contextwise.training.trainer import PretrainingTrainer


def processes_of(recipe: Recipe) -> PartialState:
    """The processes of this launch, on the device of a recipe: with gloo on a CPU, with NCCL on GPUs.

    A ConfigError if the recipe asks for a GPU and there is none, or if the processes cannot meet.
    """
    device, available = recipe.training.device, torch.cuda.is_available()
    if device == "cuda" and not available:
        why = "but torch finds no GPU on this machine"
        raise ConfigError(Problem(why, "training.device", device, "choose auto or cpu"))
    try:
        return PartialState(cpu=device == "cpu" or not available)
    except (ValueError, torch.distributed.DistError) as error:
        raise ConfigError(
            f"the environment says that this is one of several processes, which cannot meet ({one_line(error)}); start the "
            "processes with torchrun, or unset WORLD_SIZE, RANK and LOCAL_RANK"
        ) from None


@without_launch_settings()
def train(recipe: Recipe) -> RunFolder:
    """Train a recipe to its end; a stopped run resumes from its newest checkpoint.

    1. Check that the run folder contains no other run; open the corpus and check the recipe against it.
    2. Lock the run folder; find the newest intact checkpoint.
    3. Train; a signal to stop saves and ends the process.
    4. Export the model with its tokenizer, and write the summary, which marks the run as finished.

    Raises:
        ConfigError, DataError, CheckpointError: the input is invalid.
        DivergedError: a loss or gradient is not finite; ``diverged.json`` in the run folder says so too.
        Interrupted: a signal requested a stop; the state is saved.
    """
    run = RunFolder(recipe.folder)
    run.check_free(recipe.resolved())
    trunk = trunk_checkpoint(recipe, run)
    inputs = TrainingInputs.open(recipe)
    _ = inputs.fingerprints  # of the starting models as they are now, not when the first checkpoint is written
    processes = processes_of(recipe)
    with interruption.listening(), _run_lock(run, recipe, processes), fast_steps(processes.device.type):
        if run.finished and _in_first_process(processes, lambda: is_sound(run, recipe, inputs.fingerprints)):
            return run
        device_type = processes.device.type
        checkpoint = _in_first_process(processes, lambda: find_checkpoint(run, recipe, inputs, trunk, device_type))
        _check_memory(recipe, inputs, processes)
        trainer = build_trainer(recipe, run, inputs, processes)
        if inputs.curve is not None:
            trainer.add_callback(ContextCurve(trainer, inputs.curve, recipe.training.curve_every))
        early = None
        if recipe.training.patience is not None and inputs.validation:
            early = EarlyStopping(trainer, recipe.training.patience)
            trainer.add_callback(early)
        if processes.is_main_process:
            trainer.add_callback(ProgressLine(recipe.name, recipe.total_steps))
            _report(recipe, inputs, trainer, checkpoint)
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        step = trainer.state.global_step
        if step < recipe.total_steps and not (early is not None and early.over):
            raise Interrupted(
                f"stopped by {interruption.signal or 'a signal'} at step {step} of {recipe.total_steps}; "
                "run the same command again to resume"
            )
        validated = [row["step"] for row in run.metrics("validation")]
        trainer.accelerator.wait_for_everyone()
        if trainer.validation and step not in validated:
            trainer.evaluate()
        weights = trainer.whole_weights() if early is None else early.best_weights()
        if processes.is_main_process:
            export_model(run, inputs, weights)
            write_summary(trainer, inputs)
        trainer.accelerator.wait_for_everyone()
    return run


@contextlib.contextmanager
def fast_steps(device_type: str) -> Iterator[None]:
    """Set up this process for training steps on a device: how memory is reused, and how attention is computed."""
    if device_type == "cpu":
        keep_freed_memory()
    with fast_attention():
        yield


def _in_first_process(processes: PartialState, function: Callable[[], Any]) -> Any:
    """Call ``function`` in the first process; all processes get its result, or raise its error."""
    result: list[Any] = [None, None]
    if processes.is_main_process:
        try:
            result[0] = function()
        except ContextwiseError as error:
            result[1] = error
    broadcast_object_list(result)
    if result[1] is not None:
        raise result[1]
    return result[0]


@contextlib.contextmanager
def _run_lock(run: RunFolder, recipe: Recipe, processes: PartialState) -> Iterator[None]:
    """Lock the run folder while the block runs; write the recipe into it if it has none, and whether the run diverged."""
    with contextlib.ExitStack() as stack:

        def lock() -> None:
            stack.enter_context(run.locked())
            run.write_recipe(recipe.resolved())
            if not run.environment_file.exists():
                write_environment(run, recipe, processes.device.type)
            variant = getattr(recipe.model, "variant", None)
            if variant is not None:
                code = known_code(variant.sha256, variant.file)
                atomic_write(run.path / Path(variant.file).name, code.decode(), "the variant's code")
            run.divergence_file.unlink(missing_ok=True)
            for folder in (run.path, run.checkpoints, run.path / "parts"):
                remove_leftovers(folder)

        _in_first_process(processes, lock)
        try:
            yield
        except DivergedError as error:
            if processes.is_main_process:
                write_sealed_json(run.divergence_file, {"reason": str(error)}, "the reason")
            raise


def _check_memory(recipe: Recipe, inputs: TrainingInputs, processes: PartialState) -> None:
    """Raise a ConfigError if the machine cannot hold the weights, with gradients and moments where all are trained."""
    on_cpu = processes.device.type == "cpu"
    total = memory().total if on_cpu else torch.cuda.mem_get_info()[1]
    total *= processes.num_processes if recipe.training.fsdp and not on_cpu else 1
    needed, _ = training_memory(inputs.config, 0)
    if needed > total * (1 if recipe.model.trained is None else 4):
        parameters, where = (count(parameter_count(inputs.config)), "this machine" if on_cpu else "the GPU")
        raise ConfigError(
            f"the model has {parameters} parameters, which with gradients and optimizer take {needed / 1e9:,.0f} GB, but "
            f"{where} has {total / 1e9:,.0f} GB; take a smaller one"
        )


def build_trainer(
    recipe: Recipe, run: RunFolder, inputs: TrainingInputs, processes: PartialState
) -> PretrainingTrainer:
    """Build the model of a recipe with its initial weights, and its trainer, which writes into the folder ``run``."""
    args = training_arguments(recipe, run, inputs, processes)
    set_seed(recipe.seed)
    model = starting_model(recipe, inputs.config)
    if recipe.training.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    trained = TrainedModel(model)
    if recipe.training.compile:
        compile_for(trained, whole=processes.device.type == "cuda" and processes.num_processes == 1)
    stages, per_target = run_flops(recipe, inputs.config, inputs.lengths)
    peak = peak_flops(torch.cuda.get_device_name() if processes.device.type == "cuda" else None)
    metrics = RunMetrics(
        examples_per_step=recipe.examples_per_step,
        example_tokens=recipe.data.context,
        example_flops=stages,
        flops_per_target=per_target,
        peak=peak * processes.num_processes if peak else None,
    )
    trainer = PretrainingTrainer(trained, args, run, inputs, metrics, recipe)
    trainer.remove_callback(PrinterCallback)
    return trainer


def training_arguments(
    recipe: Recipe, run: RunFolder, inputs: TrainingInputs, processes: PartialState
) -> TrainingArguments:
    """Convert a recipe's training settings."""
    settings = recipe.training
    if missing := [name for name in settings.trackers if importlib.util.find_spec(name) is None]:
        raise ConfigError(f"training.trackers has {missing[0]}, {not_installed(missing[0])}, or leave it out")
    on_cpu = processes.device.type == "cpu"
    sharding: dict[str, Any] = {}
    if settings.fsdp:
        if processes.num_processes == 1:
            why = "training.fsdp shards over processes"
            raise ConfigError(f"{why}: start with torchrun --nproc-per-node 2 or more")
        # The units are the blocks that the model names (_no_split_modules).
        sharding = {"fsdp": True, "fsdp_config": {"version": 2, "auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}}
    alone = multiprocessing.current_process().daemon  # a daemon may start no processes
    args = TrainingArguments(
        output_dir=str(run.path),
        run_name=recipe.name,
        seed=recipe.seed,
        data_seed=recipe.seed,
        max_steps=recipe.total_steps,
        per_device_train_batch_size=examples_per_pass(recipe, processes),
        train_sampling_strategy="sequential",
        dataloader_num_workers=0 if alone else (0 if on_cpu else 2) if settings.workers is None else settings.workers,
        dataloader_pin_memory=not on_cpu,
        dataloader_drop_last=True,
        remove_unused_columns=False,
        learning_rate=recipe.learning_rate,
        max_grad_norm=settings.clip,
        bf16=precision_of(recipe, run, processes.device.type) == "bf16",
        tf32=True if torch.cuda.is_available() and torch.cuda.get_device_capability()[0] >= 8 else None,
        use_cpu=on_cpu,
        # A micro-batch without a complete chunk leaves ContextLM's predictor unused; the user's code, what it likes.
        ddp_find_unused_parameters=is_ours(type(inputs.config).__module__),
        logging_strategy="steps",
        logging_steps=settings.log_every,
        logging_nan_inf_filter=False,
        eval_strategy="steps" if inputs.validation and settings.evaluate_every else "no",
        eval_steps=settings.evaluate_every or None,
        save_strategy="steps",
        save_steps=settings.save_every,
        report_to=list(settings.trackers) or "none",
        disable_tqdm=True,
        **sharding,
    )
    # A process trains on one GPU: with several in view, transformers would give each of them a batch (nn.DataParallel).
    args._n_gpu = min(args.n_gpu, 1)
    return args


def examples_per_pass(recipe: Recipe, processes: PartialState) -> int:
    """Examples in a forward pass of one process."""
    context = recipe.data.context
    if recipe.examples_per_step % processes.num_processes:
        raise ConfigError(
            f"training.tokens_per_step is {recipe.tokens_per_step}: its windows cannot be divided evenly among "
            f"{processes.num_processes} processes; make it a multiple of {processes.num_processes * context}"
        )
    whole = recipe.objective.whole_steps
    limit = max(1, tokens_per_pass(recipe, processes.device.type) // context)
    if whole and (processes.num_processes > 1 or limit < recipe.examples_per_step):
        why = f"over {processes.num_processes} processes" if processes.num_processes > 1 else "into micro-batches"
        raise ConfigError(
            f"the objective {recipe.objective.name!r} compares all examples of a step, which cannot be divided {why}; "
            f"train in one process, with training.micro_batch_tokens of at least {recipe.tokens_per_step}, or lower "
            "training.tokens_per_step"
        )
    return micro_batch_size(recipe.examples_per_step // processes.num_processes, limit)


def _report(recipe: Recipe, inputs: TrainingInputs, trainer: PretrainingTrainer, checkpoint: Path | None) -> None:
    if inputs.added_tokens:
        shown = ", ".join(inputs.added_tokens[:6]) + (" …" if len(inputs.added_tokens) > 6 else "")
        say(f"{len(inputs.added_tokens)} special tokens were added to the tokenizer: {shown}")
    parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
    trained = trainer.get_num_trainable_parameters()
    frozen = f", {count(trained)} of them trained" if trained < parameters else ""
    start = "from the start"
    if checkpoint is not None:
        own = checkpoint.parent == RunFolder(recipe.folder).checkpoints
        start = f"resuming from step {checkpoints.step_of(checkpoint)}{'' if own else f' of {recipe.training.trunk}'}"
    precision = "bf16" if trainer.args.bf16 else "fp32"
    amounts = f"{count(parameters)} parameters{frozen}, {count(recipe.total_tokens)} tokens"
    say(f"{recipe.name}: {amounts}, seed {recipe.seed}, {precision}, {start}\n  {recipe.rates_in_words}")
