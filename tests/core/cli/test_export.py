"""``contextwise export``: a folder to share, with a card."""

import contextlib
import json
from pathlib import Path

import pytest
import torch
import yaml
from huggingface_hub import ModelCard
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertForMaskedLM, BertModel, T5Config, T5ForConditionalGeneration

from contextwise.base.errors import CheckpointError
from contextwise.models import load_model, load_tokenizer
from contextwise.models.export import export_model_folder
from small import recipe_values, save_model, small_gpt2
from trained import trained


@pytest.fixture(scope="module")
def run(corpus_folder, tmp_path_factory):
    values = recipe_values(corpus_folder, tmp_path_factory.mktemp("export") / "run", steps=4)
    return trained(values)


@pytest.mark.parametrize("standalone", ["", "--standalone"])
def test_a_run_is_exported_with_a_card_that_the_hub_can_read(contextwise, run, workplace, standalone):
    status, output, _ = contextwise(f"export {run.path} --out shared {standalone} --json")
    files = sorted(file.name for file in (workplace / "shared").iterdir())
    assert status == 0
    assert json.loads(output) == {"path": "shared", "standalone": bool(standalone), "files": files}
    card = ModelCard.load(workplace / "shared" / "README.md")
    assert card.data.tags == ["contextwise", "contextlm"]
    assert ("trust_remote_code=True" in card.text) == bool(standalone)
    assert ("import contextwise" in card.text) != bool(standalone)
    assert f"{run.summary()['validation_loss']:.4f} nats per token" in card.text
    settings = yaml.safe_load(card.text.partition("```yaml\n")[2].partition("```")[0])
    corpus = run.recipe()["data"]["corpus"]
    assert settings | {"data": settings["data"] | {"corpus": corpus}} == run.recipe()  # without the folders
    assert settings["data"]["corpus"] == Path(corpus).name
    assert load_model(workplace / "shared", device="cpu").config.model_type == "contextlm"
    tokenizer = load_tokenizer(workplace / "shared")
    assert tokenizer.decode(tokenizer("the model").input_ids) == "the model"


def test_the_code_of_a_card_runs_where_the_card_lies(contextwise, corpus_folder, workplace):
    name = 'a"); print("`|` x'
    values = recipe_values(corpus_folder, workplace / "run", steps=2, warmup_steps=0) | {"name": name}
    trained(values)
    contextwise.words("export run --out shared")
    card = (workplace / "shared" / "README.md").read_text()
    code = card.split("```python\n")[1].split("\n```")[0]
    assert name not in code and str(workplace) not in card
    values: dict = {}
    with contextlib.chdir(workplace / "shared"):
        exec(code, values)
    assert values["model"].config.model_type == "contextlm" and values["tokenizer"]("a").input_ids


def test_a_folder_that_exists_is_refused(contextwise, run, workplace):
    (workplace / "mine").write_text("x")
    contextwise.refused(f"export {run.path} --out . --json", "already exists")


def _without(name):
    def harm(folder):
        weights = load_file(folder / "model.safetensors")
        del weights[name]
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    return harm


def _with(name, value):
    def harm(folder):
        weights = load_file(folder / "model.safetensors")
        weights[name] = weights[name].clone()
        weights[name].view(-1)[3] = value
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    return harm


def _pickled(folder):
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def _narrower(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"n_embd": 8}))


BIAS = "transformer.h.0.mlp.c_fc.bias"


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (
            lambda folder: (folder / "model.safetensors").unlink(),
            "m holds no weights to export: there is no file *.safetensors",
        ),
        (_pickled, "pytorch_model.bin is a pickle, which may run code"),
        (
            lambda folder: (folder / "model.safetensors").write_bytes(b"{}"),
            "no causal language model could be loaded from m",
        ),
        (_with(BIAS, float("nan")), f"the weights {BIAS} of m hold numbers that are not finite"),
        (_with(BIAS, float("-inf")), "not finite"),
        (_without(BIAS), f"do not match its config.json: {BIAS} missing"),
        (_narrower, "the shapes of its weights do not match its config.json"),
    ],
)
def test_a_model_without_its_weights_is_not_ready_to_be_shared(contextwise, workplace, harm, why):
    folder = save_model(workplace / "m", small_gpt2())
    harm(folder)
    contextwise.refused("export m --out shared", why)
    assert not (workplace / "shared").exists()


def test_encoders_and_encoder_decoders_are_exported_and_checked(workplace):
    shape = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "vocab_size": 257,
    }
    t5 = T5Config(d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, vocab_size=257, decoder_start_token_id=0)
    kinds = {"bert": BertModel(BertConfig(**shape)), "masked": BertForMaskedLM(BertConfig(**shape))}
    for name, model in (kinds | {"t5": T5ForConditionalGeneration(t5)}).items():
        folder = save_model(workplace / name, model)
        export_model_folder(folder, workplace / f"{name}-shared")
        with torch.no_grad():
            next(iter(model.parameters()))[0] = torch.nan
        model.save_pretrained(folder)
        with pytest.raises(CheckpointError, match="not finite"):
            export_model_folder(folder, workplace / f"{name}-again")
