"""Models trained on the same batches: what they differ in, and when a claim holds; a whole measurement in miniature."""

import numpy as np
import pyarrow as pa
import pytest

from contextwise.base.config import validate
from contextwise.base.errors import ConfigError
from contextwise.base.intervals import ratios
from contextwise.data import prepare_corpus
from contextwise_papers.claims import Claim
from contextwise_papers.item import measure_at
from contextwise_papers.models import TrainedModels, difference_of_leads
from shipped import ALL_ITEMS, an_item
from small import write_documents

SHIPPED = {
    name: item
    for name, item in ALL_ITEMS.items()
    if item.measure in ("trained_models", "text_perplexity", "perplexity_and_accuracy", "training_and_generation_cost")
}
PREDICTOR = ["model.context_predictor.chunk_size=4", "model.context_predictor.predictor_layers=1"]


def settings(**changes):
    training = {
        "steps": 8, "tokens_per_step": 64, "learning_rate": 1e-2, "evaluate_every": 4, "evaluation_tokens": 128,
    }  # fmt: skip
    values = {
        "recipe": {
            "name": "small",
            "data": {"context": 16},
            "model": {"layers": 1, "width": 16, "heads": 2},
            "training": training,
        },
        "models": {"plain": [], "deeper": ["model.extra_layers=1"], "slow": ["training.learning_rate=1.0e-7"]},
        "reference": "plain",
        "seeds": [0, 1, 2],
        "claims": [
            {"text": "learning helps", "better": "plain", "than": "slow"},
            {"text": "learning harms", "better": "slow", "than": "plain"},
        ],
        "growing": [{"text": "the lead grows", "pairs": [["plain", "deeper"], ["plain", "slow"]]}],
        "marginal": [
            {"text": "little is gained", "better": "deeper", "than": "plain", "most": 1.0},
            {"text": "little is gained by learning", "better": "plain", "than": "slow", "most": 0.001},
        ],
        "curves": True,
    }
    return values | changes


def test_a_contextlm_is_trained_in_both_forms_and_claims_are_decided_for_both():
    models = {"plain": [], "context": PREDICTOR, "added": [*PREDICTOR, "model.context_predictor.injection=paper"]}
    claims = [
        {"text": "it helps", "better": "context", "than": "plain"},
        {"text": "it is the same", "better": "context", "than": "added"},
    ]
    marginal = [{"text": "it adds little", "better": "context", "than": "plain", "most": 0.02}]
    pairs = [["context", "plain"], ["context", "added"]]
    growing = [{"text": "it grows", "pairs": pairs}, {"text": "so does this", "pairs": [["added", "plain"]] * 2}]
    measure = validate(
        TrainedModels, settings(models=models, claims=claims, growing=growing, marginal=marginal), "the settings"
    )
    assert [(each.better, each.than) for each in measure.marginal] == [("context", "plain"), ("context, gate", "plain")]
    assert [each.text for each in measure.growing] == ["it grows", "it grows (gate)", "so does this"]
    assert measure.growing[1].pairs == [("context, gate", "plain"), ("context, gate", "added")]
    assert list(measure.models) == ["plain", "context", "context, gate", "added"]
    forms = {name: own[-1].rpartition("=")[2] for name, own in measure.models.items() if own}
    assert forms == {"context": "paper", "context, gate": "gate", "added": "paper"}
    assert [(claim.text, *claim.names) for claim in measure.claims] == [
        ("it helps", "context", "plain"),
        ("it helps (gate)", "context, gate", "plain"),
        ("it is the same", "context", "added"),
        ("it is the same (gate)", "context, gate", "added"),
    ]
    # As its JSON is read again, nothing more is added.
    again = validate(TrainedModels, measure.model_dump(mode="json"), "the settings")
    assert (again.models, again.claims, again.growing) == (measure.models, measure.claims, measure.growing)


class Scored:
    def __init__(self, nats, tokens):
        self.documents = pa.table({"nats": nats, "tokens": tokens})


