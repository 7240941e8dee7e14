"""The model card of a finished run: the model, its training, and how to load it."""

import json
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData

from contextwise.base.config import validate
from contextwise.base.files import read_json
from contextwise.base.runs import RunFolder
from contextwise.data.contexts import ContextSettings
from contextwise.models.cue import CueContextConfig
from contextwise.models.loading import TOKENIZER_FILES, kind_of, load_config
from contextwise.models.sizes import readable_count
from contextwise.training.recipe import AutoencoderModel, CueModel, PretrainedModel, Recipe, SizedModel
from contextwise.training.recipe.cue import Stage
from contextwise.training.recipe.model import ParityModel

LOADERS = {
    "decoder": ("AutoModelForCausalLM", "text-generation"),
    "encoder": ("AutoModelForMaskedLM", "fill-mask"),
    "encoder-decoder": ("AutoModelForSeq2SeqLM", None),
    "parity": ("AutoModelForSequenceClassification", None),
    "unigrams": ("AutoModel", None),
}
"""Auto class, and the Hub's name of the task, by kind of model."""


def model_card(run: RunFolder, standalone: bool) -> str:
    """Text of ``README.md`` for the model of a finished run, with the metadata block that the Hub reads.

    Args:
        run: the finished run.
        standalone: whether the model's folder contains its code.

    Raises:
        CheckpointError: the run has not finished.
    """
    summary, recipe = run.summary(), validate(Recipe, run.recipe(), f"the recipe of {run.path}")
    model, training = recipe.model, recipe.training
    predictor, heads = (getattr(model, name, None) for name in ("context_predictor", "multi_token"))
    parity, unigrams = isinstance(model, ParityModel), isinstance(model, AutoencoderModel)
    cue = model.cue if isinstance(model, CueModel) else None
    contexts = getattr(recipe.data, "contexts", None)
    family = getattr(model, "family", None)
    ours = any(part is not None for part in (predictor, heads, cue)) or parity or unigrams or family == "lstm"
    kind = "parity" if parity else "unigrams" if unigrams else kind_of(load_config(run.path))
    loader, task = LOADERS[kind]
    data = ModelCardData(
        library_name="transformers",
        pipeline_tag=task,
        tags=["contextwise", *(["contextlm"] if predictor is not None else []), *(["cue"] if cue else [])],
    )
    rows = [
        ("parameters", readable_count(summary["parameters"])),
        ("backbone", _backbone(model)),
        *(
            [("context predictor", "none" if predictor is None else _plain(predictor.model_dump()))]
            if isinstance(model, SizedModel | PretrainedModel)
            else []
        ),
        *([] if heads is None else [("multi-token heads", _plain(heads.model_dump()))]),
        *([] if cue is None else [("CUE", _plain(_chosen(cue)))]),
        *([] if contexts is None else [("contexts", ", ".join(contexts.types))]),
        ("objective", summary.get("objective", "causal")),
        ("training data", f"{summary['corpus']['path']} ({summary['corpus']['fingerprint'][:12]})"),
        ("training tokens", readable_count(summary["tokens"])),
        ("training context", f"{summary['context']} tokens"),
        ("tokens per step", str(recipe.tokens_per_step)),
        ("learning rate", f"{recipe.learning_rate:g}, {training.schedule}"),
        ("seed", str(recipe.seed)),
    ]
    if summary["validation_loss"] is not None:
        rows.append(
            (
                "validation loss",
                f"{summary['validation_loss']:.4f} nats per {'sentence' if unigrams else 'token'}",
            )
        )
    tokenizer = any((run.model / file).exists() for file in TOKENIZER_FILES)
    trust = ", trust_remote_code=True" if standalone else ""
    lines = [
        f"from transformers import {loader}{', AutoTokenizer' * tokenizer}",
        *([] if standalone or not ours else ["import contextwise  # registers the model"]),
        f'model = {loader}.from_pretrained("{recipe.name}"{trust})',
        *([f'tokenizer = AutoTokenizer.from_pretrained("{recipe.name}")'] if tokenizer else []),
    ]
    if cue is not None:
        config: Any = load_config(run.path)
        if config.context_encoder is not None and config.context_encoder.contexts:
            lines += ["", *_encoded(config.context_encoder), *SCORED]
    return _card(data, recipe.name, rows, lines)


