"""torch.compile takes the training step as one graph, as on a GPU, and as blocks."""

import pytest
import torch
from torch._dynamo.utils import counters

from contextlm_models import backbone, contextlm, draw, stock_model
from contextwise.training.model import TrainedModel, compile_for
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


@pytest.mark.long
@pytest.mark.parametrize("kind", ["gpt2", "llama", "linear"])
def test_a_training_step_is_one_graph(kind):
    """Traced alone: a cached function or a file that the step reads would break it, without a word."""
    if kind == "linear":
        model = MultiTokenForCausalLM(MultiTokenConfig(backbone("llama"), future_tokens=2, head=kind))
    else:
        model = contextlm(kind, chunk_size=4)
    trained, tokens = TrainedModel(model).train(), draw(2, 17)
    expected = trained(tokens[:, :-1], tokens[:, 1:])
    found = torch.compile(trained, fullgraph=True, backend="eager")(tokens[:, :-1], tokens[:, 1:])
    torch.testing.assert_close(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_models_are_compiled_for_training_alone(whole, precision, device):
    """Also of positions without a label; evaluation is not compiled a second time for its precision."""
    torch.manual_seed(0)
    trained = TrainedModel(stock_model("gpt2")).to(device).train()
    tokens = draw(2, 17).to(device)
    labels = tokens[:, 1:].where(tokens[:, 1:] % 3 > 0, -100)
    results = []
    torch.compiler.reset()
    counters.clear()
    for compiled in (False, True):
        if compiled:
            compile_for(trained, whole)
        trained.zero_grad()
        with torch.autocast(device, precision, enabled=precision == torch.bfloat16):
            loss = trained(tokens[:, :-1], labels)
        loss.backward()
        results.append((loss.detach(), torch.cat([p.grad.flatten() for p in trained.parameters()])))
    (loss, gradient), (compiled_loss, compiled_gradient) = results
    error = 1e-5 if precision == torch.float32 else 0.02
    torch.testing.assert_close(compiled_loss, loss, atol=error, rtol=error)
    assert (compiled_gradient - gradient).norm() <= error * gradient.norm()
    captured = counters["stats"]["unique_graphs"]
    assert captured == 1 if whole else captured >= 1
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        torch.testing.assert_close(trained.eval()(tokens[:, :-1], labels), loss, atol=error, rtol=error)
    assert counters["stats"]["unique_graphs"] == captured
