"""The two scoring passes against each position scored alone, against each other, and against themselves when stopped."""

import tracemalloc
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from contextwise.base.errors import CheckpointError, Interrupted
from contextwise.evaluation.kernel import Subject, Work
from contextwise.evaluation.measures.curve import passes
from contextwise.evaluation.measures.curve.passes import last_tenth, running_pass, truncated_pass, whole_windows
from contextwise.evaluation.scoring import windows as scoring
from contextwise.evaluation.scoring.truncated import Targets

LENGTHS = [30, 5, 12, 25, 11, 40]
KINDS = ["gpt2", "gpt_neox", "contextlm"]


@pytest.fixture
def work(tmp_path):
    return Work(tmp_path / "curve", "", {})


def run(model, corpus, work, context=12, trained=None, batch_tokens=48, **options):
    plan = whole_windows(corpus, context)
    return running_pass(model, corpus, plan, trained, work, batch_tokens=batch_tokens, **options)


def alone(model, tokens, target):
    """Loss of one target after ``tokens``, in one forward pass of its own."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor(np.array([tokens], dtype=np.int64)), use_cache=False).logits[0, -1]
    return float(-torch.log_softmax(logits.double(), -1)[int(target)])


def brute_force(model, corpus, context):
    """Losses (windows, context) of whole windows, each position scored alone; and each window's document."""
    rows, documents = [], []
    for index in range(len(corpus.lengths)):
        tokens = corpus.document(index).astype(int).tolist()
        sequence = tokens if corpus.end_of_text is None else [corpus.end_of_text, *tokens]
        start = 0
        while start + context + 1 <= len(sequence):
            window = sequence[start : start + context + 1]
            rows.append([alone(model, window[:t], window[t]) for t in range(1, context + 1)])
            documents.append(index)
            start += context
    return np.array(rows), np.array(documents)


@pytest.mark.parametrize("end_of_text", [0, None])
@pytest.mark.parametrize("kind", KINDS)
def test_running_curve_is_each_position_scored_alone(models, corpus_of, work, kind, end_of_text):
    corpus, model = corpus_of(LENGTHS, end_of_text=end_of_text), models[kind]
    sums = run(model, corpus, work, trained=10)
    expected, documents = brute_force(model, corpus, 12)
    assert sums.visible.tolist() == list(range(1, 13))
    np.testing.assert_allclose(sums.loss, expected.mean(0), atol=1e-5)
    assert sums.documents.tolist() == sorted(set(documents)) and sums.targets == len(expected)
    for row, document in enumerate(sums.documents):
        mine = expected[documents == document]
        for k, (low, high) in enumerate(zip(sums.bins.low, sums.bins.high, strict=True)):
            assert sums.bin_nats[row, k] == pytest.approx(mine[:, low - 1 : high].sum(), abs=1e-4)
            assert sums.bin_targets[row, k] == mine[:, low - 1 : high].size
        assert (sums.tail.low, sums.tail.high) == (10, 10)
        assert sums.tail.nats[row] == pytest.approx(mine[:, 9].sum(), abs=1e-4)
        assert sums.tail.targets[row] == len(mine)


def test_truncated_pass_scores_the_same_targets_with_only_the_nearest_visible(models, corpus_of, work):
    corpus, model = corpus_of([30, 40]), models["gpt_neox"]
    targets = Targets(np.array([0, 0, 1]), np.array([12, 29, 20]))
    sums = truncated_pass(model, corpus, targets, [1, 4, 12], work, batch_tokens=12)
    for k, context in enumerate((1, 4, 12)):
        losses = [
            alone(model, corpus.document(d)[p - context : p], corpus.document(d)[p])
            for d, p in zip(targets.document, targets.position, strict=True)
        ]
        assert sums.loss[k] == pytest.approx(np.mean(losses), abs=1e-5)
        np.testing.assert_allclose(sums.bin_nats[:, k], [sum(losses[:2]), losses[2]], atol=1e-5)
    assert sums.bin_targets.tolist() == [[2, 2, 2], [1, 1, 1]] and sums.tail is None


def test_a_stopped_truncated_pass_resumes(models, corpus_of, work, tmp_path, stop_at):
    corpus, model = corpus_of([40, 50]), models["gpt_neox"]
    targets = Targets(np.repeat([0, 1], 5), np.arange(10) + 12)
    options = {"contexts": [2, 12], "batch_tokens": 24}
    whole = truncated_pass(model, corpus, targets, work=Work(tmp_path / "w", "", {}), **options)
    stop_at(3)
    with pytest.raises(Interrupted, match="after 14 of 20 predictions"):
        truncated_pass(model, corpus, targets, work=work, **options)
    stop_at(0)
    resumed = truncated_pass(model, corpus, targets, work=work, **options)
    np.testing.assert_array_equal(resumed.bin_nats, whole.bin_nats)


@pytest.fixture
def stopped(models, corpus_of, work, tmp_path, stop_at):
    """The sums of a whole pass, work that was stopped, and a function that takes it up again."""
    whole = run(models["gpt2"], corpus_of(LENGTHS), Work(tmp_path / "whole", "", {}), batch_tokens=12)
    again = partial(run, models["gpt2"], corpus_of(LENGTHS), work, batch_tokens=12)
    stop_at(3)
    with pytest.raises(Interrupted):
        again()
    stop_at(0)
    return whole, work, again


