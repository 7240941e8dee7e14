"""The scoring pass against a computation that scores each target by itself."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contextwise.base.errors import ConfigError, DataError, Interrupted
from contextwise.evaluation.kernel import Work
from contextwise.evaluation.scoring.windows import batches, plan_windows, score_documents

CONTEXT = 12
KINDS = ["gpt2", "gpt_neox", "contextlm"]
QUICK = settings(max_examples=15)


def one_by_one(model, corpus, context, stride):
    """(document, position, visible, nats) of each target, predicted from a text of what it may see."""
    rows, texts = [], []
    for index, document in enumerate(corpus.documents):
        start_token = [] if corpus.end_of_text is None else [corpus.end_of_text]
        sequence = [*start_token, *document.tolist()]
        for target in range(1, len(sequence)):
            window = 0 if target <= context else -(-(target - context) // stride)
            seen = sequence[window * stride : target]
            visible = len(seen) - (len(start_token) if window == 0 else 0)
            rows.append((index, target - len(start_token), visible))
            texts.append((seen, sequence[target]))
    nats = np.zeros(len(rows))
    for length in {len(seen) for seen, _ in texts}:
        which = [row for row, (seen, _) in enumerate(texts) if len(seen) == length]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([texts[row][0] for row in which])).logits[:, -1]
        targets = torch.tensor([texts[row][1] for row in which])
        nats[which] = torch.nn.functional.cross_entropy(logits.float(), targets, reduction="none").numpy()
    return [*(np.array(column) for column in zip(*rows, strict=True)), nats]


@pytest.mark.parametrize("kind", KINDS)
@QUICK
@given(data=st.data())
def test_scores_equal_each_target_scored_alone(kind, models, corpus_of, data):
    context = data.draw(st.integers(1, CONTEXT), label="context")
    stride = data.draw(st.integers(1, context), label="stride")
    lengths = data.draw(st.lists(st.integers(1, 30), min_size=1, max_size=4), label="lengths")
    end_of_text = data.draw(st.sampled_from([0, None]), label="end of text")
    batch_tokens = data.draw(st.integers(1, 200), label="batch tokens")
    corpus = corpus_of([*lengths, 2], end_of_text=end_of_text)
    scores = score_documents(models[kind], corpus, context, stride, batch_tokens=batch_tokens)
    expected = one_by_one(models[kind], corpus, context, stride)
    table = scores.table()
    for column, values in zip(["document", "position", "visible"], expected[:3], strict=True):
        assert np.array_equal(table[column].to_numpy(), values), column
    np.testing.assert_allclose(table["nats"].to_numpy(), expected[3], atol=2e-5)
    preceding = table["position"].to_numpy()
    promised = np.minimum(context - stride, preceding)
    assert (table["visible"].to_numpy() >= promised).all()


@given(
    targets=st.lists(st.integers(0, 50), min_size=1, max_size=20),
    context=st.integers(1, 20),
    data=st.data(),
    batch_tokens=st.integers(1, 100),
)
def test_plans_score_each_target_once_in_batches_that_fit(targets, context, data, batch_tokens):
    stride = data.draw(st.integers(1, context))
    full_windows = data.draw(st.booleans())
    plan = plan_windows(np.array(targets), context, stride, full_windows)
    if full_windows:
        assert np.array_equal(plan.length, np.minimum(context, np.array(targets)[plan.document]))
    scored = np.zeros((len(targets), 50), dtype=int)
    for document, start, length, skip in zip(plan.document, plan.start, plan.length, plan.skip, strict=True):
        assert 0 <= skip < length <= context
        scored[document, start + skip : start + length] += 1
    assert np.array_equal(scored, np.arange(50)[None] < np.array(targets)[:, None])
    taken = list(batches(plan.length, batch_tokens))
    assert sorted(np.concatenate([*taken, np.array([], int)])) == list(range(len(plan.document)))
    assert all(len(rows) == 1 or len(rows) * plan.length[rows].max() <= batch_tokens for rows in taken)


def test_limit_counts_documents_and_progress_counts_targets(models, corpus_of):
    corpus, seen = corpus_of([4, 30, 7]), []
    scores = score_documents(models["gpt2"], corpus, 8, 4, limit=2, batch_tokens=16, on_progress=seen.append)
    assert scores.targets.tolist() == [4, 30]
    assert sum(seen) == 34 and len(seen) > 1


def test_the_training_mode_comes_back(models, corpus_of, model_of):
    model = model_of("gpt2").train()
    score_documents(model, corpus_of([3]), 8, 4)
    assert model.training


def test_scoring_stops_when_asked(models, corpus_of, stop_at):
    stop_at(2)
    with pytest.raises(Interrupted, match="scoring was stopped"):
        score_documents(models["gpt2"], corpus_of([30]), 8, 4, batch_tokens=8)


@pytest.mark.parametrize("kind", ["gpt2", "contextlm"])
@pytest.mark.parametrize("batches", [1, 3])
def test_stopped_scoring_resumes_with_the_same_scores(models, corpus_of, stop_at, tmp_path, kind, batches):
    corpus, work, options = corpus_of([30, 4, 17]), Work(tmp_path / "e", "", {}), {"batch_tokens": 16}
    whole = score_documents(models[kind], corpus, 8, 4, **options)
    stop_at(batches + 1)
    with pytest.raises(Interrupted, match=r"after \d+ of 12 windows"):
        score_documents(models[kind], corpus, 8, 4, work=work, **options)
    stop_at(0)
    seen = []
    resumed = score_documents(models[kind], corpus, 8, 4, work=work, on_progress=seen.append, **options)
    assert sum(seen) == 51 and seen[0] > 0
    for name in ("nats", "visible", "targets"):
        np.testing.assert_array_equal(getattr(resumed, name), getattr(whole, name))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context": 8, "stride": 9}, "stride is 9 tokens; it must be between 1 and the context, 8"),
        ({"context": 8, "stride": 0}, "stride is 0"),
        ({"context": 0, "stride": 1}, "context is 0"),
    ],
)
def test_options_out_of_range_are_refused(models, corpus_of, options, message):
    with pytest.raises(ConfigError, match=message):
        score_documents(models["gpt2"], corpus_of([5]), **options)


def test_nothing_to_score_is_refused(models, corpus_of):
    with pytest.raises(DataError, match="no token to score"):
        score_documents(models["gpt2"], corpus_of([1, 0], end_of_text=None), 8, 4)


@pytest.mark.parametrize("token", [99, -1])
def test_a_token_outside_the_vocabulary_is_named(models, corpus_of, token):
    corpus = corpus_of([5, 6])
    corpus.documents[1] = corpus.documents[1].astype(np.int64)
    corpus.documents[1][5] = token
    with pytest.raises(DataError, match=f"document 1 holds token id {token}, but the model's vocabulary has 23"):
        score_documents(models["gpt2"], corpus, 8, 4)
