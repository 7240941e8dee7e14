"""Models by folder or name: what is found, and one sentence for what is not."""

import json

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel

from contextwise.base.errors import CheckpointError, DataError
from contextwise.base.files import write_sealed_json
from contextwise.base.hashes import seal
from contextwise.data.tokenizers import byte_tokenizer
from contextwise.data.tokenizers import load_tokenizer as corpus_tokenizer
from contextwise.evaluation.kernel import Subject
from contextwise.models import load_model, load_tokenizer
from contextwise.models.folders import model_folder


@pytest.fixture
def saved(tmp_path):
    model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=8, n_embd=8, n_layer=1, n_head=1))
    model.save_pretrained(tmp_path / "run" / "model")
    return model, tmp_path / "run"


def test_a_run_and_its_model_folder_are_loaded(saved):
    model, run = saved
    tokens = torch.arange(5)[None]
    for place in (run, run / "model", str(run)):
        loaded = load_model(place, device="cpu")
        assert not loaded.training
        torch.testing.assert_close(loaded(tokens).logits, model.eval()(tokens).logits)
    assert load_model(run, dtype=torch.bfloat16).dtype == torch.bfloat16


def test_what_is_no_model_gets_a_clear_error(saved, tmp_path):
    _, run = saved
    (tmp_path / "notting").mkdir()
    with pytest.raises(CheckpointError, match="there is no run and no model at .*nothing.*did you mean .*notting[?]"):
        load_model(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="contains no model"):
        load_model(tmp_path / "empty")
    with pytest.raises(
        CheckpointError, match=r"model\.safetensors is a file; give the folder of a model, such as .*model$"
    ):
        load_model(run / "model" / "model.safetensors")
    (tmp_path / "empty" / "adapter_config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="is an adapter without its model; merge it"):
        load_model(tmp_path / "empty")
    (tmp_path / "empty" / "recipe.yaml").write_text("name: x")
    with pytest.raises(CheckpointError, match="is not finished; run the command"):
        load_model(tmp_path / "empty")
    write_sealed_json(tmp_path / "empty" / "diverged.json", {"reason": "the loss at step 3 is not a finite number"})
    with pytest.raises(CheckpointError, match="diverged and has no model: the loss at step 3 is not"):
        load_model(tmp_path / "empty")
    with pytest.raises(CheckpointError, match="has no tokenizer"):
        load_tokenizer(run)


@pytest.mark.parametrize("harm", ["cut", "gone", "config"])
def test_a_damaged_model_gets_a_clear_error(saved, harm):
    _, run = saved
    weights = run / "model" / "model.safetensors"
    if harm == "cut":
        weights.write_bytes(weights.read_bytes()[:200])
    elif harm == "gone":
        weights.unlink()
    else:
        (run / "model" / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="could be loaded from .*run") as caught:
        load_model(run)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"n_layer": 10**7}, "sets n_layer to 10000000; it may be 10,000 at most"),
        ({"n_head": 0}, "sets n_head to 0; it may be 1 at least"),
        ({"n_layer": -1}, "sets n_layer to -1; it may be 0 at least"),
        ({"vocab_size": -5}, "sets vocab_size to -5; it may be 1 at least"),
        ({"activation_function": "nope"}, "'nope' is not known to transformers"),
        ({"num_labels": 10**8}, "sets num_labels to 100000000"),
        ({"backbone_config": {"num_hidden_layers": 10**9}}, "sets num_hidden_layers to 1000000000"),
        (
            {"model_type": "of_a_package"},
            "its model_type 'of_a_package' is unknown; install the package that offers it",
        ),
    ],
)
def test_a_configuration_that_would_take_hours_is_refused(saved, values, why):
    file = saved[1] / "model" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))
    with pytest.raises(CheckpointError, match=why):
        load_model(saved[1])


@pytest.mark.parametrize(
    "settings",
    [
        {"return_dict_in_generate": True},
        {"stop_strings": ["a"]},
        {"token_healing": True},
        {"bad_words_ids": [[10**9]]},
        {"repetition_penalty": 0},
        {"num_beams": 10**6, "num_beam_groups": 2},
        {"prompt_lookup_num_tokens": 3},
    ],
)
def test_outputs_do_not_depend_on_a_models_other_settings(saved, settings):
    model, run = saved
    expected = model.eval().generate(torch.arange(3)[None], max_new_tokens=4, do_sample=False)
    for name, values in (("generation_config.json", settings), ("config.json", {"return_dict": False})):
        file = run / "model" / name
        file.write_text(json.dumps(json.loads(file.read_text()) | values))
    loaded = load_model(run, device="cpu")
    assert torch.equal(loaded.generate(torch.arange(3)[None], max_new_tokens=4, do_sample=False), expected)


