"""The parity task: its exact figures, its samples, and their files."""

import itertools
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import default_collate

from contextwise_papers.intrinsic_entropy.synthetic import MASK, Parity, ParityData, ParitySettings, VisibleLaw
from contextwise_papers.intrinsic_entropy.synthetic.parity import FIRST_TASK
from contextwise_papers.intrinsic_entropy.synthetic.samples import ParityStream, Samples

# Intrinsic entropy, Table 1, "Minimum CE Loss Calculated"; the row of context 20 is explained in the module.
TABLE_1 = {17: 0.4643, 23: 0.3437, 25: 0.3116, 28: 0.2686, 30: 0.2429, 35: 0.1864, 40: 0.1387, 50: 0.0612}
APPENDIX_J3 = {27: 16, 32: 22, 36: 26, 43: 31, 63: 38, 94: 43}


def test_the_calculated_column_of_table_1():
    parity = Parity(ParitySettings())
    assert {c: round(parity.minimum_cross_entropy(c), 4) for c in TABLE_1} == TABLE_1
    assert round(parity.minimum_cross_entropy(20), 4) == 0.3986  # printed: 0.3988, as in the model's column
    assert parity.minimum_cross_entropy(0) == pytest.approx(math.log(2))
    assert parity.minimum_cross_entropy(60) == 0


def test_each_bit_from_11_to_60_is_the_larger_of_two_tasks():
    parity = Parity(ParitySettings())
    bits, counts = np.unique(parity.larger, return_counts=True)
    assert bits.tolist() == list(range(11, 61))
    assert set(counts) == {2}
    assert (parity.smaller < parity.larger).all()
    assert parity.smaller.min() >= 1
    assert len(set(zip(parity.larger, parity.smaller, strict=True))) == 100


@pytest.mark.parametrize("bits", [100, 512])
def test_the_visible_tasks_of_appendix_j3(bits):
    parity = Parity(ParitySettings(bits=bits, tasks=50, law=VisibleLaw(), frequency_exponent=0))
    assert {c: parity.visible_tasks(c) for c in APPENDIX_J3} == APPENDIX_J3
    for context, dimension in APPENDIX_J3.items():  # CE = 0.6931 - 0.01386 ID
        assert parity.minimum_cross_entropy(context) == pytest.approx(0.6931 - 0.01386 * dimension, abs=2e-4)
    assert parity.visible_tasks(bits) == 50


small_tasks = st.builds(
    lambda bits, first, per_bit, exponent, seed: ParitySettings(
        bits=bits,
        first=min(first, bits),
        tasks=min(per_bit, min(first, bits) - 1) * (bits - min(first, bits) + 1),
        frequency_exponent=exponent,
        task_seed=seed,
    ),
    st.integers(2, 7),
    st.integers(2, 7),
    st.integers(1, 3),
    st.floats(0, 3),
    st.integers(0, 99),
)


@settings(max_examples=40)
@given(small_tasks, st.data())
def test_the_minimum_is_the_bayes_risk_over_all_strings_of_bits(task, data):
    parity = Parity(task)
    context = data.draw(st.integers(0, task.bits))
    risk = 0.0
    for k in range(task.tasks):
        seen: dict[tuple, list[int]] = {}
        for bits in itertools.product([0, 1], repeat=task.bits):
            answer = bits[parity.larger[k] - 1] ^ bits[parity.smaller[k] - 1]
            seen.setdefault(bits[:context], []).append(answer)
        for answers in seen.values():
            share = sum(answers) / len(answers)
            entropy = -sum(p * math.log(p) for p in (share, 1 - share) if p > 0)
            risk += parity.frequencies[k] * entropy * len(answers) / 2**task.bits
    assert parity.minimum_cross_entropy(context) == pytest.approx(risk, abs=1e-12)


def data(**changes):
    return ParityData(**({"bits": 20, "tasks": 32, "first": 5, "shortest": 4} | changes))


