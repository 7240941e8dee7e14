"""The trainer's whole loop on an accelerator that is waited for once in an optimizer step."""

import math
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from accelerate import PartialState
from accelerate.state import AcceleratorState
from transformers import TrainerCallback

from accelerator import DEVICE, FakeAccelerator
from contextwise.base.config import validate
from contextwise.base.runs import RunFolder
from contextwise.training import Recipe
from contextwise.training.inputs import TrainingInputs
from contextwise.training.run import build_trainer
from contextwise.training.trainer import PretrainingTrainer
from small import EXACT, recipe_values

CASES = {
    "ContextLM": ({}, {"optimizer": "muon", "micro_batch_tokens": 64}),
    "without a limit of the gradient": ({}, {"clip": 0.0}),
    "masked": ({"objective": "masked", "model": {"family": "bert", "layers": 1, "width": 32, "heads": 2}}, {}),
    "spans": ({"objective": "spans", "model": {"family": "t5", "layers": 1, "width": 32, "heads": 2}}, {}),
}


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_an_optimizer_step_waits_once(case, corpus_folder, tmp_path, monkeypatch):
    changes, training = CASES[case]  # in float32: transformers takes bf16 on a real accelerator only
    values = recipe_values(corpus_folder, tmp_path / "run", steps=3, evaluate_every=0, log_every=1, **EXACT | training)
    recipe = validate(Recipe, values | changes, "the recipe")
    processes = SimpleNamespace(device=torch.device(DEVICE), num_processes=1)
    trainer = build_trainer(recipe, RunFolder(recipe.folder), TrainingInputs.open(recipe), processes)
    for state in (PartialState, AcceleratorState):
        monkeypatch.setitem(state._shared_state, "device", processes.device)
    monkeypatch.setattr(type(trainer.args), "device", processes.device)
    monkeypatch.setattr(PretrainingTrainer, "_save_checkpoint", lambda *_: None)
    accelerator, counts = FakeAccelerator(allowed=math.inf), []

    class Count(TrainerCallback):
        def on_train_begin(self, *_, **__):
            counts.append(len(accelerator.reads))

        on_step_end = on_train_begin

    trainer.add_callback(Count())
    trainer.model.to(DEVICE)
    trainer.create_optimizer()
    for group in trainer.optimizer.param_groups:
        if "fused" in group:
            group |= {"fused": False, "foreach": True}  # the meta device has no fused kernel
    with accelerator:
        trainer.train()
    steps = [accelerator.reads[a:b] for a, b in pairwise(counts)]
    assert [len(reads) for reads in steps] == [1, 1, 1], steps
    assert all("values.tolist()" in reads[0] for reads in steps)
    assert [row["step"] for row in trainer.run.metrics("train")] == [1, 2, 3]
