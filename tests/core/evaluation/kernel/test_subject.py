"""The copy of a model that a measure reads."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from contextwise.evaluation.kernel import Subject
from small import small_gpt2


def test_a_copy_shares_its_weights_and_nothing_that_a_measure_changes():
    model = small_gpt2().train()
    twin = Subject(model).copied().model
    assert model.training and not twin.training
    pairs = zip([*model.parameters(), *model.buffers()], [*twin.parameters(), *twin.buffers()], strict=True)
    assert all(own is other for own, other in pairs)
    twin.config.n_positions = 7
    twin.transformer.register_forward_hook(lambda *_: None)
    assert model.config.n_positions == 48 and not model.transformer._forward_hooks


def test_a_copy_reads_each_text_as_if_it_were_the_first():
    """With dynamic NTK, frequencies would stay those of the longest text before."""
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=50, max_position_embeddings=8, rope_parameters=rope, **shape))
    long, short = torch.arange(40)[None], torch.arange(12)[None]
    with torch.no_grad():
        first = Subject(model).copied().model(short).logits
        twin = Subject(model).copied().model
        twin(long)
        assert torch.equal(twin(short).logits, first)
