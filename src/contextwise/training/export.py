"""What a finished run leaves: a Hugging Face folder, and a summary."""

from pathlib import Path

import torch
from transformers import PreTrainedConfig

from contextwise.base.files import atomic_directory, write_json
from contextwise.base.runs import RunFolder
from contextwise.data.corpus import Corpus
from contextwise.models.sizes import build_model, parameter_count
from contextwise.training.meter import Meter
from contextwise.training.recipe import Recipe


def export_model(
    run: RunFolder, config: PreTrainedConfig, weights: dict[str, torch.Tensor], corpus: Corpus
) -> None:
    """Write ``model/``: what ``AutoModelForCausalLM.from_pretrained`` opens, tokenizer included."""
    if run.model.exists():
        return
    model = build_model(config)
    model.load_state_dict(weights, strict=False)  # tied weights are stored once
    model.tie_weights()
    with atomic_directory(run.model, "the model") as folder:
        model.save_pretrained(folder)
        tokenizer = corpus.tokenizer()
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)


def write_summary(
    run: RunFolder, recipe: Recipe, config: PreTrainedConfig, meter: Meter, corpus: Corpus
) -> None:
    """Write ``summary.json``: what the run was, what it cost, what it reached."""
    losses = run.metrics("validation")
    summary = {
        "name": recipe.name,
        "seed": recipe.seed,
        "parameters": parameter_count(config),
        "context": recipe.data.context,
        "steps": meter.steps,
        "tokens": meter.tokens,
        "flops": meter.flops,
        "seconds": meter.seconds,
        "tokens_per_second": meter.tokens_per_second,
        "validation_loss": losses[-1]["loss"] if losses else None,
        "corpus": {"path": Path(corpus.path).name, "fingerprint": corpus.fingerprint},
    }
    write_json(run.summary_file, summary, "the summary")