def test_damaged_unfinished_work_is_not_resumed(stopped):
    whole, work, again = stopped
    file = work.path / "sums.safetensors"
    kept = file.read_bytes()
    for damaged in (kept[: len(kept) // 2], b"", b"\x93NUMPY"):
        file.write_bytes(damaged)
        np.testing.assert_array_equal(again().bin_nats, whole.bin_nats)


@pytest.mark.parametrize(
    "harm",
    [
        lambda kept: {"nats": np.where(kept["nats"] > 0, np.float32(np.nan), np.float32(0))},
        lambda kept: {"nats": kept["nats"].astype(np.float64) + 1},
        lambda kept: {"nats": kept["nats"][:-1] + 1},
        lambda kept: {"nats": kept["nats"] + 1, "done": np.full_like(kept["done"], 99)},
        lambda kept: {"nats": kept["nats"] + 1, "done": np.full_like(kept["done"], -1)},
        lambda kept: {"nats": kept["nats"] + 1, "other": np.zeros(1)},
    ],
    ids=["not finite", "another type", "another shape", "more than there is", "less than nothing", "another array"],
)
def test_unfinished_work_that_cannot_be_of_this_measurement_is_not_resumed(stopped, harm):
    whole, work, again = stopped
    kept = work.load("sums")
    work.save("sums", kept | harm(kept))
    np.testing.assert_array_equal((sums := again()).bin_nats, whole.bin_nats)
    np.testing.assert_array_equal(sums.loss, whole.loss)


@pytest.mark.parametrize("done", [[3, 99], [-1, 3]])
def test_targets_that_there_are_not_count_as_none_that_are_done(models, corpus_of, work, tmp_path, done):
    corpus, options = corpus_of([40, 50]), {"contexts": [2, 12], "batch_tokens": 24}
    targets = Targets(np.repeat([0, 1], 5), np.arange(10) + 12)
    whole = truncated_pass(models["gpt2"], corpus, targets, work=Work(tmp_path / "w", "", {}), **options)
    work.save("sums", {"nats": np.ones((2, 10), np.float32), "done": np.array(done)})
    again = truncated_pass(models["gpt2"], corpus, targets, work=work, **options)
    np.testing.assert_array_equal(again.bin_nats, whole.bin_nats)


def test_the_digest_tells_weights_apart(model_of):
    one, same, other = model_of("gpt2"), model_of("gpt2"), model_of("gpt2", seed=1)
    assert Subject(one).digest == Subject(same).digest != Subject(other).digest
    assert Subject(same.to(torch.bfloat16)).digest != Subject(one).digest
    with torch.no_grad():
        one.transformer.ln_f.bias[3] += 1e-3
    assert Subject(one).digest != Subject(model_of("gpt2")).digest


def test_only_whole_windows_of_long_enough_documents_count(corpus_of):
    plan = whole_windows(corpus_of([12, 11, 24, 25, 3]), 12)
    assert plan.document.tolist() == [0, 2, 2, 3, 3] and plan.start.tolist() == [0, 0, 12, 0, 12]
    plan = whole_windows(corpus_of([12, 11, 24, 25, 3], end_of_text=None), 12)
    assert plan.document.tolist() == [2, 3, 3]
    assert set(whole_windows(corpus_of([12, 24]), 12, limit=1).document) == {0}


@pytest.mark.parametrize(
    ("context", "trained", "ends"),
    [(256, 256, (232, 256)), (1000, 256, (232, 256)), (100, 256, (91, 100)), (100, None, (91, 100)), (5, 5, (5, 5))],
)
def test_last_tenth_of_the_training_context(context, trained, ends):
    assert last_tenth(context, trained) == ends


def test_the_sums_of_a_running_curve_take_little_memory_beside_its_losses(work, monkeypatch):
    lengths = np.array([2_000_000, 500_000])
    nats = np.random.default_rng(0).exponential(3, 100 * 25_000).astype(np.float32)
    monkeypatch.setattr(passes, "score_windows", lambda *_, **__: nats)
    tracemalloc.start()
    sums = run(None, SimpleNamespace(lengths=lengths, end_of_text=0), work, context=100)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < nats.nbytes / 2
    exact = nats.reshape(-1, 100).astype(np.float64)
    np.testing.assert_array_equal(sums.loss, exact.mean(0))
    np.testing.assert_allclose(sums.bin_nats.sum(1), [exact[:20_000].sum(), exact[20_000:].sum()])


def test_a_loss_that_is_not_finite(models, corpus_of, work, monkeypatch):
    corpus, real = corpus_of(LENGTHS), scoring.token_losses

    def damaged(model, input_ids, targets):
        losses = real(model, input_ids, targets)
        losses[1, 3] = float("nan")  # the second window of the first document
        return losses

    monkeypatch.setattr(scoring, "token_losses", damaged)
    with pytest.raises(CheckpointError, match="not finite at token 15 of document 0"):
        run(models["gpt2"], corpus, work)
    assert not work.path.exists()
