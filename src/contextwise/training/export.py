"""What a finished run leaves: a Hugging Face folder, and a summary."""

import copy
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast

from contextwise.base.files import atomic_directory, write_json
from contextwise.base.runs import RunFolder
from contextwise.models.building import build_model, parameter_count
from contextwise.models.cue import CueForCausalLM
from contextwise.models.embedding import Frame
from contextwise.models.kinds import Kind, kind_of
from contextwise.models.tokenizers import put_around
from contextwise.training.meter import Meter
from contextwise.training.recipe import Recipe
from contextwise.training.task import Task

PARTS = "parts"
"""Where a run keeps the parts of a CUE model."""


def export_model(run: RunFolder, task: Task, weights: dict[str, torch.Tensor]) -> None:
    """Write ``model/``: what ``from_pretrained`` of the model's Auto class opens, tokenizer included."""
    if run.model.exists():
        return
    model = build_model(task.config)
    model.load_state_dict(weights, strict=False)  # tied weights are stored once
    model.tie_weights()
    if isinstance(model, CueForCausalLM):
        _export_parts(run, task, model)
    with atomic_directory(run.model, "the model") as folder:
        model.save_pretrained(folder)
        if task.tokenizer is not None:
            as_its_model_reads(task.tokenizer, kind_of(task.config)).save_pretrained(folder)


def _export_parts(run: RunFolder, task: Task, model: CueForCausalLM) -> None:
    """Write ``parts/NAME``, a checkpoint of its own for each part of a CUE model; the sentence encoder's has the tokenizer."""
    for name, part in model.parts.items():
        if (run.path / PARTS / name).exists():  # of an attempt that was killed on its way to the model
            continue
        with atomic_directory(run.path / PARTS / name, f"the {name.replace('_', ' ')}") as folder:
            part.save_pretrained(folder)
            if name == "sentence_encoder" and task.tokenizer is not None:
                task.tokenizer.save_pretrained(folder)


def as_its_model_reads(tokenizer: PreTrainedTokenizerFast, kind: Kind) -> PreTrainedTokenizerFast:
    """A copy of the tokenizer that puts around a text what a model of this kind was trained with: [CLS] and [SEP] around an
    encoder's, end-of-text behind that of an encoder-decoder, nothing around a decoder's. The corpus's own puts nothing.
    """
    if kind == "decoder":
        return tokenizer
    copied = copy.deepcopy(tokenizer)
    frame = Frame.of(copied, kind)
    put_around(copied, frame.before, frame.after)
    return copied


def write_summary(run: RunFolder, recipe: Recipe, task: Task, meter: Meter, trained: int) -> None:
    """Write ``summary.json``: what the run was, what it cost, what it reached.

    Args:
        trained: parameters that the optimizer changed.
    """
    losses = run.metrics("validation")
    summary = {
        "name": recipe.name,
        "seed": recipe.seed,
        "objective": recipe.objective.name,
        "parameters": parameter_count(task.config),
        "trained_parameters": trained,
        "context": recipe.data.context,
        "steps": meter.steps,
        "tokens": meter.tokens,
        "input_tokens": meter.input_tokens,
        "target_tokens": meter.target_tokens,
        "flops": meter.flops,
        "seconds": meter.seconds,
        "tokens_per_second": meter.tokens_per_second,
        "validation_loss": losses[-1]["loss"] if losses else None,
        "replay_loss": losses[-1].get("replay_loss") if losses else None,
        "corpus": {"path": Path(task.corpus.path).name, "fingerprint": task.corpus.fingerprint},
    }
    if task.sentences is not None:
        summary["sentences"] = task.sentences.facts
    write_json(run.summary_file, summary, "the summary")