SCORED = (
    'tokens = tokenizer(tokenizer.eos_token + " A sentence.", return_tensors="pt").input_ids',
    "mask = torch.ones(contexts.shape[:2], dtype=torch.bool)  # False for missing contexts",
    "logits = model(tokens, contexts=contexts, context_mask=mask).logits",
    "# or, for candidates of sentences: contextwise rescore MODEL lists.jsonl",
)


def context_encoder_card(source: str | Path) -> str | None:
    """Text of ``README.md`` for a context encoder alone (``RUN/parts/context_encoder``); None for another model.

    Raises:
        CheckpointError: the model does not exist.
    """
    file = Path(source) / "config.json"
    if (
        not file.is_file()
        or read_json(file, "the model's configuration").get("model_type") != CueContextConfig.model_type
    ):
        return None
    config: Any = load_config(source)
    if not config.contexts:
        return None
    folder = Path(source).resolve()
    run = RunFolder(folder.parent.parent)
    name = f"{run.recipe()['name']}-{folder.name}" if run.recipe_file.exists() else folder.name
    rows = [
        ("e_cue", f"{config.width} channels"),
        ("contexts", ", ".join(ContextSettings(**config.contexts).types)),
        ("text encoder", ", ".join(f"{key} {config.text_encoder[key]}" for key in TEXT_FACTS)),
    ]
    lines = [
        "from transformers import AutoModel",
        "import contextwise  # registers the model",
        f'model = AutoModel.from_pretrained("{name}")',
        "",
        *_encoded(config),
        "e_cue = model(contexts)  # or: contextwise embed MODEL --contexts contexts.jsonl --out cue.npy",
    ]
    data = ModelCardData(library_name="transformers", tags=["contextwise", "cue"])
    return _card(data, name, rows, lines)


TEXT_FACTS = ("name", "pooling", "max_tokens")
"""The arguments to open a text encoder with."""


def _encoded(config: CueContextConfig) -> list[str]:
    """Lines of code that encode the texts of one sentence's contexts as ``contexts`` (1, K, C)."""
    name, pooling, tokens = (config.text_encoder[key] for key in TEXT_FACTS)
    types = ContextSettings(**config.contexts).types
    return [
        "import torch",
        "from contextwise.models.cue.encoding import TextEncoder",
        f"text_encoder = TextEncoder.open({json.dumps(name)}, {json.dumps(pooling)}, max_tokens={tokens})",
        f"# the contexts of one sentence, in any order ({', '.join(types)}); dates in this format",
        'texts = ["A title", "Wednesday 29 May 1985"]',
        "contexts = torch.from_numpy(text_encoder.encode(texts))[None]",
    ]


def _card(data: ModelCardData, name: str, rows: list[tuple[str, str]], lines: list[str]) -> str:
    table = "\n".join(["| | |", "|---|---|", *(f"| {row} | {value} |" for row, value in rows)])
    usage = "\n".join(["```python", *lines, "```"])
    return f"---\n{data.to_yaml()}\n---\n\n# {name}\n\n{table}\n\n{usage}\n\nTrained with Contextwise.\n"


def _chosen(stage: Stage) -> dict[str, Any]:
    """The settings of a stage that differ from their defaults, its sources first."""
    values = stage.model_dump(exclude_defaults=True)
    sources = ("stage", "start", "sentence_encoder", "text_encoder", "pooling")
    return {name: values[name] for name in (*sources, *values) if name in values}


def _backbone(model: Any) -> str:
    """The stock model that was trained; for a CUE model, the frozen sentence encoder or the starting run."""
    if isinstance(model, CueModel):
        return f"`{getattr(model.cue, 'sentence_encoder', None) or model.cue.start}`, frozen"  # type: ignore[union-attr]
    if isinstance(model, PretrainedModel):
        return f"`{model.pretrained}`"
    return f"{model.family}, size {model.size}" if isinstance(model, SizedModel) else model.family


def _plain(settings: dict[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items())
