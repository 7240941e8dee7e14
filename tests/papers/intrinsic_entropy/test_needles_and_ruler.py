"""Two needles and RULER curves: costs and optima worked by hand, and both measures in miniature."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from contextwise.base.config import validate
from contextwise.base.errors import ConfigError
from contextwise.data import prepare_corpus
from contextwise.models import load_model
from contextwise.models.loading import load_tokenizer
from contextwise_evals.answering.prompts import Encoder
from contextwise_evals.ruler.results import task_results
from contextwise_papers.claims import share_error
from contextwise_papers.intrinsic_entropy.density import kde_entropy, leading_directions
from contextwise_papers.intrinsic_entropy.figures_5_9_long_texts import (
    GUESS,
    NeedleCurves,
    RulerCurves,
    entropy_claims,
    inner_optimum,
    needle_claims,
    needle_costs,
    needle_losses,
    optimum_claims,
)
from contextwise_papers.intrinsic_entropy.ruler_features import RulerFeatures
from shipped import an_item
from small import write_documents

RECIPE = {
    "data": {"context": 1024},
    "model": {"family": "llama", "layers": 1, "width": 16, "heads": 2},
    "training": {"steps": 2, "tokens_per_step": 1024, "learning_rate": 1e-3, "evaluation_tokens": 1024},
}


def needles(*nats):
    """Texts of 100 tokens with needles that reach 80 and 30 tokens back; nats with 0, 10, 50 and 90 tokens masked."""
    examples = [
        {"text_tokens": 100, "needles": [[75, 80], [25, 30]], "answer_tokens": 2, "nats": list(own)} for own in nats
    ]
    return {"rows": [{"masked": n} for n in (0, 10, 50, 90)], "examples": examples}


def test_the_cost_of_each_needle_is_per_answer_and_over_the_steps_between():
    summary = needles((2.0, 4.0, 9.0, 10.0))
    assert needle_losses(summary).tolist() == [[3.0, 9.0, 10.0]]
    first, second, _ = needle_costs(needle_losses(summary))
    assert (first.value, second.value) == (6.0, 1.0)
    assert first.low is None
    losses = needle_losses(needles((2.0, 4.0, 9.0, 10.0), (2.0, 4.0, 11.0, 10.0)))
    first, second, _ = needle_costs(losses)
    half = 12.706204736 * 1.0  # Student's t with one degree of freedom; the standard error of 6 and 8
    assert (first.low, first.high) == pytest.approx((7.0 - half, 7.0 + half))
    assert second.value == pytest.approx(0.0)


def test_a_text_that_lacks_a_state_is_left_out():
    summary = needles((2.0, 4.0, 9.0, 10.0))
    summary["rows"] = summary["rows"][:3]
    summary["examples"][0]["nats"] = [2.0, 4.0, 9.0]
    assert needle_losses(summary).shape == (0, 3)


def test_a_model_that_does_not_answer_tells_nothing_of_needles():
    dull = needles((20.0, 20.0, 24.0, 26.0), (20.0, 20.0, 25.0, 26.0))
    assert [claim.holds for claim in needle_claims(dull)] == [None, None]
    assert "does not answer: 20.00 nats with both in view, and a guess has 1.84" in needle_claims(dull)[0].evidence
    bright = needles((1.0, 1.0, 6.0, 6.5), (1.2, 1.0, 6.0, 6.8))
    assert [claim.holds for claim in needle_claims(bright)] == [True, True]
    assert [claim.holds for claim in needle_claims({**bright, "examples": []})] == [None, None]


def test_an_answer_of_two_tokens_is_compared_whole_with_a_guess():
    """It passed at half of its nats, and at those of a guess among seven equally likely answers."""
    draws = [first + second for first in range(1, 5) for second in range(1, 5)]
    shares = [draws.count(answer) / 16 for answer in range(2, 9)]
    assert GUESS == pytest.approx(-sum(p * np.log(p) for p in shares)) == pytest.approx(1.841, abs=5e-4)
    for mean in (3.8, 1.9, 1.8):  # the last is below the guess, but its interval reaches beyond it
        worse = needles((mean, mean + 0.1, 9.0, 10.0), (mean, mean - 0.1, 9.0, 10.1))
        assert [claim.holds for claim in needle_claims(worse)] == [None, None]


def curve(*accuracies, questions=200, seed=0):
    """A task's results where each question is answered with these probabilities at 1, 2, 4, ... visible tokens."""
    scores_QV = np.random.default_rng(seed).random((questions, len(accuracies))) < accuracies
    question = SimpleNamespace(answers=["7"], ending="")
    asked = [SimpleNamespace(question=question, body=[0], needles=[], in_view=lambda context: 1.0)]
    visible = [2**i for i in range(len(accuracies))]
    answers = {("vt", c, q): "7" if scores_QV[q, i] else "" for i, c in enumerate(visible) for q in range(questions)}
    task = SimpleNamespace(name="vt", title="", match="all", new_tokens=1)
    return task_results(task, asked * questions, visible, answers)[0]


