"""Training in bf16, which `precision: auto` takes on most machines: the library's own loss and gradients, and exact resume."""

import json

import pytest
import torch
from test_objective_runs import CASES, values
from torch import nn

from contextwise.base.config import validate
from contextwise.models.attention import fast_attention
from contextwise.models.spec import build_model
from contextwise.training import Recipe, train
from contextwise.training.batches import NOT_FOR_MODELS, collate
from contextwise.training.inputs import TrainingInputs
from contextwise.training.model import TrainedModel
from trained import cut_back, same

FAMILIES = ("gpt2", "gpt2_rotary", "gpt_neox", "llama", "qwen3", "lstm")
LOSSES = CASES | {family: (family, "causal") for family in FAMILIES} | {"contrastive": ("bert", "contrastive")}
RESUMED = {"bert": "contrastive"} | dict.fromkeys(("lstm", "gpt2_rotary", "gpt_neox", "qwen3"), "causal")
"""Families and objectives whose runs no other test resumes; `test_objective_runs.py` has the others."""
SLOW = ("gpt_neox", "qwen3")


def mean_pooled_pairs(states, batch):
    """InfoNCE of rows 2 i and 2 i + 1, written out over pairs of other documents."""
    mask = batch["attention_mask"][..., None]
    vectors = nn.functional.normalize((states.float() * mask).sum(1) / mask.sum(1), dim=-1)
    total, a, b, documents = 0.0, vectors[::2], vectors[1::2], batch["document"][::2].tolist()
    for i, document in enumerate(documents):
        others = [j for j, other in enumerate(documents) if j == i or other != document]
        for query, keys in ((a[i], b[others]), (b[i], a[others])):
            logits = (keys * query).sum(-1) / batch["temperature"][0]
            total = total - logits.log_softmax(-1)[others.index(i)] / 2
    return total / len(documents)


def loss_of_transformers(model, batch):
    """The mean loss of a batch by the model's own forward pass."""
    batch = {name: value for name, value in batch.items() if name not in ("labelled", *NOT_FOR_MODELS)}
    if "temperature" in batch:
        states = model.base_model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
        return mean_pooled_pairs(states.last_hidden_state, batch)
    if hasattr(model, "cls") or model.config.is_encoder_decoder:
        if "pair_label" in batch:
            batch["next_sentence_label"] = batch.pop("pair_label")
        return model(**batch).loss
    labels, prefix = batch.pop("labels"), batch.pop("prefix", None)
    if prefix is not None:
        seen = torch.ones(labels.shape[1], labels.shape[1], dtype=torch.bool).tril()
        batch["attention_mask"] = (seen | (prefix[:, :, None] & prefix[:, None, :]))[:, None]
    return nn.functional.cross_entropy(model(**batch).logits.float().flatten(0, 1), labels.flatten())


@pytest.mark.parametrize("case", LOSSES)
def test_a_step_has_the_loss_and_the_gradients_of_transformers(case, sentences_folder, tmp_path, monkeypatch):
    """As near to those of float32 as transformers' own in bf16, for weights so large that every part of the model matters."""
    monkeypatch.setitem(CASES, case, LOSSES[case])
    task = TrainingInputs.open(validate(Recipe, values(sentences_folder, tmp_path, case), "the recipe"))
    batch = collate([task.stream[i] for i in range(4)])
    torch.manual_seed(0)
    model = build_model(task.config).train()
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=2.0 if "relative_attention_bias" in name else 0.1)

    def step(loss, low):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            value = loss()
        value.backward()
        gradients = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
        used = {name for name, gradient in gradients.items() if gradient.abs().max() > 0}
        return value.item(), torch.cat([gradients[name].flatten() for name in sorted(used)]), used

    inputs = {name: value for name, value in batch.items() if name not in NOT_FOR_MODELS}
    exact, exact_gradients, used = step(lambda: loss_of_transformers(model, batch), False)
    _, usual_gradients, _ = step(lambda: loss_of_transformers(model, batch), True)
    with fast_attention():
        result, gradients, ours = step(lambda: TrainedModel(model)(**inputs), True)
    assert ours == used
    assert result == pytest.approx(exact, rel=0.02)
    usual_distance = (usual_gradients - exact_gradients).norm()
    assert (gradients - exact_gradients).norm() < 1.5 * usual_distance < 0.3 * exact_gradients.norm()


@pytest.mark.long
@pytest.mark.parametrize("family", [pytest.param(f, marks=pytest.mark.slow) if f in SLOW else f for f in RESUMED])
def test_every_family_resumes_bit_for_bit(family, sentences_folder, tmp_path, monkeypatch):
    monkeypatch.setitem(CASES, family, (family, RESUMED[family]))

    def recipe(name):
        settings = {"steps": 4, "save_every": 2, "log_every": 1, "keep_checkpoints": 2}
        return validate(Recipe, values(sentences_folder, tmp_path / name, family, **settings), "the recipe")

    whole = train(recipe("whole"))
    again = cut_back(whole, 4, tmp_path / "again")
    train(recipe("again"))
    assert same(whole, again)
    rows = [[json.loads(line) for line in (path / "metrics.jsonl").open()] for path in (whole.path, again)]
    assert [row["loss"] for row in rows[0]] == [row["loss"] for row in rows[1]]
