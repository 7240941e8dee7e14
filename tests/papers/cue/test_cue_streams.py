"""Steps of sentences: sorted, trimmed, the same loss; runs that are killed, and runs of two processes."""

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import default_collate
from torch.utils.flop_counter import FlopCounterMode
from transformers import GPT2Config

from contextwise.base.runs import RunFolder
from contextwise.models import build_model
from contextwise.models.loading import load_config
from contextwise.models.spec import pretraining_losses, training_flops_per_example, training_flops_per_target
from contextwise.objectives import NO_LOSS
from contextwise.training import train
from contextwise.training.batches import NOT_FOR_MODELS, collate, tokens_read
from contextwise.training.inputs import TrainingInputs, targets_in
from contextwise_papers.cue.config import CueConfig, CueContextConfig, CueDecoderConfig
from contextwise_papers.cue.settings import TRAINED
from cue_runs import part, recipe, same, weights
from small import EXACT
from trained import trained_by_two

STEP = 8


@pytest.fixture(scope="module")
def task(life):
    return TrainingInputs.open(recipe(life.stage("joint")))


def exact(life, folder, **training):
    """The recipe of the joint stage in float32."""
    values = life.stage("joint") | {"output": str(folder)}
    return values | {"training": values["training"] | EXACT | training}


@pytest.fixture(scope="module")
def whole(life, tmp_path_factory):
    """The joint stage in float32."""
    return train(recipe(exact(life, tmp_path_factory.mktemp("exact") / "run"))).path


def items_of(stream, step):
    return [stream[i] for i in range(step * STEP, (step + 1) * STEP)]


def test_a_step_holds_the_streams_sentences_in_the_order_of_their_lengths(task):
    stream = task.stream
    for step in range(4):
        items = items_of(stream, step)
        lengths = [int(item["length"]) for item in items]
        assert lengths == sorted(lengths)
        own = [stream.stream[i]["window"].item() for i in range(step * STEP, (step + 1) * STEP)]
        assert sorted(item["window"].item() for item in items) == sorted(own)
    assert len(stream) == 4 * STEP
    with pytest.raises(IndexError):
        stream[len(stream)]


def test_an_example_is_the_same_in_any_order_of_reading(task, life):
    again = TrainingInputs.open(recipe(life.stage("joint"))).stream
    for i in (31, 0, 17, 16, 3):
        a, b = task.stream[i], again[i]
        assert a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def test_lengths_are_those_of_the_examples(task):
    stream = task.stream
    for number in range(40):
        example = stream.stream.examples.example(0, number)
        assert stream.lengths[number] == (example["labels"] != NO_LOSS).sum()


@pytest.mark.parametrize("name", ["joint", "proxy"])
@pytest.mark.parametrize("micro", [1, 2, 4, 8])
def test_sorting_and_trimming_do_not_change_the_loss_of_a_step(life, name, micro):
    """Against the same sentences unsorted, padded to the whole context, in one batch."""
    task = TrainingInputs.open(recipe(life.stage(name)))
    torch.manual_seed(0)
    model = build_model(task.config).eval()
    items = items_of(task.stream, 1)
    shuffled = [items[i] for i in np.random.default_rng(0).permutation(STEP)]
    whole = default_collate(shuffled)
    batches = [collate(items[i : i + micro]) for i in range(0, STEP, micro)]
    expected = losses(model, whole).sums.item()
    result = sum(losses(model, batch).sums.item() for batch in batches)
    assert result == pytest.approx(expected, rel=1e-5)
    assert sum(int(targets_in(batch)) for batch in batches) == int(targets_in(whole))
    assert sum(int(tokens_read(batch, False)) for batch in batches) == int(targets_in(whole))
    widths = [batch["input_ids"].shape[1] for batch in batches]
    assert widths == [int(batch["length"].max()) for batch in batches]
    assert micro == STEP or sum(widths) < len(widths) * max(widths)


