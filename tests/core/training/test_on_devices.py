"""Runs on each device: exact resume, and FSDP2 in a single process."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from contextlm_models import contextlm, draw
from contextwise.training import checkpoints
from contextwise.training.hyperparameters import TrainingSettings
from contextwise.training.model import TrainedModel
from contextwise.training.optimizer import create_optimizer
from processes import free_port
from small import recipe_values
from trained import half_done, same, timeless, trained


@pytest.fixture
def deterministic(device, monkeypatch):
    """Kernels that add in the same order each time, where torch has them: on a GPU others need not repeat a run."""
    if device == "cuda":
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(device == "cuda", warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.long
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_stopped_run_ends_with_the_weights_of_one_that_was_not(
    optimizer, device, deterministic, corpus_folder, tmp_path
):
    settings = {"device": device, "optimizer": optimizer}
    whole = trained(recipe_values(corpus_folder, tmp_path / "whole", **settings))
    stopped = trained(half_done(corpus_folder, tmp_path / "stopped", **settings))
    assert same(whole, stopped)
    assert timeless(whole) == timeless(stopped)


@pytest.fixture
def one_process(device):
    """A process group of this process alone."""
    dist.init_process_group(
        {"cpu": "gloo", "cuda": "nccl"}[device], init_method=f"tcp://127.0.0.1:{free_port()}", rank=0, world_size=1
    )
    yield init_device_mesh(device, (1,))
    dist.destroy_process_group()


def flat(tensors):
    return torch.cat([tensor.cpu().flatten() for tensor in tensors])


# Sharded matrices are orthogonalized by torch's own loop, one by one: in bf16 both round, each in its order.
@pytest.mark.parametrize(("optimizer", "rounding"), [("adamw", 1e-3), ("muon", 0.05)])
def test_a_sharded_model_takes_the_steps_of_a_whole_one(optimizer, rounding, device, one_process):
    whole = TrainedModel(contextlm("llama", chunk_size=3)).to(device).train()
    sharded, start = copy.deepcopy(whole), checkpoints.gather_weights(copy.deepcopy(whole))
    for block in [*sharded.model.backbone.layers, *sharded.model.context.layers]:
        fully_shard(block, mesh=one_process)
    fully_shard(sharded, mesh=one_process)
    tokens = draw(2, 17).to(device)
    gathered = []
    for model in (whole, sharded):
        update = create_optimizer(model, TrainingSettings(steps=1, optimizer=optimizer), 1e-2, bf16=True)
        for _ in range(3):
            model(tokens[:, :-1], tokens[:, 1:]).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            update.step()
            update.zero_grad()
        moments = checkpoints.gather_optimizer(model, update)["state"]
        gathered.append((checkpoints.gather_weights(model), moments))
    assert all(isinstance(parameter, DTensor) for parameter in sharded.parameters())
    (weights, moments), (sharded_weights, sharded_moments) = gathered
    assert weights.keys() == sharded_weights.keys()
    began, ended, other = (flat(each[name] for name in weights) for each in (start, weights, sharded_weights))
    assert (other - ended).norm() <= rounding * (ended - began).norm()
    assert moments.keys() == sharded_moments.keys()
