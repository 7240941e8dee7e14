"""The worked example of docs/extending/variant.md."""

import re
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, GPT2Config

from contextwise.models import ContextLMConfig, build_model
from contextwise.models.spec import pretraining_losses, training_flops_per_token

GUIDE = Path(__file__).parents[2] / "docs" / "extending" / "variant.md"
SMALL = GPT2Config(vocab_size=40, n_positions=16, n_embd=16, n_layer=2, n_head=2)


def test_the_variant_of_the_guide_is_trained_counted_saved_and_loaded(tmp_path):
    names = {"__name__": "variant_of_the_guide"}
    exec(re.search(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)[1], names)
    config = names["ScaledConfig"](SMALL, chunk_size=2, context_scale=0.25)
    torch.manual_seed(0)
    model = build_model(config)
    assert type(model) is names["ScaledForCausalLM"]
    assert training_flops_per_token(config, 16) == training_flops_per_token(
        ContextLMConfig(SMALL, chunk_size=2), 16
    )
    torch.nn.init.ones_(model.context.gate.weight)
    tokens = torch.randint(40, (2, 9))
    losses = pretraining_losses(model.train(), {"input_ids": tokens[:, :-1], "labels": tokens[:, 1:]})
    losses.minimised().backward()
    assert model.context.gate.weight.grad.abs().sum() > 0
    model.eval().save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert loaded.context.gate.scale == 0.25
    assert torch.equal(loaded(tokens).logits, model(tokens).logits)
