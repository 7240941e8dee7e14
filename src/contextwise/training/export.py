"""Export a finished run: a Hugging Face folder of its model, a summary, and model cards."""

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import torch
from huggingface_hub import ModelCardData

from contextwise.base.config import validate
from contextwise.base.estimates import count
from contextwise.base.files import atomic_directory, read_json, without_folders
from contextwise.base.hashes import seal
from contextwise.base.plugins import is_ours
from contextwise.base.runs import RunFolder, measured_on, too_few_examples
from contextwise.data.contexts import ContextSettings
from contextwise.models.building import parameter_count
from contextwise.models.embedding import Frame
from contextwise.models.loading import TOKENIZER_FILES, kind_of, load_config
from contextwise.models.prefix import prompt_form
from contextwise.models.spec import build_model
from contextwise.models.tokenizers import put_around
from contextwise.training.checkpoints import ties
from contextwise.training.inputs import TrainingInputs
from contextwise.training.kinds import PretrainedModel, SizedModel
from contextwise.training.recipe import Recipe
from contextwise.training.trainer import PretrainingTrainer
from contextwise_papers.cue import CueContextConfig, CueForCausalLM
from contextwise_papers.cue.kinds import CueModel


class RunJson(TypedDict):
    """A finished run: its folder, and the keys of its ``summary.json``."""

    folder: str
    name: str
    seed: int
    objective: str
    parameters: int
    trained_parameters: int
    context: int
    steps: int
    tokens: int
    input_tokens: int
    target_tokens: int
    flops: float
    seconds: float
    precision: str
    tokens_per_second: float
    validation_loss: float | None
    validation_examples: NotRequired[int | None]
    replay_loss: float | None
    corpus: dict[str, str]
    fingerprints: dict[str, str]
    trunk: NotRequired[dict[str, Any]]
    sentences: NotRequired[dict[str, Any]]
    metadata_cut: NotRequired[int]
    conditioned_share: NotRequired[float]
    text_share: NotRequired[float]


def export_model(run: RunFolder, inputs: TrainingInputs, weights: dict[str, torch.Tensor]) -> None:
    """Write ``model/`` with weights and tokenizer, in the form that ``from_pretrained`` loads.

    A CUE model also gets a checkpoint ``parts/NAME`` of each part; the sentence encoder's has the tokenizer.
    """
    model = build_model(inputs.config)
    for name, twin in ties(model).items():  # stored once
        weights.setdefault(name, weights[twin])
    model.load_state_dict(weights)
    model.tie_weights()
    if isinstance(model, CueForCausalLM):
        for name, part in model.parts.items():
            what = f"the {name.replace('_', ' ')}"
            with atomic_directory(run.path / "parts" / name, what, replace=True) as folder:
                part.save_pretrained(folder)
                if name == "sentence_encoder" and inputs.tokenizer is not None:
                    inputs.tokenizer.save_pretrained(folder)
                seal(folder)
    tokenizer, kind = inputs.tokenizer, kind_of(inputs.config)
    if tokenizer is not None and kind != "decoder":
        # [CLS] and [SEP] around a text for an encoder, end-of-text after it otherwise
        tokenizer = copy.deepcopy(tokenizer)
        frame = Frame.of(tokenizer, kind)
        put_around(tokenizer, frame.before, frame.after)
    with atomic_directory(run.model, "the model", replace=True) as folder:
        model.save_pretrained(folder)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
        seal(folder)


def write_summary(trainer: PretrainingTrainer, recipe: Recipe, inputs: TrainingInputs) -> None:
    """Write ``summary.json``: the run's name, model and data, its cost, and the validation losses of the exported weights."""
    run, metrics = trainer.run, trainer.metrics
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
        "tokens": metrics.tokens,
        "input_tokens": metrics.input_tokens,
        "target_tokens": metrics.target_tokens,
        "flops": metrics.flops,
        "seconds": metrics.seconds,
        "precision": "bf16" if trainer.args.bf16 else "fp32",
        "tokens_per_second": metrics.tokens_per_second,
        "validation_loss": validated.get("loss"),
        "validation_examples": validated.get("examples"),
        "replay_loss": validated.get("replay_loss"),
        "corpus": {"path": Path(inputs.corpus.path).name, "fingerprint": inputs.corpus.fingerprint},
        "fingerprints": inputs.fingerprints,
    }
    if inputs.metadata_cut is not None:
        summary["metadata_cut"] = inputs.metadata_cut
    if inputs.conditioning is not None:
        summary |= vars(inputs.conditioning)
    if metrics.trunk is not None:
        summary["trunk"] = metrics.trunk
    if inputs.sentences is not None:
        summary["sentences"] = inputs.sentences.facts
    run.write_summary(summary)


