"""torch.compile takes the training step as one graph."""

import pytest
import torch

from contextlm_models import backbone, contextlm, draw
from contextwise.training.model import TrainedModel
from contextwise_papers.objectives import MultiTokenConfig, MultiTokenForCausalLM


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gpt2", "llama", "layer", "linear"])
def test_a_training_step_compiles_without_a_graph_break_and_gives_the_same(kind, device):
    torch.manual_seed(0)
    if kind in ("layer", "linear"):
        model = MultiTokenForCausalLM(MultiTokenConfig(backbone("llama"), future_tokens=2, head=kind))
    else:
        model = contextlm(kind, chunk_size=4, inject_every_layer=True)
    trained = TrainedModel(model).to(device).train()
    tokens = draw(2, 17).to(device)
    results = []
    for step in (trained, torch.compile(trained, fullgraph=True)):
        trained.zero_grad()
        loss = step(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        results.append([loss.detach(), *(p.grad.clone() for p in trained.parameters())])
    torch.testing.assert_close(results[0], results[1], atol=1e-5, rtol=1e-4)
