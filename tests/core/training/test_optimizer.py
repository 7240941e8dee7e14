"""Optimizers and learning-rate schedules: against torch's own, over checkpoints, and in runs that are stopped."""

import copy
import math
import re

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModelForCausalLM

from contextwise.models import ModelSize, backbone_config, build_model
from contextwise.models.matrices import matrices_of
from contextwise.training.hyperparameters import TrainingSettings
from contextwise.training.model import TrainedModel
from contextwise.training.optimizer import BatchedMuon, JoinedOptimizer, create_optimizer, learning_rate_share
from contextwise.training.recipe import load_recipe
from contextwise.training.trainer import PretrainingTrainer
from small import as_on_an_accelerator, recipe_values
from trained import trained

MUON = {"optimizer": "muon", "schedule": "wsd", "decay_steps": 0.5, "precision": "bf16"}


def rates(settings: TrainingSettings, steps: int) -> list[float]:
    """The learning rate of each step, as a share of the maximum."""
    share = learning_rate_share(settings, steps)
    return [share(step) for step in range(steps + 1)]


@given(
    st.sampled_from(["linear", "wsd", "cosine", "constant"]),
    st.integers(10, 200),
    st.floats(0, 0.5),
    st.floats(0.05, 0.5),
    st.none() | st.floats(0, 1),
)
def test_a_schedule_rises_stays_and_falls_to_its_end(name, steps, warmup, decay, least):
    settings = TrainingSettings(
        steps=steps, schedule=name, warmup_steps=warmup, decay_steps=decay, minimum_learning_rate=least
    )
    assume(name != "wsd" or settings.warmup(steps) + settings.decay(steps) <= steps)  # a recipe is refused else
    start, values = settings.warmup(steps), rates(settings, steps)
    assert warmup * steps - 1e-9 <= start < warmup * steps + 1
    assert values[start] == pytest.approx(1)
    assert values[:start] == pytest.approx([step / start for step in range(start)])
    assert values[start:] == sorted(values[start:], reverse=True)
    assert values[-1] == pytest.approx(1 if name == "constant" else settings.final_learning_rate)
    if name == "wsd":
        stable = steps - settings.decay(steps)
        assert values[start : stable + 1] == pytest.approx([1.0] * (stable + 1 - start))


@pytest.mark.parametrize("name", ["warmup_steps", "decay_steps"])
def test_shares_of_a_run_are_whole_steps(name):
    """0.07 · 100 is 7.000000000000001 in floating point, which is no eighth step."""
    for share, steps, expected in (
        (0.07, 100, 7),
        (0.14, 100, 14),
        (0.29, 100, 29),
        (0.071, 100, 8),
        (2, 100, 2),
        (1.0, 9, 1),
    ):
        settings = TrainingSettings(steps=steps, schedule="wsd", **{name: share})
        assert (settings.warmup if name == "warmup_steps" else settings.decay)(steps) == expected
    with pytest.raises(ValueError, match=f"{name} is 2.5, but must be a whole number, or a share below 1"):
        TrainingSettings(steps=100, schedule="wsd", **{name: 2.5})


@given(
    st.integers(4, 200), st.none() | st.floats(0.01, 0.9) | st.integers(2, 4), st.none() | st.floats(1e-9, 1),
    st.none() | st.floats(0, 1),
)  # fmt: skip
@example(steps=1000, rise=None, first=0.025, last=None)
def test_one_cycle_is_torchs_schedule(steps, rise, first, last):
    given = {"warmup_steps": rise, "initial_learning_rate": first, "minimum_learning_rate": last}
    given = {name: value for name, value in given.items() if value is not None}
    settings = TrainingSettings(steps=steps, schedule="one_cycle", **given)
    first, last = settings.first_learning_rate, settings.final_learning_rate
    share = settings.warmup_steps if settings.warmup_steps < 1 else settings.warmup_steps / steps
    assume(abs(share * steps - 1) > 1e-6 and share <= 1)
    options = {"div_factor": 1 / first, "final_div_factor": first / last if last else math.inf}
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    theirs = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 1.0, steps, pct_start=float(share), cycle_momentum=False, **options
    )
    expected = []
    for _ in range(steps):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if len(expected) < steps:
            theirs.step()
    assert rates(settings, steps)[:-1] == pytest.approx(expected, rel=1e-9, abs=1e-15)


def test_the_papers_one_cycle():
    paper = load_recipe("cue/joint-paper").training
    values = learning_rate_share(paper, 17579)
    assert values(0) * paper.learning_rate == pytest.approx(1e-4)
    assert max(map(values, range(17579))) * paper.learning_rate == pytest.approx(4e-3, rel=1e-6)
    assert values(17578) * paper.learning_rate == pytest.approx(1e-8)