def test_a_lead_that_grows_is_decided_by_its_paired_difference():
    """Leads of 0.05 and 0.07 that scatter by 0.1 together over documents: their intervals overlap, the difference is sure."""
    draw = np.random.default_rng(0)
    tokens = draw.integers(100, 900, 40)
    hard, luck = draw.normal(4, 1, 40), draw.normal(0, 0.1, 40)
    leads = {"a": hard - 0.05 + luck, "b": hard, "c": hard - 0.07 + luck, "d": hard}
    results = {
        name: [Scored(tokens * (loss + draw.normal(0, 1e-3, 40)), tokens) for _ in range(3)]
        for name, loss in leads.items()
    }
    change = difference_of_leads(results, ("a", "b"), ("c", "d"))
    assert change.value == pytest.approx(-0.02, abs=1e-3) and change.high < 0
    assert (change.seeds, change.documents) == (3, 40)
    lead = (leads["c"] - leads["d"]) * tokens
    assert ratios(lead, {"loss": tokens})["loss"].low < -0.05, "the leads' own intervals overlap"


OF_CONTEXTLM = {
    name: item
    for name, item in ALL_ITEMS.items()
    if name.startswith("contextlm/") and item.measure != "hyperparameters"
}


@pytest.mark.parametrize("scale", ["tiny", "gpu"])
@pytest.mark.parametrize("name", OF_CONTEXTLM)
def test_every_item_of_contextlm_has_the_documents_form_and_the_gate(name, scale):
    measure = measure_at(OF_CONTEXTLM[name], scale)
    forms = [own[-1] for own in measure.models.values() if any("context_predictor" in setting for setting in own)]
    injection = "model.context_predictor.injection"
    assert forms and forms.count(f"{injection}=paper") == forms.count(f"{injection}=gate") == len(forms) / 2


def test_models_that_are_not_there_are_named():
    with pytest.raises(ConfigError, match="reference names 'other', which is none of plain, deeper, slow"):
        validate(TrainedModels, settings(reference="other"), "the settings")


@pytest.mark.slow
def test_a_measurement_in_miniature(tmp_path):
    source = write_documents(tmp_path / "text.jsonl", 60)
    corpus = prepare_corpus(source, "bytes", tmp_path / "corpus", validation=0.3).path
    measure = validate(TrainedModels, settings(corpus=str(corpus)), "the settings")
    outcome = measure.measure(an_item(), tmp_path / "out")
    losses, differences, curves = outcome.tables
    assert [row.cells[0][0] for row in losses.lines] == ["plain", "deeper", "slow"]
    assert [row.cells[0] for row in differences.lines][:2] == ["deeper − plain", "slow − plain"]
    assert [claim.holds for claim in outcome.claims] == [True, False, True, False, True]
    assert "; the last minus the first: -" in outcome.claims[4].evidence
    # 4 and 8 steps of 64 tokens.
    assert [row[0] for row in curves.rows] == ["256", "512"]
    assert len(outcome.runs) == 9 and all(run.is_dir() for run in outcome.runs)
    by_name = {group["name"]: group for group in outcome.figures["comparison"]["groups"]}
    assert by_name["plain"]["seeds"] == [0, 1, 2]
    assert by_name["plain"]["loss"]["value"] < by_name["slow"]["loss"]["value"]


def test_fewer_than_three_seeds_decide_nothing_about_trained_models():
    for holds in (True, False):
        claim = Claim("a is better", holds, "by 1")
        assert claim.over_seeds(3) == claim
        for seeds, few in ((1, "one seed decides"), (2, "2 seeds decide")):
            reason = f"by 1; {few} nothing about trained models, which takes 3 or more"
            assert claim.over_seeds(seeds) == Claim("a is better", None, reason)
    open_ = Claim("a is better", None, "the interval contains 0")
    assert open_.over_seeds(1) == open_