def losses(model, batch):
    with torch.no_grad():
        return pretraining_losses(model, {k: v for k, v in batch.items() if k not in NOT_FOR_MODELS})


def test_other_micro_batches_train_the_same_model(life, whole, tmp_path):
    run = train(recipe(exact(life, tmp_path / "run", micro_batch_tokens=256)))
    a, b = weights(run.path), weights(whole)
    assert max((a[key] - b[key]).abs().max().item() for key in a) < 1e-4


def test_noise_differs_between_epochs_and_repeats_between_runs(life):
    task, again = (TrainingInputs.open(recipe(life.stage("proxy"))) for _ in range(2))
    assert torch.equal(task.stream[3]["proxy_noise"], again.stream[3]["proxy_noise"])
    added = task.stream.additions
    first, second = added(0, 7)["proxy_noise"], added(1, 7)["proxy_noise"]
    assert first.shape == (4,) and not torch.equal(first, second)


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, True], ids=["DDP", "FSDP2"])
def test_two_processes_train_what_one_does(life, sharded, tmp_path):
    _, two = trained_by_two(tmp_path, exact(life, tmp_path), fsdp=sharded, micro_batch_tokens=64)
    assert same(part(two.path, "sentence_encoder"), part(life.folder / "lm", "sentence_encoder"))


def test_operations_are_counted_by_what_is_trained(life):
    """Of the decoder's matrices by hand: 3 passes where it is trained, 2 where gradients go through it, 1 forward."""
    joint = load_config(life.folder / "joint")
    trained, frozen = (training_flops_per_target(joint, TRAINED[stage]) for stage in ("joint", "adapt"))
    assert trained == 6 * 16 * joint.vocab_size
    assert frozen / trained == pytest.approx(2 / 3)
    costs = {stage: training_flops_per_example(joint, 10, 0, TRAINED[stage]) for stage in TRAINED}
    assert costs["adapt"] < costs["joint"] and costs["swap"] < costs["joint"]
    # One block of width 16: attention 4, cross-attention's query and output 2, feed-forward 8 squares; 2 more for e_cue.
    square, positions = 16 * 16, 10
    block = positions * (2 * 14 * square + 4 * 16 * (positions + 1)) + 2 * 2 * square
    assert costs["joint"] - costs["adapt"] == pytest.approx(block)


@pytest.mark.parametrize(("width", "decoder", "cue"), [(24, 16, 12), (16, 48, 16)])
def test_operations_are_those_that_torch_counts(width, decoder, cue):
    """But for the gradient of the first layer's input in the context encoder, which is counted and not computed."""
    shape = {"vocab_size": 101, "n_positions": 64, "n_layer": 1, "n_head": 2, "n_embd": width}
    contexts = {"columns": ["a", "b"], "previous_sentence": False}
    encoder = {"text_width": 10, "width": cue, "heads": 2, "layers": 1, "feed_forward": 20, "contexts": contexts}
    blocks = {"input_width": width, "width": decoder, "cue_width": cue, "layers": 2, "heads": 2, "vocab_size": 101}
    parts = GPT2Config(**shape), CueContextConfig(**encoder), CueDecoderConfig(max_positions=32, **blocks)
    model = build_model(CueConfig(*parts)).train()
    with FlopCounterMode(display=False) as counted, sdpa_kernel(SDPBackend.MATH):
        model.hidden_states(torch.randint(101, (1, 20)), contexts=torch.randn(1, 2, 10)).sum().backward()
    assert training_flops_per_example(model.config, 20) == pytest.approx(counted.get_total_flops(), rel=1e-3)


def test_the_summary_counts_the_tokens_that_were_read(life):
    summary = RunFolder(life.folder / "joint").summary()
    stream = TrainingInputs.open(recipe(life.stage("joint"))).stream
    read = sum(int(stream[i]["length"]) for i in range(len(stream)))
    assert summary["input_tokens"] == summary["target_tokens"] == read < summary["tokens"] == 4 * 8 * 32
