"""The held-out documents of a trial: near-copies of training text, documents that weigh much, and who uses which."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_line import words_of
from contextwise.base.errors import DataError
from contextwise.base.runs import RunFolder
from contextwise.data import Corpus, near_copies, prepare_corpus
from contextwise.data.near_copies import COPIED, containment, copied_documents, copied_length, split_overlap
from contextwise.evaluation.measures.loss import Evaluation
from contextwise.experiments.trial import Trial, TrialSettings
from contextwise.experiments.trial import documents as documents_module
from contextwise.experiments.trial.arms import total_nats
from contextwise.reports.trial import plan_tables, trial_page, trial_tables
from small import WORDS, write_rows
from small_trials import RECIPE, small_trial

COPIES = {3: 7, 8: 2}
"""Held-out document -> the training document that it copies but for a word."""
LONG = 5
"""The held-out document that holds more text than the others."""


pytestmark = pytest.mark.usefixtures("untimed")


def text_of(number: int, words: int) -> list[str]:
    draw = random.Random(number)
    return [f"{draw.choice(WORDS)}{draw.randrange(50)}" for _ in range(words)]


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of 20 training documents and 12 held-out ones, of which two are near-copies and one is long."""
    folder = tmp_path_factory.mktemp("copies")
    trained = [text_of(number, 60) for number in range(20)]
    held_out = [text_of(100 + number, 400 if number == LONG else 40) for number in range(12)]
    for number, original in COPIES.items():
        held_out[number] = [*trained[original][:30], "changed", *trained[original][31:]]
    sources = []
    for split, texts in (("train", trained), ("validation", held_out)):
        rows = [{"text": " ".join(words)} for words in texts]
        sources.append(f"{split}={write_rows(folder / f'{split}.jsonl', rows)}")
    prepare_corpus(sources, "bytes", folder / "corpus")
    return folder / "corpus"


def settings(corpus: Path, folder: Path, **changes: Any) -> TrialSettings:
    return small_trial(corpus, folder, **{"tokens": 128, "seeds": 2} | changes)


@pytest.fixture(scope="module")
def result(copies: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return Trial(settings(copies, tmp_path_factory.mktemp("trial") / "t")).run()


def test_near_copies_decide_nothing(result, copies):
    run = next((result.path / "runs").glob("gpt2-s0-*"))
    nats, tokens = total_nats(Evaluation.open(next(run.glob("evaluation/evaluate-*"))))
    others = np.setdiff1d(np.arange(12), list(COPIES))
    assert len(nats) == 12  # all are scored
    assert result.losses["gpt2"][128][0] == pytest.approx(nats[others].sum() / tokens[others].sum())
    assert (result.held_out["documents"], result.held_out["tokens"]) == (10, tokens[others].sum())
    held_out = json.loads((result.path / "result.json").read_text())["held_out"]
    assert held_out["decided"] == others.tolist()
    assert set(held_out["near_copies"]) == {"3", "8"}
    assert all(0.5 <= share < 1 for share in held_out["near_copies"].values())


def test_near_copies_and_heavy_documents_are_named_in_every_output(result, copies, tmp_path):
    length = copied_length(Corpus.open(copies, split="train"))
    assert length == 40  # bytes: 13 of them are two words
    found = f"2 of 12 held-out documents share half or more of their {length}-grams of tokens with the training text"
    heavy = "1 of the 10 documents that decide holds half of the tokens."
    plan = Trial(settings(copies, tmp_path / "new")).plan()
    html = trial_page(result, "arms: {}", "").render()
    for shown in (words_of(trial_tables(result)), words_of(plan_tables(plan, "flops")), html, " ".join(result.notes)):
        assert found in shown and "They are left out." in shown and heavy in shown


def test_the_documents_of_the_search_are_counted(copies, tmp_path):
    plan = Trial(settings(copies, tmp_path / "new", rates={"factors": [1.0, 2.0]})).plan()
    assert "left out; of the rest, the search over rates reads 2, and the other 8 decide." in words_of(
        plan_tables(plan, "flops")
    )


def test_the_training_text_is_compared_once(result, copies, monkeypatch):
    monkeypatch.setattr(documents_module, "copied_documents", None)
    assert Trial(settings(copies, result.path)).arms.documents.to_dict(result.held_out["tokens"]) == result.held_out
    with pytest.raises(TypeError):  # other documents are compared anew
        Trial(settings(copies, result.path, limit=8))


def test_text_that_no_run_reads_is_not_compared(copies, tmp_path):
    first = int(Corpus.open(copies, split="train").lengths[:5].sum())
    recipe = {**RECIPE, "data": {"context": 16, "tokens": first}}
    assert set(Trial(settings(copies, tmp_path / "t", recipe=recipe)).arms.documents.near_copies) == {
        8
    }  # a copy of document 2


def test_too_few_documents_beside_near_copies_are_refused(copies, tmp_path):
    with pytest.raises(
        DataError, match=r"7 held-out documents \(limit\), 1 of them near-copies .* 1 of them for the rates"
    ):
        Trial(settings(copies, tmp_path / "t", limit=7, rates="search"))


def test_two_words_of_bytes_are_no_copy(corpus_folder, monkeypatch):
    """Made-up sentences of twenty words share most of their 13-grams of bytes, and no longer part."""
    trained, held_out = (Corpus.open(corpus_folder, split=split) for split in ("train", "validation"))
    texts = [held_out.document(i) for i in range(len(held_out))]
    assert copied_documents(trained, held_out, len(texts)) == {} and split_overlap(trained, held_out).copied == 0
    monkeypatch.setattr(near_copies, "COPIED_BYTES", 0)
    assert (containment(trained, texts) >= COPIED).sum() > len(texts) / 2


@pytest.mark.long
def test_search_decision_and_training_share_no_document(copies, tmp_path, monkeypatch):
    """The documents whose losses a search or a decision sums, by their content."""
    given = settings(copies, tmp_path / "t", rates={"factors": [1.0, 2.0], "widenings": 0})
    trial = Trial(given)
    trial.run()
    held_out = Corpus.open(copies, split="validation")
    texts = [bytes(held_out.document(i)) for i in range(len(held_out))]
    used = trial.arms.documents
    searched, decided = {texts[i] for i in used.searched}, {texts[i] for i in used.decided}
    assert len(searched) == 2 and len(decided) == 8 and not searched & decided
    assert not (searched | decided) & {texts[i] for i in COPIES}
    trained = Corpus.open(copies, split="train")
    assert not (searched | decided) & {bytes(trained.document(i)) for i in range(len(trained))}
    rows = {row.factor: row.loss for row in trial.rates if row.arm == "gpt2"}
    for run in (tmp_path / "t/runs").glob("rates-gpt2-*"):
        folder = next(run.glob("evaluation/evaluate-*"))
        nats, tokens = total_nats(Evaluation.open(folder))
        rate = RunFolder(run).recipe()["training"]["learning_rate"]
        loss = nats[used.searched].sum() / tokens[used.searched].sum()
        assert rows[round(rate / 3e-3, 6)] == pytest.approx(loss)
    # What a run itself validates on chooses nothing: no run stops early, and the last weights are scored.
    assert all(RunFolder(run).recipe()["training"]["patience"] is None for run in (tmp_path / "t/runs").iterdir())
