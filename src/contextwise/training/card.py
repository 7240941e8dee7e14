"""The model card of a finished run: what it is, how it was trained, how to open it."""

from huggingface_hub import ModelCardData

from contextwise.base.runs import RunFolder
from contextwise.models.kinds import kind_of
from contextwise.models.loading import TOKENIZER_FILES, load_config
from contextwise.models.sizes import readable_count
from contextwise.training.parity import SHAPES
from contextwise.training.settings import AUTOENCODER

LOADERS = {
    "decoder": ("AutoModelForCausalLM", "text-generation"),
    "encoder": ("AutoModelForMaskedLM", "fill-mask"),
    "encoder-decoder": ("AutoModelForSeq2SeqLM", None),
    "parity": ("AutoModelForSequenceClassification", None),
    "unigrams": ("AutoModel", None),
}
"""Auto class, and the Hub's name of what it does, by kind of model."""


def model_card(run: RunFolder, standalone: bool) -> str:
    """Text of ``README.md`` for the model of a finished run, with the metadata block that the Hub reads.

    Args:
        run: the finished run.
        standalone: whether the model's code lies beside it.

    Raises:
        CheckpointError: the run has not finished.
    """
    summary, recipe = run.summary(), run.recipe()
    model, training = recipe["model"], recipe["training"]
    predictor, heads, parity = model["context_predictor"], model.get("multi_token"), model["family"] in SHAPES
    cue, unigrams = model.get("cue"), model["family"] == AUTOENCODER
    composed = any(part is not None for part in (predictor, heads, cue))
    ours = composed or parity or model["family"] in ("lstm", AUTOENCODER)
    kind = "parity" if parity else "unigrams" if unigrams else kind_of(load_config(run.path))
    loader, task = LOADERS[kind]
    data = ModelCardData(
        library_name="transformers",
        pipeline_tag=task,
        tags=["contextwise", *(["contextlm"] if predictor is not None else []), *(["cue"] if cue else [])],
    )
    size = "" if parity or unigrams else f", size {model['size']}"
    shape = f"`{model['pretrained']}`" if model.get("pretrained") else f"{model['family']}{size}"
    if cue is not None:
        shape = f"`{cue['sentence_encoder'] or cue['start']}`, frozen"
    rows = [
        ("parameters", readable_count(summary["parameters"])),
        ("backbone", shape),
        ("context predictor", "none" if predictor is None else _plain(predictor)),
        *([] if heads is None else [("multi-token heads", _plain(heads))]),
        *([] if cue is None else [("CUE", _plain({k: v for k, v in cue.items() if v is not None}))]),
        *(
            []
            if recipe["data"].get("contexts") is None
            else [("contexts", _plain(recipe["data"]["contexts"]))]
        ),
        ("objective", summary.get("objective", "causal")),
        ("training data", f"{summary['corpus']['path']} ({summary['corpus']['fingerprint'][:12]})"),
        ("training tokens", readable_count(summary["tokens"])),
        ("training context", f"{summary['context']} tokens"),
        ("tokens a step", str(training["tokens_per_step"])),
        ("learning rate", f"{training['learning_rate']:g}, {training['schedule']}"),
        ("seed", str(recipe["seed"])),
    ]
    if summary["validation_loss"] is not None:
        rows.append(
            (
                "validation loss",
                f"{summary['validation_loss']:.4f} nats a {'sentence' if unigrams else 'token'}",
            )
        )
    table = "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])
    tokenizer = any((run.model / file).exists() for file in TOKENIZER_FILES)
    trust = ", trust_remote_code=True" if standalone else ""
    lines = [
        f"from transformers import {loader}{', AutoTokenizer' * tokenizer}",
        *([] if standalone or not ours else ["import contextwise  # registers the model"]),
        f'model = {loader}.from_pretrained("{recipe["name"]}"{trust})',
        *([f'tokenizer = AutoTokenizer.from_pretrained("{recipe["name"]}")'] if tokenizer else []),
    ]
    usage = "\n".join(["```python", *lines, "```"])
    return f"---\n{data.to_yaml()}\n---\n\n# {recipe['name']}\n\n{table}\n\n{usage}\n\nTrained with Contextwise.\n"


def _plain(settings: dict[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items())
