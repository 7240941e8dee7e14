"""Models by folder or name: what is found, and one sentence for what is not."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from contextwise.base.errors import CheckpointError
from contextwise.models import load_model, load_tokenizer, model_folder


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
    with pytest.raises(CheckpointError, match="there is no run and no model at .*nothing"):
        load_model(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="contains no model"):
        load_model(tmp_path / "empty")
    (tmp_path / "empty" / "recipe.yaml").write_text("name: x")
    with pytest.raises(CheckpointError, match="has no model yet; finish it"):
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
