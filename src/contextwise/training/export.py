"""Export a finished run: a Hugging Face folder of its model, a summary, and model cards."""

import copy
from pathlib import Path
from typing import Any

import torch
import yaml
from huggingface_hub import ModelCardData
from transformers.tokenization_utils_base import VERY_LARGE_INTEGER

from contextwise.base.config import validate
from contextwise.base.estimates import count
from contextwise.base.files import atomic_directory, without_folders
from contextwise.base.hashes import seal
from contextwise.base.plugins import is_ours
from contextwise.base.pretrained import without_bars
from contextwise.base.runs import RunFolder, measured_on
from contextwise.models.building import parameter_count
from contextwise.models.loading import TOKENIZER_FILES, kind_of, load_config
from contextwise.models.matrices import ties_of
from contextwise.models.prefix import reads_prefix
from contextwise.models.spec import spec_of
from contextwise.models.tokenizers import Frame
from contextwise.training.inputs import TrainingInputs
from contextwise.training.metrics import COST
from contextwise.training.recipe import Recipe, validation_loss
from contextwise.training.trainer import PretrainingTrainer


def export_model(run: RunFolder, inputs: TrainingInputs, weights: dict[str, torch.Tensor]) -> None:
    """Write ``model/`` with weights and tokenizer, as ``from_pretrained`` loads them, and ``parts/NAME`` of its parts.

    The run folder is locked.
    """
    spec, kind = spec_of(inputs.config), kind_of(inputs.config)
    model = spec.build(inputs.config)
    for name, twin in ties_of(model).items():  # stored once
        weights.setdefault(name, weights[twin])
    model.load_state_dict(weights)
    model.tie_weights()
    for name, reads_tokens in spec.saved_parts(model).items():
        what = f"the {name.replace('_', ' ')}"
        with atomic_directory(run.path / "parts" / name, what, replace=True, held=True) as folder, without_bars():
            getattr(model, name).save_pretrained(folder)
            if reads_tokens and inputs.tokenizer is not None:
                inputs.tokenizer.save_pretrained(folder)
            seal(folder)
    tokenizer = copy.deepcopy(inputs.tokenizer)
    if tokenizer is not None and kind != "decoder":
        # [CLS] and [SEP] around a text for an encoder, end-of-text after it otherwise
        Frame.of(tokenizer, kind).put_around(tokenizer)
    positions = getattr(inputs.config, "max_position_embeddings", None)
    if tokenizer is not None and positions is not None and tokenizer.model_max_length == VERY_LARGE_INTEGER:
        tokenizer.model_max_length = positions  # so that `truncation=True` means the model's positions, as on the Hub
    model = spec.exported(model)
    with atomic_directory(run.model, "the model", replace=True, held=True) as folder, without_bars():
        model.save_pretrained(folder)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
        seal(folder)


def write_summary(trainer: PretrainingTrainer, inputs: TrainingInputs) -> None:
    """Write ``summary.json``: the run's name, model and data, its cost, and the validation losses of the exported weights."""
    run, metrics, recipe = trainer.run, trainer.metrics, trainer.recipe
    validations = run.metrics("validation")
    validated = validations[-1] if validations else {}
    if validations and recipe.training.patience is not None:  # the exported weights are the best ones
        validated = min(validations, key=lambda row: row["loss"])
    summary = {
        "name": recipe.name,
        "seed": recipe.seed,
        "objective": recipe.objective.name,
        "parameters": parameter_count(inputs.config),
        "trained_parameters": trainer.get_num_trainable_parameters(),
        "context": recipe.data.context,
        "steps": metrics.steps,
        **{name: getattr(metrics, name) for name in COST},
        "precision": "bf16" if trainer.args.bf16 else "fp32",
        "tokens_per_second": metrics.tokens_per_second,
        "validation_loss": validated.get("loss"),
        "validation_examples": validated.get("examples"),
        **{name: validated.get(name) for name in inputs.validation if name != "loss"},
        "corpus": {"path": Path(inputs.corpus.path).name, "fingerprint": inputs.corpus.fingerprint},
        "fingerprints": inputs.fingerprints,
    }
    if metrics.trunk is not None:
        summary["trunk"] = metrics.trunk
    run.write_summary(summary | inputs.facts)


LOADERS = {
    "decoder": ("AutoModelForCausalLM", "text-generation"),
    "encoder": ("AutoModelForMaskedLM", "fill-mask"),
    "encoder-decoder": ("AutoModelForSeq2SeqLM", None),
    "embeddings": ("AutoModel", "feature-extraction"),
}
"""Auto class, and the Hub's name of the task, by kind of model."""


def model_card(run: RunFolder, standalone: bool) -> str:
    """Text of ``README.md`` for the model of a finished run, with the metadata block that the Hub reads.

    ``standalone`` says whether the model's folder contains its code.
    """
    summary, recipe = run.summary(), validate(Recipe, run.recipe(), f"the recipe of {run.path}")
    model = recipe.model
    config: Any = load_config(run.path)
    module = type(config).__module__  # a variant for training alone leaves a stock model
    ours = is_ours(module)
    imported = "contextwise" if ours else module
    embeds = recipe.objective.whole_steps  # its loss compares vectors of texts
    loader, task = model.loader or LOADERS["embeddings" if embeds else kind_of(config)]
    data = ModelCardData(library_name="transformers", pipeline_tag=task, tags=["contextwise", *model.tags])
    loss, validated = validation_loss(recipe, summary), measured_on(run.recipe(), summary.get("validation_examples"))
    rows = {  # None: does not apply
        "parameters": count(summary["parameters"]),
        "prompt": "a prefix: its tokens see each other in both directions" if reads_prefix(config) else None,
        "embedding": "mean of the last states, compared by its cosine" if embeds else None,
        "training data": f"{summary['corpus']['path']} ({summary['corpus']['fingerprint'][:12]})",
        "training tokens": count(summary["tokens"]),
        "training context": f"{summary['context']} tokens",
        "precision": summary["precision"],
        "validation loss": None if loss is None else f"{loss}{validated}",
    }
    tokenizer = any((run.model / file).exists() for file in TOKENIZER_FILES)
    trust = ", trust_remote_code=True" if standalone else ""
    lines = [
        f"from transformers import {loader}{', AutoTokenizer' * tokenizer}",
        *([] if standalone or module.startswith("transformers.") else [f"import {imported}  # registers the model"]),
        'folder = "."  # where this file lies, or its name on the Hub',
        f"model = {loader}.from_pretrained(folder{trust})",
        *([f"tokenizer = AutoTokenizer.from_pretrained(folder{trust})"] if tokenizer else []),
    ]
    if reads_prefix(config):
        lines.append(
            "# reads prompts causally; as trained: contextwise.models.load_model(folder), or contextwise generate"
        )
    if embeds:
        lines.append(
            "# a vector of each text: contextwise model embed MODEL texts.txt; a pooler of the class itself is not trained"
        )
    usage = "\n".join(["```python", *lines, *model.usage(config), "```"])
    settings = yaml.safe_dump(without_folders(run.recipe()), sort_keys=False, allow_unicode=True)
    cells = {row: " ".join(value.split()).replace("|", "\\|") for row, value in rows.items() if value is not None}
    table = "\n".join(["| | |", "|---|---|", *(f"| {row} | {cell} |" for row, cell in cells.items())])
    text = f"{table}\n\n{usage}\n\nTrained with Contextwise, by this recipe:\n\n```yaml\n{settings}```\n"
    return f"---\n{data.to_yaml()}\n---\n\n# {recipe.name}\n\n{text}"