def validation_loss(recipe: Recipe, summary: Mapping[str, Any]) -> str | None:
    """The validation loss of a finished run with its unit; None if nothing was held out, or too little was read of it."""
    loss = summary["validation_loss"]
    unit = "pair" if recipe.objective.whole_steps else "token"
    unit = recipe.model.loss_unit if unit == "token" else unit
    if loss is None or too_few_examples(recipe.resolved(), summary.get("validation_examples")):
        return None
    return f"{loss:.4f} nats per {unit}"


LOADERS = {
    "decoder": ("AutoModelForCausalLM", "text-generation"),
    "encoder": ("AutoModelForMaskedLM", "fill-mask"),
    "encoder-decoder": ("AutoModelForSeq2SeqLM", None),
    "embeddings": ("AutoModel", "feature-extraction"),
}
"""Auto class, and the Hub's name of the task, by kind of model."""


def model_card(run: RunFolder, standalone: bool) -> str:
    """Text of ``README.md`` for the model of a finished run, with the metadata block that the Hub reads.

    Args:
        standalone: whether the model's folder contains its code.

    Raises:
        CheckpointError: the run has not finished.
    """
    summary, recipe = run.summary(), validate(Recipe, run.recipe(), f"the recipe of {run.path}")
    model, training = recipe.model, recipe.training
    predictor, heads, variant = (getattr(model, name, None) for name in ("context_predictor", "multi_token", "variant"))
    cue = model.cue if isinstance(model, CueModel) else None
    contexts = getattr(recipe.data, "contexts", None)
    config: Any = load_config(run.path)
    ours = is_ours(type(config).__module__)  # a variant for training alone leaves a stock model
    embeds = recipe.objective.pooling is not None and not ours
    loader, task = model.loader or LOADERS["embeddings" if embeds else kind_of(config)]
    data = ModelCardData(
        library_name="transformers",
        pipeline_tag=task,
        tags=["contextwise", *(["contextlm"] if predictor is not None else []), *(["cue"] if cue else [])],
    )
    backbone = getattr(model, "family", "")
    if isinstance(model, SizedModel):
        changed = model.model_dump(include={"layers", "width", "heads", "feed_forward"}, exclude_none=True)
        backbone = ", ".join([f"{backbone}, size {model.size}", *(f"{key} {value}" for key, value in changed.items())])
    composed = None
    if isinstance(model, SizedModel | PretrainedModel):
        composed = "none" if predictor is None else _listed(predictor.model_dump())
    if isinstance(model, PretrainedModel):
        backbone = f"`{without_folders(model.pretrained)}`"
    stage: dict[str, Any] = {}
    if cue is not None:  # the settings that differ from their defaults, the sources first
        values = cue.model_dump(exclude_defaults=True)
        backbone = f"`{without_folders(values.get('sentence_encoder') or values['start'])}`, frozen"
        sources = ("stage", "start", "sentence_encoder", "text_encoder", "pooling")
        stage = {name: values[name] for name in (*sources, *values) if name in values}
    loss, validated = validation_loss(recipe, summary), measured_on(run.recipe(), summary.get("validation_examples"))
    rows = {
        "parameters": count(summary["parameters"]),
        "backbone": backbone,
        "context predictor": composed,
        "multi-token heads": None if heads is None else _listed(heads.model_dump()),
        "variant": None
        if variant is None
        else _listed({Path(variant.file).name: variant.name, **variant.options, "SHA-256": variant.sha256[:12]}),
        "CUE": _listed(stage) or None,
        "contexts": None if contexts is None else ", ".join(contexts.types),
        "objective": summary.get("objective", "causal"),
        "prompt": "a prefix: its tokens see each other in both directions" if prompt_form(config) else None,
        "embedding": f"{recipe.objective.pooling} of the last states, compared by its cosine" if embeds else None,
        "training data": f"{summary['corpus']['path']} ({summary['corpus']['fingerprint'][:12]})",
        "training tokens": count(summary["tokens"]),
        "training context": f"{summary['context']} tokens",
        "tokens per step": str(recipe.tokens_per_step),
        "learning rate": f"{recipe.learning_rate:g}, {training.schedule}",
        "precision": summary.get("precision"),
        "seed": str(recipe.seed),
        "validation loss": None if loss is None else f"{loss}{validated}",
    }
    tokenizer = any((run.model / file).exists() for file in TOKENIZER_FILES)
    trust = ", trust_remote_code=True" if standalone else ""
    name = json.dumps(recipe.name, ensure_ascii=False)  # a string of Python too, whatever quotes are in it
    lines = [
        f"from transformers import {loader}{', AutoTokenizer' * tokenizer}",
        *([] if standalone or not ours else ["import contextwise  # registers the model"]),
        f"model = {loader}.from_pretrained({name}{trust})",
        *([f"tokenizer = AutoTokenizer.from_pretrained({name})"] if tokenizer else []),
    ]
    if prompt_form(config):
        lines.append(
            f"# reads prompts causally; as trained: contextwise.models.load_model({name}), or contextwise generate"
        )
    if embeds:
        lines.append(
            "# a vector of each text: contextwise embed MODEL texts.txt; a pooler of the class itself is not trained"
        )
    if cue is not None and config.context_encoder is not None and config.context_encoder.contexts:
        lines += [
            "",
            *_encoded(config.context_encoder, "model.text_encoder"),
            'tokens = tokenizer(tokenizer.eos_token + " A sentence.", return_tensors="pt").input_ids',
            "mask = torch.ones(contexts.shape[:2], dtype=torch.bool)  # False for missing contexts",
            "logits = model(tokens, contexts=contexts, context_mask=mask).logits",
            "# or, for candidates of sentences: contextwise rescore MODEL lists.jsonl",
        ]
    return _card(data, recipe.name, rows, lines)