def test_an_optimum_inside_is_decided_by_differences_paired_by_question():
    assert inner_optimum(curve(0.1, 0.9, 0.3)).holds is True
    assert inner_optimum(curve(0.1, 0.3, 0.9)).holds is False
    assert inner_optimum(curve(0.1, 0.6, 0.6)).holds is None
    assert inner_optimum({"accuracies": [{}, {}], "optimum": None}).holds is None


@pytest.mark.long
def test_a_plateau_is_no_optimum_inside():
    wrong = 0
    for seed in range(60):
        plateau = {(64, 0.0): {"vt": curve(0.2, 0.4, 0.6, 0.6, 0.6, 0.6, questions=100, seed=seed)}}
        wrong += share_error(optimum_claims("vt", plateau))[0].holds is True
    assert wrong <= 7  # more than 7 of 60 at a rate of 5%: once in 170 times


def test_the_best_context_shrinks_as_gamma_grows_where_it_is_sure():
    def claims(*curves):
        return optimum_claims("vt", {(64, float(g)): {"vt": of_gamma} for g, of_gamma in enumerate(curves)})

    near, far, unsure = curve(0.9, 0.4, 0.3), curve(0.1, 0.9, 0.4), curve(0.6, 0.6, 0.1)
    assert [claim.holds for claim in claims(far, near)] == [True, True]
    assert [claim.holds for claim in claims(near, far)] == [True, False]
    assert [claim.holds for claim in claims(far, unsure)] == [True, None]


def test_what_the_document_says_of_the_longest_context_decides():
    results = {(64, 0.0): {"vt": curve(0.9, 0.1, 0.0)}, (128, 0.0): {"vt": curve(0.0, 0.1, 0.9)}}
    assert optimum_claims("vt", results)[0].holds is False
    assert optimum_claims("vt", results, at_longest=True)[0].holds is True


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("needles")
    return prepare_corpus(write_documents(folder / "text.jsonl", 60), "bytes", folder / "corpus", validation=0.3).path


def test_needles_in_miniature(corpus, tmp_path):
    values = {"corpus": str(corpus), "recipe": RECIPE, "length": 320, "samples": 2}
    measure = validate(NeedleCurves, values, "the settings")
    outcome = measure.measure(an_item(), tmp_path / "out")
    assert len(outcome.tables[0].rows) == 17
    assert outcome.tables[0].rows[0][3] == 1 and outcome.tables[0].rows[-1][3] == 0
    assert len(outcome.claims) == 2
    assert measure.tokens_read() == 2 * 320 * 17 // 2
    again = measure.measure(an_item(), tmp_path / "out")
    assert again.figures == outcome.figures


@pytest.mark.long
def test_ruler_in_miniature(corpus, tmp_path):
    values = {"corpus": str(corpus), "recipe": RECIPE, "tasks": ["vt"], "gammas": [0, 2], "lengths": [560],
              "samples": 2, "example": False}  # fmt: skip
    measure = validate(RulerCurves, values, "the settings")
    outcome = measure.measure(an_item(), tmp_path / "out")
    (table,) = outcome.tables
    assert len(table.rows) == 2 * 6
    assert [claim.holds for claim in outcome.claims] == [None, None]
    assert len(list((tmp_path / "out/runs").glob("*/evaluation/ruler-*"))) == 2


def accuracies(*values, low=0.3):
    return [{"visible": 2**i, "accuracy": {"value": v, "low": low, "high": 1.0}} for i, v in enumerate(values)]


