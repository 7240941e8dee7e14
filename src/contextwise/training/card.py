"""The model card of a finished run: what it is, how it was trained, how to open it."""

from huggingface_hub import ModelCardData

from contextwise.base.runs import RunFolder
from contextwise.models.sizes import readable_count

OPEN = """```python
from transformers import AutoModelForCausalLM, AutoTokenizer
{imports}
model = AutoModelForCausalLM.from_pretrained("{name}"{trust})
tokenizer = AutoTokenizer.from_pretrained("{name}")
```"""


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
    predictor = model["context_predictor"]
    ours = predictor is not None
    data = ModelCardData(
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["contextwise", *(["contextlm"] if ours else [])],
    )
    shape = (
        f"`{model['pretrained']}`" if model.get("pretrained") else f"{model['family']}, size {model['size']}"
    )
    rows = [
        ("parameters", readable_count(summary["parameters"])),
        ("backbone", shape),
        ("context predictor", _plain(predictor) if ours else "none"),
        ("training data", f"{summary['corpus']['path']} ({summary['corpus']['fingerprint'][:12]})"),
        ("training tokens", readable_count(summary["tokens"])),
        ("training context", f"{summary['context']} tokens"),
        ("tokens a step", str(training["tokens_per_step"])),
        ("learning rate", f"{training['learning_rate']:g}, {training['schedule']}"),
        ("seed", str(recipe["seed"])),
    ]
    if summary["validation_loss"] is not None:
        rows.append(("validation loss", f"{summary['validation_loss']:.4f} nats a token"))
    table = "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])
    usage = OPEN.format(
        name=recipe["name"],
        imports="" if standalone or not ours else "import contextwise  # registers the model\n",
        trust=", trust_remote_code=True" if standalone else "",
    )
    return f"---\n{data.to_yaml()}\n---\n\n# {recipe['name']}\n\n{table}\n\n{usage}\n\nTrained with Contextwise.\n"


def _plain(settings: dict[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items())
