"""A training run from recipe to exported model; started again, it goes on where it stopped."""

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import PartialState
from transformers import TrainingArguments, set_seed
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from contextwise.base.environment import describe_environment
from contextwise.base.errors import CheckpointError, ConfigError, ContextwiseError, Interrupted
from contextwise.base.files import PARTIAL, atomic_directory, read_json, write_json
from contextwise.base.progress import say
from contextwise.base.runs import RunFolder
from contextwise.data.corpus import Corpus
from contextwise.data.windows import Windows, WindowStream
from contextwise.models.sizes import build_model, readable_count, training_flops_per_token
from contextwise.training import checkpoints
from contextwise.training.live import LiveProgress
from contextwise.training.meter import Meter, peak_flops
from contextwise.training.recipe import Recipe
from contextwise.training.signals import StopRequest
from contextwise.training.trainer import PretrainingTrainer, StepAbandoned

DEFAULT_MICRO_BATCH_TOKENS = {"cpu": 8192, "cuda": 32768}


def train(recipe: Recipe) -> RunFolder:
    """Run a recipe to its end, or go on with it.

    1. Open the corpus and check the recipe against it.
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
    corpus = Corpus.open(recipe.data.corpus, split=recipe.data.split)
    config = recipe.model.build_config(_vocabulary(corpus), recipe.data.context, corpus.end_of_text)
    windows = _windows(recipe, corpus)
    validation = _validation_windows(recipe, corpus)
    processes = PartialState(cpu=not torch.cuda.is_available())  # gloo on CPU, NCCL on GPU
    windows_per_process, micro = _batch(recipe, processes)

    with StopRequest().listening() as stop:
        with _claimed(run, recipe, processes):
            if run.finished:
                if processes.is_main_process:
                    say(f"{run.path} is finished already: nothing to do")
                return run
            checkpoint = _find_checkpoint(run, corpus, processes, recipe.data.verify)
            stream = WindowStream(
                windows, recipe.seed, recipe.training.total_steps * recipe.training.tokens_per_step // recipe.data.context
            )
            set_seed(recipe.seed)
            model = build_model(config)
            if recipe.training.gradient_checkpointing:
                model.gradient_checkpointing_enable({"use_reentrant": False})
            meter = _meter(recipe, config, processes)
            trainer = PretrainingTrainer(
                model=model,
                args=_arguments(recipe, run, windows_per_process, micro, type(model)._no_split_modules or [], processes),
                run=run,
                stream=stream,
                validation=validation,
                evaluation_windows=max(1, recipe.training.evaluation_tokens // recipe.data.context),
                meter=meter,
                stop=stop,
                fingerprints=_fingerprints(corpus),
                keep=recipe.training.keep_checkpoints,
            )
            trainer.remove_callback(PrinterCallback)
            trainer.remove_callback(ProgressCallback)
            if processes.is_main_process:
                trainer.add_callback(LiveProgress(recipe.name, recipe.training.total_steps))
                _announce(recipe, model, checkpoint)
            _train_or_stop(trainer, stop, checkpoint, recipe.training.total_steps)
            _finish(trainer, run, recipe, corpus, processes)
    return run


def _vocabulary(corpus: Corpus) -> int:
    if corpus.vocab_size is not None:
        return corpus.vocab_size
    # A .bin or Zarr array says nothing of its tokenizer: take what its number type can hold, at most GPT-2's size
    # rounded up to a multiple of 64, which covers the tokenizers such files are made with.
    return 50_304


def _windows(recipe: Recipe, corpus: Corpus) -> Windows:
    return Windows(corpus, recipe.data.context, recipe.data.cross_documents, recipe.data.separate_documents)


def _validation_windows(recipe: Recipe, corpus: Corpus) -> Windows | None:
    if recipe.data.validation_split not in corpus.splits:
        return None
    try:
        return _windows(recipe, Corpus.open(recipe.data.corpus, split=recipe.data.validation_split))
    except ContextwiseError as error:
        say(f"note: no validation while training: {error}")
        return None


def _batch(recipe: Recipe, processes: PartialState) -> tuple[int, int]:
    """Windows of one process in a step, and in one forward pass."""
    total, rest = divmod(recipe.training.tokens_per_step // recipe.data.context, processes.num_processes)
    if rest or not total:
        raise ConfigError(
            f"training.tokens_per_step is {recipe.training.tokens_per_step}: its windows cannot be shared out evenly over "
            f"{processes.num_processes} processes; make it a multiple of {processes.num_processes * recipe.data.context}"
        )
    most = recipe.training.micro_batch_tokens or DEFAULT_MICRO_BATCH_TOKENS.get(processes.device.type, 8192)
    fitting = max(1, most // recipe.data.context)
    micro = max(size for size in range(1, total + 1) if total % size == 0 and size <= max(1, fitting))
    return total, micro


def _meter(recipe: Recipe, config: Any, processes: PartialState) -> Meter:
    peak = peak_flops(torch.cuda.get_device_name() if torch.cuda.is_available() else None)
    return Meter(
        recipe.training.tokens_per_step,
        training_flops_per_token(config, recipe.data.context),
        peak * processes.num_processes if peak else None,
    )


def _fingerprints(corpus: Corpus) -> dict[str, str]:
    return {"train": corpus.fingerprint}


class _claimed:
    """The run folder, claimed and locked by the first process; the others learn whether that went well."""

    def __init__(self, run: RunFolder, recipe: Recipe, processes: PartialState) -> None:
        self.run, self.recipe, self.processes = run, recipe, processes
        self.lock = run.locked()

    def __enter__(self) -> None:
        problem: list[ContextwiseError | None] = [None]
        if self.processes.is_main_process:
            try:
                self._claim()
            except ContextwiseError as error:
                problem[0] = error
        if self.processes.num_processes > 1:
            dist.broadcast_object_list(problem, src=0)
        if problem[0] is not None:
            raise problem[0]

    def _claim(self) -> None:
        if not self.run.recipe_file.exists() and self.run.path.exists():
            self.run.claim(self.recipe.resolved())
        self.lock.__enter__()
        self.run.claim(self.recipe.resolved())
        if not self.run.environment_file.exists():
            write_json(self.run.environment_file, describe_environment(), "the environment")
        for leftover in self.run.checkpoints.glob(f"*{PARTIAL}*"):
            checkpoints.discard(leftover)

    def __exit__(self, *problem: Any) -> None:
        if self.processes.is_main_process:
            self.lock.__exit__(*problem)


def _find_checkpoint(run: RunFolder, corpus: Corpus, processes: PartialState, verify: bool) -> Path | None:
    """The checkpoint to go on from, and the metrics cut back to it; the same for every process."""
    found: list[Any] = [None, None]
    if processes.is_main_process:
        try:
            if verify:
                corpus.verify()
            checkpoint = checkpoints.latest_sound(run.checkpoints)
            if checkpoint is not None:
                state = read_json(checkpoint / checkpoints.STATE, "the checkpoint")
                if state["fingerprints"] != _fingerprints(corpus):
                    raise CheckpointError(
                        f"the corpus {corpus.path} is not the one that {run.path} was trained on so far (its content "
                        "hash differs); train on the old corpus, or start another run with --out"
                    )
            run.rewind_metrics(checkpoints.step_of(checkpoint) if checkpoint is not None else 0)
            found[0] = str(checkpoint) if checkpoint is not None else None
        except ContextwiseError as error:
            found[1] = error
    if processes.num_processes > 1:
        dist.broadcast_object_list(found, src=0)
    if found[1] is not None:
        raise found[1]
    return Path(found[0]) if found[0] else None


def _arguments(
    recipe: Recipe, run: RunFolder, windows_per_process: int, micro: int, blocks: list[str], processes: PartialState
) -> TrainingArguments:
    settings = recipe.training
    on_cpu = processes.device.type == "cpu"
    bf16 = settings.precision == "bf16" or (
        settings.precision == "auto" and not on_cpu and torch.cuda.is_available() and torch.cuda.is_bf16_supported()
    )
    schedule: dict[str, Any] = {"lr_scheduler_type": "constant_with_warmup"}
    if settings.schedule == "cosine":
        schedule = {
            "lr_scheduler_type": "cosine_with_min_lr",
            "lr_scheduler_kwargs": {"min_lr_rate": settings.minimum_learning_rate},
        }
    sharding: dict[str, Any] = {}
    if settings.fsdp:
        if processes.num_processes == 1:
            raise ConfigError("training.fsdp shards over processes: start with torchrun --nproc-per-node 2 or more")
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
        max_steps=settings.total_steps,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=windows_per_process // micro,
        train_sampling_strategy="sequential",
        dataloader_num_workers=settings.workers,
        dataloader_pin_memory=not on_cpu,
        dataloader_drop_last=True,
        remove_unused_columns=False,
        learning_rate=recipe.learning_rate,
        warmup_steps=settings.warmup_steps,
        weight_decay=settings.weight_decay,
        adam_beta1=settings.beta1,
        adam_beta2=settings.beta2,
        max_grad_norm=settings.clip,
        bf16=bf16,
        tf32=True if torch.cuda.is_available() and torch.cuda.get_device_capability()[0] >= 8 else None,
        torch_compile=settings.compile,
        use_cpu=on_cpu,
        ddp_find_unused_parameters=False,
        logging_strategy="steps",
        logging_steps=settings.log_every,
        logging_nan_inf_filter=False,
        eval_strategy="steps" if settings.evaluate_every else "no",
        eval_steps=settings.evaluate_every or None,
        save_strategy="steps",
        save_steps=settings.save_every,
        report_to=list(settings.trackers) or "none",
        disable_tqdm=True,
        **schedule,
        **sharding,
    )


def _announce(recipe: Recipe, model: torch.nn.Module, checkpoint: Path | None) -> None:
    parameters = readable_count(sum(parameter.numel() for parameter in model.parameters()))
    tokens = readable_count(recipe.training.total_steps * recipe.training.tokens_per_step)
    start = f"going on from step {checkpoints.step_of(checkpoint)}" if checkpoint else "from the start"
    say(f"{recipe.name}: {parameters} parameters, {tokens} tokens, {start}")


def _train_or_stop(trainer: PretrainingTrainer, stop: StopRequest, checkpoint: Path | None, steps: int) -> None:
    """Train to the last step.

    Raises:
        Interrupted: asked to stop before that; the state is saved.
    """
    try:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    except StepAbandoned:
        # The weights are still those of the step before, and so must be the random numbers.
        assert trainer._random is not None
        trainer.save(trainer._random)
    if trainer.state.global_step < steps:
        raise Interrupted(
            f"stopped by {stop.name or 'a signal'} at step {trainer.state.global_step} of {steps}; "
            "the same command goes on from there"
        )


def _finish(
    trainer: PretrainingTrainer, run: RunFolder, recipe: Recipe, corpus: Corpus, processes: PartialState
) -> None:
    """Last validation, export, summary. The summary comes last: with it the run counts as finished."""
    if trainer.validation is not None and not any(
        row["step"] == trainer.state.global_step for row in run.metrics("validation")
    ):
        processes.wait_for_everyone()
        trainer.evaluate()
        if trainer.evaluation_pending:
            raise Interrupted("stopped in the last validation; the same command goes on from there")
    weights = trainer.whole_weights()
    if processes.is_main_process:
        _export(run, recipe, corpus, weights)
    processes.wait_for_everyone()
    if processes.is_main_process:
        _summarise(trainer, run, recipe, corpus)
    processes.wait_for_everyone()


def _export(run: RunFolder, recipe: Recipe, corpus: Corpus, weights: dict[str, torch.Tensor]) -> None:
    """``model/``: what ``AutoModelForCausalLM.from_pretrained`` opens, tokenizer included."""
    if run.model.exists():
        return
    config = recipe.model.build_config(_vocabulary(corpus), recipe.data.context, corpus.end_of_text)
    model = build_model(config)
    model.load_state_dict(weights, strict=False)
    model.tie_weights()
    with atomic_directory(run.model, "the model") as folder:
        model.save_pretrained(folder)
        tokenizer = corpus.tokenizer()
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)


def _summarise(trainer: PretrainingTrainer, run: RunFolder, recipe: Recipe, corpus: Corpus) -> None:
    meter = trainer.meter
    losses = run.metrics("validation")
    write_json(
        run.summary_file,
        {
            "name": recipe.name,
            "seed": recipe.seed,
            "parameters": sum(p.numel() for p in build_model_on_meta(recipe, corpus).parameters()),
            "context": recipe.data.context,
            "steps": meter.steps,
            "tokens": meter.tokens,
            "flops": meter.flops,
            "seconds": meter.seconds,
            "tokens_per_second": meter.tokens_per_second,
            "validation_loss": losses[-1]["loss"] if losses else None,
            "corpus": {"path": Path(corpus.path).name, "fingerprint": corpus.fingerprint},
        },
        "the summary",
    )


def build_model_on_meta(recipe: Recipe, corpus: Corpus) -> torch.nn.Module:
    """The recipe's model without memory for its weights."""
    config = recipe.model.build_config(_vocabulary(corpus), recipe.data.context, corpus.end_of_text)
    with torch.device("meta"):
        return build_model(config)