def test_an_example_is_bits_then_task_and_its_answer_their_exclusive_or():
    samples = Samples(data(masked=0.0), 0)
    batch = samples.batch(np.arange(500))
    assert batch["input_ids"].dtype == batch["labels"].dtype == torch.int64
    for ids, label in zip(batch["input_ids"].tolist(), batch["labels"].tolist(), strict=True):
        task = ids[-1] - FIRST_TASK
        larger, smaller = samples.parity.larger[task], samples.parity.smaller[task]
        assert set(ids[:-1]) <= {0, 1}
        assert label == [ids[larger - 1] ^ ids[smaller - 1]]


def test_masks_are_tokens_of_their_own_and_hide_the_far_end_only():
    samples = Samples(data(), 0)
    drawn, batch = samples.draw(np.arange(4000)), samples.batch(np.arange(4000))
    inputs = batch["input_ids"][:, :-1].numpy()
    assert set(np.unique(inputs)) == {0, 1, MASK}
    assert set(np.unique(drawn.bits)) == {0, 1}
    visible = (inputs != MASK).sum(1)
    assert ((inputs != MASK) == (np.arange(20) < visible[:, None])).all()
    assert (np.where(inputs == MASK, drawn.bits, inputs) == drawn.bits).all()
    assert visible.min() == 4
    assert visible.max() == 20
    # Half of them are masked, by each number of bits alike: 20 visible where not masked, and for 1 of 17 that are.
    counts = np.bincount(visible, minlength=21)[4:20]
    assert counts.sum() / 4000 == pytest.approx(0.5 * 16 / 17, abs=0.03)
    assert counts.min() > 0.5 * counts.mean()


def test_bits_are_even_and_tasks_as_frequent_as_stated():
    samples = Samples(data(masked=0.0), 3)
    drawn = samples.draw(np.arange(200_000))
    assert np.abs(drawn.bits.mean(0) - 0.5).max() < 0.006
    assert np.abs(np.corrcoef(drawn.bits.T) - np.eye(20)).max() < 0.012
    observed = np.bincount(drawn.tasks, minlength=32)
    expected = samples.parity.frequencies * 200_000
    assert ((observed - expected) ** 2 / expected).sum() < 75  # chi-squared, 31 degrees of freedom: p = 2e-5


def test_a_sample_is_the_same_in_any_batch_and_in_any_process():
    samples = Samples(data(), 1)
    together = samples.batch(np.arange(300))
    for numbers in ([7], [299, 7, 0], range(100, 200)):
        alone = pickle.loads(pickle.dumps(samples)).batch(np.array(numbers))
        for name, tensor in alone.items():
            assert torch.equal(tensor, together[name][list(numbers)])


def test_seeds_and_splits_draw_other_samples():
    sets = [Samples(data(masked=0.0), seed, split) for seed in (0, 1) for split in ("train", "validation")]
    rows = [set(map(tuple, s.batch(np.arange(2000))["input_ids"].tolist())) for s in sets]
    assert all(len(a & b) <= 2 for a, b in itertools.combinations(rows, 2))
    assert len({s.fingerprint for s in sets}) == 4
    assert (Samples(data(), 0, "validation").batch(np.arange(500))["input_ids"] != MASK).all()


def test_a_context_leaves_the_far_bits_out_of_the_inputs():
    short, whole = Samples(data(context=8, masked=0.0), 0), Samples(data(masked=0.0), 0)
    first, other = short.batch(np.arange(50)), whole.batch(np.arange(50))
    assert torch.equal(first["input_ids"][:, :8], other["input_ids"][:, :8])
    assert torch.equal(first["input_ids"][:, 8], other["input_ids"][:, 20])
    assert torch.equal(first["labels"], other["labels"])


def test_a_stream_goes_through_all_samples_every_epoch_in_another_order():
    stream = ParityStream(Samples(data(samples=40), 0), 100, 40)
    numbers = stream.numbers(np.arange(80))
    assert sorted(numbers[:40]) == sorted(numbers[40:]) == list(range(40))
    assert numbers[:40].tolist() != numbers[40:].tolist()
    batch = default_collate(stream.__getitems__([3, 41, 99]))
    for row, index in enumerate((3, 41, 99)):
        item = stream[index]
        assert all(torch.equal(batch[name][row], item[name]) for name in item)
    assert ParityStream(Samples(data(), 0), 100, None).numbers(np.arange(5)).tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(IndexError):
        stream[100]