def test_a_linear_schedule_by_hand():
    settings = TrainingSettings(steps=10, schedule="linear", warmup_steps=2)
    assert rates(settings, 10) == pytest.approx([0, 0.5, 1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8, 0])


def small_model(**config) -> TrainedModel:
    torch.manual_seed(0)
    return TrainedModel(build_model(backbone_config("gpt2", ModelSize(2, 32, 2, 1e-3), 64, 16, **config)))


def take_step(model: TrainedModel, optimizers: list[torch.optim.Optimizer], seed: int) -> None:
    tokens = torch.randint(0, 64, (2, 17), generator=torch.Generator().manual_seed(seed))
    model(tokens[:, :-1], tokens[:, 1:]).backward()
    for optimizer in optimizers:
        optimizer.step()
    model.zero_grad()


SETTINGS = TrainingSettings(steps=10, optimizer="muon", learning_rate=3e-3)


def test_muon_takes_the_matrices_of_the_blocks_and_adamw_the_rest():
    model = small_model()
    optimizer = create_optimizer(model, SETTINGS, 3e-3)
    adamw, muon = optimizer.parts
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    inner = {names[id(p)] for group in muon.param_groups for p in group["params"]}
    assert inner == {
        f"model.transformer.h.{i}.{part}.weight"
        for i in range(2)
        for part in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    }
    others = {names[id(p)] for group in adamw.param_groups for p in group["params"]}
    assert others == set(names.values()) - inner


def test_joined_steps_are_those_of_torchs_own_optimizers():
    joined, apart = small_model(), small_model()
    optimizer = create_optimizer(joined, SETTINGS, 3e-3, bf16=True)
    matrices = [p for n, p in apart.named_parameters() if ".h." in n and p.ndim == 2]
    embeddings = [p for n, p in apart.named_parameters() if ".w" in n and p.ndim == 2 and ".h." not in n]
    vectors = [p for p in apart.parameters() if p.ndim == 1]
    own = [
        torch.optim.AdamW(embeddings, lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True),
        torch.optim.AdamW(vectors, lr=3e-3, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
        torch.optim.Muon(matrices, lr=0.02, momentum=0.95, weight_decay=0.01),
    ]
    for seed in range(3):
        take_step(joined, [optimizer], seed)
        take_step(apart, own, seed)
    for a, b in zip(joined.parameters(), apart.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("adjustment", ["original", "match_rms_adamw"])
def test_batches_of_one_shape_are_torchs_muon(adjustment):
    """Wide, tall, square and single matrices, two groups of one shape, and one matrix that has no gradient at first."""
    shapes = [(24, 8), (8, 24), (16, 16), (24, 8), (8, 24), (40, 8), (24, 8)]
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(shape, generator=generator) for shape in shapes]
    sides = []
    for kind in (BatchedMuon, torch.optim.Muon):
        matrices = [torch.nn.Parameter(matrix.clone()) for matrix in start]
        groups = [{"params": matrices[:5]}, {"params": matrices[5:], "lr": 0.1, "weight_decay": 0.5}]
        sides.append((matrices, kind(groups, lr=0.02, weight_decay=0.01, adjust_lr_fn=adjustment)))
    for step in range(3):
        gradients = [torch.randn(shape, generator=generator) for shape in shapes]
        for matrices, optimizer in sides:
            for matrix, gradient in zip(matrices, gradients, strict=True):
                matrix.grad = gradient.clone()
            matrices[3].grad = None if step == 0 else matrices[3].grad
            optimizer.step()
        for ours, theirs in zip(sides[0][0], sides[1][0], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-3)  # products of bf16, added up in another order
    moments = [[optimizer.state[matrix]["momentum_buffer"] for matrix in matrices] for matrices, optimizer in sides]
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*moments, strict=True))


@pytest.mark.parametrize("bf16", [False, True])
def test_muon_orthogonalizes_in_the_precision_of_the_run(bf16):
    """In float32 the singular values of an update are those of the iteration, which bf16 gives to two digits only."""
    model = small_model()
    optimizer = create_optimizer(model, SETTINGS.model_copy(update={"muon_weight_decay": 0.0}), 3e-3, bf16=bf16)
    matrix = model.get_parameter("model.transformer.h.0.attn.c_attn.weight")
    before = matrix.detach().clone()
    matrix.grad = torch.randn(matrix.shape, generator=torch.Generator().manual_seed(0))
    optimizer.step()
    direction = matrix.grad.double()
    values = torch.linalg.svdvals(direction / direction.norm())
    for _ in range(5):  # X ← aX + (bXXᵀ + c(XXᵀ)²)X acts on each singular value by itself
        values = 3.4445 * values - 4.775 * values**3 + 2.0315 * values**5
    found = torch.linalg.svdvals((matrix.detach() - before).double()) / 0.02
    error = (found.sort().values - values.sort().values).abs().max()
    assert error > 1e-3 if bf16 else error < 1e-4


