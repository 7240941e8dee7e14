"""Contrastive pairs: worked out by hand, neighbours by construction, a loss by hand, its gradient, and a run."""

import json

import numpy as np
import pytest
import torch
from transformers import AutoModel

from contextwise.base.errors import ConfigError, DataError
from contextwise.models.loading import load_tokenizer
from contextwise.objectives import Cut, build_objective
from contextwise.training import load_recipe, train
from contextwise.training.export import model_card
from contextwise.training.inputs import TrainingInputs
from contextwise.training.recipe import validation_loss
from contextwise_papers.objectives.embedding import Embedder, load_text_model
from contextwise_papers.objectives.specs import contrastive_losses
from objective_corpora import vocabulary
from small import Memory, recipe_values

MIXED = {"name": "mixture", "parts": [{"weight": 0.5, "objective": name} for name in ("masked", "contrastive")]}
DOCUMENTS = [list(range(10, 30)), list(range(40, 43)), list(range(50, 60))]


def made(letters, documents=DOCUMENTS, context=8, **settings):
    objective = build_objective("contrastive", least=2, **settings)
    corpus = Memory(documents, letters.end_of_text)
    return objective.stream(corpus, Cut(context), 0, vocabulary(objective, letters), 64)


def test_a_worked_example(letters):
    """Room for 6 tokens: 20 are two chunks of 10, 3 are too few for two segments of 2, and 10 are one chunk."""
    stream = made(letters)
    assert stream.examples.chunks.tolist() == [[0, 0, 10], [0, 10, 20], [2, 0, 10]]
    cls, sep = stream.examples.cls, stream.examples.sep
    for epoch in range(20):
        for pair, (document, first, _) in enumerate(stream.examples.chunks.tolist()):
            a, b = (stream.examples.arrays(epoch, 2 * pair + side) for side in (0, 1))
            words = []
            for each in (a, b):
                ids = each["input_ids"][each["attention_mask"] == 1].tolist()
                assert (ids[0], ids[-1], each["document"], len(each["input_ids"])) == (cls, sep, document, 8)
                words.append(ids[1:-1])
            assert words[0][-1] + 1 == words[1][0]  # neighbours
            chunk = DOCUMENTS[document][first : first + 10]
            cut = chunk.index(words[1][0])
            assert words == [chunk[max(0, cut - 6) : cut], chunk[cut : cut + 6]] and 2 <= cut <= 8
            assert (a["counted"], b["counted"]) == (1, 0)


def test_both_segments_of_a_pair_follow_each_other_once_an_epoch(letters):
    stream = made(letters)
    rows = [int(stream[i]["window"]) for i in range(12)]
    assert all(a % 2 == 0 and b == a + 1 for a, b in zip(rows[::2], rows[1::2], strict=True))
    assert sorted(rows[:6]) == sorted(rows[6:]) == list(range(6))


def test_one_document_is_refused(letters):
    with pytest.raises(DataError, match="needs two documents of at least 4 tokens, but the split .* has 1"):
        made(letters, DOCUMENTS[:2])
    with pytest.raises(ConfigError, match="data.context is 5, but .* needs at least 6"):
        made(letters, context=5)


def losses(vectors, documents, temperature=0.5):
    """Each row is one state."""
    states = torch.as_tensor(vectors)[:, None]
    rows = len(states)
    return contrastive_losses(states, torch.ones(rows, 1), torch.tensor(documents), torch.full((rows,), temperature))


def test_the_loss_by_hand():
    """Cosines of A1 and A2 with B1 and B2 are (1, 0) and (0, 1), over a temperature of 0.5."""
    rows = [[2.0, 0.0], [1.0, 0.0], [0.0, 3.0], [0.0, 1.0]]
    result = losses(rows, [0, 0, 1, 1])
    assert result.counts.tolist() == [2]
    np.testing.assert_allclose(result.minimised().item(), np.log(1 + np.exp(-2)), rtol=1e-6)
    assert losses(rows, [0, 0, 0, 0]).minimised().item() == 0  # of one document: no negatives
    assert losses(rows[:3], [0, 0, 1]).counts.tolist() == [1]  # the row without a partner is ignored


def test_padding_has_no_part_in_a_vector():
    states = torch.tensor([[[1.0, 0.0], [3.0, 0.0], [5.0, 9.0]]] * 2 + [[[0.0, 1.0], [7.0, 7.0], [8.0, 0.0]]] * 2)
    mask = torch.tensor([[1, 1, 0]] * 2 + [[1, 0, 0]] * 2)
    result = contrastive_losses(states, mask, torch.tensor([0, 0, 1, 1]), torch.full((4,), 0.5))
    np.testing.assert_allclose(result.minimised().item(), np.log(1 + np.exp(-2)), rtol=1e-6)