def test_a_number_of_positions_that_is_none_is_refused(saved):
    file = saved[1] / "model" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"max_position_embeddings": "x"}))
    with pytest.raises(CheckpointError, match="sets max_position_embeddings to 'x', not a number"):
        Subject(saved[1]).positions  # noqa: B018


def test_pickled_weights_are_not_opened(saved):
    model, run = saved
    torch.save(model.state_dict(), run / "model" / "pytorch_model.bin")
    (run / "model" / "model.safetensors").unlink()
    with pytest.raises(CheckpointError):
        load_model(run)


def test_a_folder_below_an_existing_one_is_never_looked_up_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    with pytest.raises(CheckpointError, match="there is no run"):
        model_folder("runs/missing")
    assert model_folder("someone/model") == "someone/model"
    assert model_folder("gpt2") == "gpt2"


def rewritten(run, change):
    """The weights after a change; ``change`` gets all tensors by name."""
    file = run / "model" / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, {"format": "pt"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop("transformer.h.0.mlp.c_fc.weight"), "h.0.mlp.c_fc.weight missing; export"),
        (
            lambda tensors: tensors.update({"transformer.h.1.mlp.c_fc.weight": torch.zeros(8, 32)}),
            "h.1.mlp.c_fc.weight not part of the model",
        ),
        (lambda tensors: tensors.update({"v_head.weight": torch.zeros(1)}), "v_head.weight not part of the model"),
        (
            lambda tensors: tensors.update({"transformer.ln_f.weight": torch.zeros(9)}),
            "shapes of its weights do not match",
        ),
        (lambda tensors: [tensors.pop(name) for name in list(tensors) if ".attn." in name], "and 1 more missing"),
    ],
)
def test_weights_that_are_missing_unexpected_or_of_another_shape_are_named(saved, change, message):
    _, run = saved
    rewritten(run, change)
    with pytest.raises(CheckpointError, match=message) as caught:
        load_model(run)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "manifest.json"])
def test_a_sealed_model_is_loaded_only_unchanged(saved, name):
    _, run = saved
    byte_tokenizer().tokenizer.save_pretrained(run / "model")
    seal(run / "model")
    load_model(run)
    file = run / "model" / name
    content = bytearray(file.read_bytes())
    content[content.rindex(b"1") if name == "config.json" else -9] ^= 1
    file.write_bytes(content)
    with pytest.raises(
        CheckpointError, match=rf"is damaged: .*{name}.* if the change is meant, remove .*manifest.json"
    ):
        load_model(run)
    (run / "model" / "manifest.json").unlink()
    if name == "manifest.json":
        load_model(run)


def test_a_tokenizer_is_written_alike_online_and_offline(tmp_path, monkeypatch):
    byte_tokenizer().tokenizer.save_pretrained(tmp_path / "0")
    for number, offline in enumerate((True, False, True)):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
        corpus_tokenizer(str(tmp_path / str(number))).tokenizer.save_pretrained(tmp_path / str(number + 1))
    configs = [(tmp_path / str(number) / "tokenizer_config.json").read_text() for number in (1, 2, 3)]
    assert configs[0] == configs[1] == configs[2] and "local" not in configs[0]


def test_a_sealed_tokenizer_is_loaded_only_unchanged(saved):
    _, run = saved
    byte_tokenizer().tokenizer.save_pretrained(run / "model")
    seal(run / "model")
    (run / "model" / "model.safetensors").unlink()  # not needed for the tokenizer
    load_tokenizer(run)
    file = run / "model" / "tokenizer.json"
    file.write_text(file.read_text().replace('"vocab": {', '"vocab":  {'))
    for load in (load_tokenizer, lambda run: corpus_tokenizer(str(run))):
        with pytest.raises((CheckpointError, DataError), match="tokenizer.json has changed since it was written"):
            load(run)


@pytest.mark.parametrize("name", ["train:99999999999", " ", "a b", "-x", "x" * 300])
def test_what_cannot_be_a_name_on_the_hub_gets_a_clear_error(name):
    with pytest.raises(CheckpointError, match=f"there is no run and no model at {name}"):
        load_model(name)