def test_a_restored_state_gives_the_same_next_step():
    model = small_model()
    optimizer = create_optimizer(model, SETTINGS, 3e-3)
    take_step(model, [optimizer], 0)
    twin = copy.deepcopy(model)
    restored = create_optimizer(twin, SETTINGS, 3e-3)
    assert isinstance(restored, JoinedOptimizer)
    restored.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for group in (*optimizer.param_groups, *restored.param_groups):
        group["lr"] /= 2  # as a schedule would
    take_step(model, [optimizer], 1)
    take_step(twin, [restored], 1)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


def test_an_untied_head_is_adamws():
    model = small_model()
    model.model.lm_head.weight = torch.nn.Parameter(torch.zeros(64, 32))
    muon = create_optimizer(model, SETTINGS, 3e-3).parts[1]
    assert all(p is not model.model.lm_head.weight for group in muon.param_groups for p in group["params"])


class Reads(TorchDispatchMode):
    """Counts the values of tensors that Python reads, each of which would wait for an accelerator."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("optimizer", "stock"), [("adamw", True), ("muon", False)])
def test_a_step_reads_no_value_but_those_of_its_check(corpus_folder, tmp_path, monkeypatch, optimizer, stock):
    """The check copies all its values at once (``tolist``), so that a step waits for an accelerator once."""
    reads, lists = Reads(), []

    def counted(cls, name):
        sound = getattr(cls, name)

        def method(self, *args, **kwargs):
            with reads:
                return sound(self, *args, **kwargs)

        monkeypatch.setattr(cls, name, method)

    counted(PretrainingTrainer, "training_step")
    counted(PretrainingTrainer, "check_step")
    counted(JoinedOptimizer if optimizer == "muon" else torch.optim.AdamW, "step")
    tolist = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda self: lists.append(self) or tolist(self))
    values = recipe_values(corpus_folder, tmp_path / "run", optimizer=optimizer, steps=3)
    if stock:
        values["model"].pop("context_predictor")
    as_on_an_accelerator(monkeypatch)
    trained(values)
    assert reads.count == 0
    assert len([values for values in lists if values.dtype == torch.float64]) == 3


def test_weight_decay_is_on_all_matrices_and_on_nothing_else():
    """Of recurrent layers and of torch's attention too, whose matrices lie in no linear layer of their own."""
    parts = {
        "lstm": nn.LSTM(8, 8),
        "gru": nn.GRU(8, 8),
        "attention": nn.MultiheadAttention(8, 2),
        "norm": nn.LayerNorm(8),
        "head": nn.Linear(8, 3),
    }
    module = nn.ModuleDict(parts)
    settings = TrainingSettings(steps=1, weight_decay=0.1)
    groups = create_optimizer(module, settings, 1e-3).param_groups
    decayed = {id(parameter) for group in groups if group["weight_decay"] for parameter in group["params"]}
    matrices = {name for name, parameter in module.named_parameters() if parameter.dim() == 2}
    assert {name for name, parameter in module.named_parameters() if id(parameter) in decayed} == matrices


class Experts(nn.Module):
    """Stacks of matrices, as transformers has those of experts."""

    def __init__(self):
        super().__init__()
        self.stack = nn.Parameter(torch.randn(3, 8, 24))
        self.bias = nn.Parameter(torch.randn(3, 24))


def test_experts_decay_and_adamw_takes_them():
    module = nn.ModuleDict({"experts": Experts(), "convolution": nn.Conv1d(4, 4, 3), "linear": nn.Linear(8, 8)})
    names = {id(parameter): name for name, parameter in module.named_parameters()}

    def of(optimizer, decays):
        groups = [group for group in optimizer.param_groups if bool(group["weight_decay"]) is decays]
        return {names[id(parameter)] for group in groups for parameter in group["params"]}

    matrices = {"experts.stack", "linear.weight"}
    settings = TrainingSettings(steps=1, weight_decay=0.1)
    assert of(create_optimizer(module, settings, 1e-3), True) == matrices
    adamw, muon = create_optimizer(module, SETTINGS, 1e-3).parts
    assert of(muon, True) == {"linear.weight"} and of(adamw, True) == {"experts.stack"}


@pytest.mark.parametrize(
    "family",
    ["deepseek_v3", "ernie4_5_moe", "gpt_oss", "granitemoe", "jetmoe", "mixtral", "olmoe", "qwen2_moe", "qwen3_moe"],
)
def test_routers_decay_in_every_family_and_biases_of_experts_do_not(family):
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, num_hidden_layers=4))
    matrices = {id(matrix) for matrix in matrices_of(model, embeddings=True)}
    vectors = {name for name, parameter in model.named_parameters() if id(parameter) not in matrices}
    assert vectors == {name for name, _ in model.named_parameters() if re.search("norm|bias|sinks", name)}