def test_entropy_is_held_against_accuracy_where_the_model_answers():
    rising = dict(zip((1, 2, 4, 8, 16, 32), (1.0, 2.1, 2.9, 4.0, 5.1, 6.0), strict=True))
    near, far = accuracies(0.3, 0.4, 0.5, 0.6, 0.7, 0.8), accuracies(0.8, 0.7, 0.6, 0.5, 0.4, 0.3)
    grows, follows = entropy_claims("vt", 32, rising, {0.0: near, 2.0: near})
    assert (grows.holds, follows.holds) == (True, True)
    correlation = np.corrcoef(list(rising.values()), [0.3, 0.4, 0.5, 0.6, 0.7, 0.8])[0, 1]
    low, high = np.tanh(np.arctanh(correlation) + np.array([-1.959964, 1.959964]) / 3**0.5)  # Fisher's, six contexts
    assert f"γ = 2: {correlation:.3f} [{low:.3f}, {high:.3f}]" in follows.evidence
    assert [claim.holds for claim in entropy_claims("vt", 32, rising, {0.0: near, 2.0: far})] == [True, False]
    falling = dict(zip(rising, reversed(rising.values()), strict=True))
    assert [claim.holds for claim in entropy_claims("vt", 32, falling, {0.0: near})] == [False, False]


def test_a_model_that_answers_nothing_tells_nothing_of_entropy():
    rising = dict(zip((1, 2, 4, 8), (1.0, 2.0, 3.0, 4.0), strict=True))
    dull = accuracies(0.0, 0.01, 0.02, 0.03, low=0.001)
    claims = entropy_claims("vt", 8, rising, {0.0: dull})
    assert [claim.holds for claim in claims] == [None, None]
    assert all("accuracy is at chance" in claim.evidence for claim in claims)
    same = entropy_claims("vt", 8, rising, {0.0: accuracies(0.5, 0.5, 0.5, 0.5)})[1]
    assert same.holds is None and "nan" in same.evidence


@pytest.mark.long
def test_entropy_of_ruler_texts_in_miniature(corpus, tmp_path):
    values = {"corpus": str(corpus), "recipe": RECIPE, "tasks": ["vt"], "lengths": [560], "samples": 2,
              "example": False, "entropy_samples": 50}  # fmt: skip
    measure = validate(RulerCurves, values, "the settings")
    outcome = measure.measure(an_item(), tmp_path / "out")
    accuracy, entropy = outcome.tables
    assert [row[0] for row in entropy.rows] == [row[1] for row in accuracy.rows] and "over 5 leading" in entropy.title
    assert [claim.holds for claim in outcome.claims] == [None, None, None]
    assert measure.tokens_read() == (2 + 50) * (35 + 70 + 140 + 280 + 420 + 560)
    # The same entropy by hand, from features of the whole model at the last token of each prompt.
    run = measure.subject(tmp_path / "out")
    settings = RulerFeatures(tasks=["vt"], samples=50, length=560, example=False).resolved(None, None)
    model, encoder = load_model(run), Encoder(load_tokenizer(run))
    tasks, _ = settings.make_tasks(encoder)
    rows = []
    for prompt in settings.encode(tasks, encoder)["vt"]:
        with torch.no_grad():
            states = model(torch.tensor([prompt.prompt(35)]), output_hidden_states=True).hidden_states
        rows.append(states[-1][0, -1])
    by_hand = kde_entropy(leading_directions(torch.stack(rows), 5))
    assert outcome.figures["entropy-vt-560"][35] == pytest.approx(by_hand, rel=1e-3)
    again = measure.measure(an_item(), tmp_path / "out")
    assert again.figures == outcome.figures


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tasks": ["qa_2"]}, "tasks.0 is 'qa_2'"),
        ({"tasks": ["qa_1"]}, "needs questions; give a file in SQuAD's form"),
        (
            {"tasks": ["vt"], "entropy_samples": 10},
            "entropy_samples is 10, but a kernel density takes 50 texts or more",
        ),
    ],
)
def test_a_wrong_task_gets_one_sentence(changes, words):
    with pytest.raises(ConfigError, match=words):
        validate(RulerCurves, {"recipe": RECIPE, "lengths": [64], **changes}, "the settings")


@pytest.mark.parametrize(
    ("measure", "changes", "words"),
    [
        (NeedleCurves, {"length": 10**9}, "the settings of needles has a problem: length is 1000000000"),
        (RulerCurves, {"tasks": ["vt"], "lengths": [0]}, "the settings of ruler has a problem: length is 0"),
    ],
)
def test_values_that_the_measure_refuses_get_one_sentence_before_any_training(measure, changes, words, tmp_path):
    with pytest.raises(ConfigError, match=words):
        validate(measure, {"recipe": RECIPE, **changes}, "the settings").measure(an_item(), tmp_path)
    assert not list(tmp_path.iterdir())
