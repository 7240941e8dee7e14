"""Export a finished run: a Hugging Face folder of its model, and a summary."""

import copy
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast

from contextwise.base.files import atomic_directory, write_json
from contextwise.base.runs import RunFolder
from contextwise.models.building import parameter_count
from contextwise.models.cue import CueForCausalLM
from contextwise.models.embedding import Frame
from contextwise.models.loading import kind_of
from contextwise.models.spec import build_model
from contextwise.models.tokenizers import put_around
from contextwise.objectives.kind import Kind
from contextwise.training.inputs import TrainingInputs
from contextwise.training.metrics import RunMetrics
from contextwise.training.recipe import Recipe

PARTS = "parts"
"""Subfolder of a run with the parts of its CUE model."""


def export_model(run: RunFolder, inputs: TrainingInputs, weights: dict[str, torch.Tensor]) -> None:
    """Write ``model/`` with weights and tokenizer, in the form that ``from_pretrained`` loads."""
    if run.model.exists():
        return
    model = build_model(inputs.config)
    model.load_state_dict(weights, strict=False)  # tied weights are stored once
    model.tie_weights()
    if isinstance(model, CueForCausalLM):
        _export_parts(run, inputs, model)
    with atomic_directory(run.model, "the model") as folder:
        model.save_pretrained(folder)
        if inputs.tokenizer is not None:
            with_special_tokens(inputs.tokenizer, kind_of(inputs.config)).save_pretrained(folder)


def _export_parts(run: RunFolder, inputs: TrainingInputs, model: CueForCausalLM) -> None:
    """Write a separate checkpoint ``parts/NAME`` for each part of a CUE model; the sentence encoder's has the tokenizer."""
    for name, part in model.parts.items():
        if (run.path / PARTS / name).exists():  # written before an earlier attempt was killed
            continue
        with atomic_directory(run.path / PARTS / name, f"the {name.replace('_', ' ')}") as folder:
            part.save_pretrained(folder)
            if name == "sentence_encoder" and inputs.tokenizer is not None:
                inputs.tokenizer.save_pretrained(folder)


def with_special_tokens(tokenizer: PreTrainedTokenizerFast, kind: Kind) -> PreTrainedTokenizerFast:
    """Return a copy of a corpus's tokenizer that adds the special tokens of a kind of model's training.

    These are [CLS] and [SEP] around a text for an encoder, end-of-text after it for an encoder-decoder, none for a decoder.
    """
    if kind == "decoder":
        return tokenizer
    copied = copy.deepcopy(tokenizer)
    frame = Frame.of(copied, kind)
    put_around(copied, frame.before, frame.after)
    return copied


def write_summary(
    run: RunFolder, recipe: Recipe, inputs: TrainingInputs, metrics: RunMetrics, trained: int
) -> None:
    """Write ``summary.json``: the run's name, model and data, its cost, and its validation losses.

    Args:
        trained: number of trained parameters.
    """
    losses = run.metrics("validation")
    summary = {
        "name": recipe.name,
        "seed": recipe.seed,
        "objective": recipe.objective.name,
        "parameters": parameter_count(inputs.config),
        "trained_parameters": trained,
        "context": recipe.data.context,
        "steps": metrics.steps,
        "tokens": metrics.tokens,
        "input_tokens": metrics.input_tokens,
        "target_tokens": metrics.target_tokens,
        "flops": metrics.flops,
        "seconds": metrics.seconds,
        "tokens_per_second": metrics.tokens_per_second,
        "validation_loss": losses[-1]["loss"] if losses else None,
        "replay_loss": losses[-1].get("replay_loss") if losses else None,
        "corpus": {"path": Path(inputs.corpus.path).name, "fingerprint": inputs.corpus.fingerprint},
    }
    if inputs.sentences is not None:
        summary["sentences"] = inputs.sentences.facts
    write_json(run.summary_file, summary, "the summary")