def test_the_gradient():
    torch.manual_seed(0)
    states, documents = torch.randn(6, 3, 4, dtype=torch.double, requires_grad=True), torch.tensor([0, 0, 1, 1, 0, 0])

    def loss(x):
        vectors = torch.nn.functional.normalize(x.mean(1), dim=-1)
        logits = vectors[::2] @ vectors[1::2].T / 0.5
        logits[0, 2] = logits[2, 0] = -torch.inf
        own = torch.arange(3)
        both = [torch.nn.functional.cross_entropy(each, own) for each in (logits, logits.T)]
        return (both[0] + both[1]) / 2

    expected = torch.autograd.grad(loss(states), states)[0]
    assert torch.autograd.gradcheck(loss, states)
    result = contrastive_losses(states, torch.ones(6, 3), documents, torch.full((6,), 0.5)).minimised()
    torch.testing.assert_close(torch.autograd.grad(result, states)[0], expected, atol=1e-6, rtol=1e-5)


def run_values(corpus_folder, out, **training):
    values = recipe_values(corpus_folder, out, save_every=1000, **training)
    values["objective"] = {"name": "contrastive", "least": 4}
    values["model"] = {"family": "bert", "layers": 1, "width": 16, "heads": 2}
    return values


@pytest.mark.parametrize(("tokens", "pairs"), [(256, 4), (512, 8), (640, 8), (1024, 16)])
def test_validation_is_of_whole_steps(corpus_folder, tmp_path, tokens, pairs):
    """A last batch of fewer pairs has fewer negatives, a lone pair none and a loss of zero. A step has eight pairs."""
    values = run_values(corpus_folder, tmp_path / "run", steps=2, tokens_per_step=512, evaluation_tokens=tokens)
    assert len(TrainingInputs.open(load_recipe(values)).validation["loss"]) == 2 * pairs


@pytest.mark.long
def test_a_run_lowers_the_loss(corpus_folder, tmp_path):
    run = train(load_recipe(run_values(corpus_folder, tmp_path / "run", steps=60, tokens_per_step=512)))
    rows = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    first, *_, last = (row["loss"] for row in rows if row["kind"] == "train")
    assert last < first - 0.05
    assert rows[-1]["target_tokens"] == 60 * 8  # pairs
    card = model_card(run, standalone=False)
    assert "pipeline_tag: feature-extraction" in card and "model = AutoModel.from_pretrained" in card
    assert "| embedding | mean of the last states" in card and "contextwise model embed MODEL" in card
    assert AutoModel.from_pretrained(run.model).config.hidden_size == 16
    trained = load_text_model(run.path)
    assert Embedder(trained, load_tokenizer(run.path)).pooling == "mean"  # as in training


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"training.micro_batch_tokens": 64}, "which cannot be divided into micro-batches; train in one process"),
        ({"training.tokens_per_step": 96}, "needs two pairs or more in each step; make it a multiple of 64"),
        ({"objective": MIXED}, "which cannot hold another objective or corpus"),
        ({"training.evaluation_tokens": 96}, "evaluation_tokens is 96, which is less than two pairs .*at least 128"),
        ({"objective.temperature": 1e-30}, "temperature is 1e-30, but must be at least 0.001"),
    ],
)
def test_what_would_change_the_negatives_or_not_be_measured_is_refused(corpus_folder, tmp_path, change, message):
    values = run_values(corpus_folder, tmp_path / "run")
    with pytest.raises(ConfigError, match=message):
        train(load_recipe(values, change))
    assert load_recipe(values, {"training.evaluation_tokens": 0}).training.evaluation_tokens == 0  # no validation


def test_cosines_are_exact_in_low_precision():
    """Vectors with a large part in common have cosines near 1, which bfloat16 rounds to 1."""
    torch.manual_seed(0)
    states, ones = 30 + torch.randn(16, 1, 8), torch.ones(16, 1)
    about = torch.arange(16) // 2, torch.full((16,), 0.05)
    exact = contrastive_losses(states, ones, *about).minimised()
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(contrastive_losses(states, ones, *about).minimised(), exact)


def test_an_id_beyond_the_vocabulary_is_one_sentence(letters):
    examples = made(letters).examples
    examples.vocab_size = 20
    with pytest.raises(DataError, match="holds the token id 2., but the model's vocabulary has 20 tokens"):
        for index in range(examples.count(0)):
            examples.arrays(0, index)


def test_the_loss_of_a_run_is_one_of_pairs(corpus_folder, tmp_path):
    recipe = load_recipe(run_values(corpus_folder, tmp_path / "run"))
    assert validation_loss(recipe, {"validation_loss": 0.5}) == "0.5000 nats per pair"