def context_encoder_card(source: str | Path) -> str | None:
    """Text of ``README.md`` for a context encoder alone (``RUN/parts/context_encoder``); None for another model."""
    file = Path(source) / "config.json"
    model_type = read_json(file, "the model's configuration").get("model_type") if file.is_file() else None
    config: Any = load_config(source) if model_type == CueContextConfig.model_type else None
    if config is None or not config.contexts:
        return None
    folder = Path(source).resolve()
    run = RunFolder(folder.parent.parent)
    name = f"{run.recipe()['name']}-{folder.name}" if run.recipe_file.exists() else folder.name
    rows = {
        "e_cue": f"{config.width} channels",
        "contexts": ", ".join(ContextSettings(**config.contexts).types),
        "text encoder": ", ".join(f"{key} {without_folders(config.text_encoder[key])}" for key in TEXT_FACTS),
    }
    lines = [
        "from transformers import AutoModel",
        "import contextwise  # registers the model",
        f"model = AutoModel.from_pretrained({json.dumps(name, ensure_ascii=False)})",
        "",
        *_encoded(config, "model.text_model"),
        "e_cue = model(contexts)  # or: contextwise embed MODEL --contexts contexts.jsonl --out cue.npy",
    ]
    data = ModelCardData(library_name="transformers", tags=["contextwise", "cue"])
    return _card(data, name, rows, lines)


TEXT_FACTS = ("name", "pooling", "max_tokens")
"""The arguments to open a text encoder with."""


def _encoded(config: CueContextConfig, trained: str) -> list[str]:
    """Lines of code that encode the texts of one sentence's contexts as ``contexts`` (1, K, C).

    ``trained`` is the expression for a text encoder that is a part of the model.
    """
    name, pooling, tokens = (without_folders(config.text_encoder[key]) for key in TEXT_FACTS)
    options = f"max_tokens={tokens}" + f", model={trained}" * ("model" in config.text_encoder)
    types = ContextSettings(**config.contexts).types
    return [
        "import torch",
        "from contextwise_papers.cue.encoding import TextEncoder",
        f"text_encoder = TextEncoder.open({json.dumps(name)}, {json.dumps(pooling)}, {options})",
        f"# the contexts of one sentence, in any order ({', '.join(types)}); dates in this format",
        'texts = ["A title", "Wednesday 29 May 1985"]',
        "contexts = torch.from_numpy(text_encoder.encode(texts))[None]",
    ]


def _card(data: ModelCardData, name: str, rows: Mapping[str, str | None], lines: list[str]) -> str:
    """The text of a card; a row whose value is None does not apply."""
    cells = {row: " ".join(value.split()).replace("|", "\\|") for row, value in rows.items() if value is not None}
    table = "\n".join(["| | |", "|---|---|", *(f"| {row} | {cell} |" for row, cell in cells.items())])
    usage = "\n".join(["```python", *lines, "```"])
    return f"---\n{data.to_yaml()}\n---\n\n# {name}\n\n{table}\n\n{usage}\n\nTrained with Contextwise.\n"


def _listed(settings: dict[str, object]) -> str:
    return ", ".join(f"{name} {without_folders(value)}" for name, value in settings.items())
