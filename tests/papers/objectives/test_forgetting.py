"""Forgetting, from evaluations that are written by hand."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import yaml

from contextwise.base.errors import ConfigError
from contextwise.evaluation.measures.loss import Evaluation
from contextwise_papers.objectives.exercise_4_continual import Forgetting, during_plots
from measured import write_evaluation
from small import write_rows

TOKENS = np.array([10, 30])
OLD = SimpleNamespace(path=Path("corpora/books"), split="validation", fingerprint="books")
NEW = SimpleNamespace(path=Path("corpora/code"), split="validation", fingerprint="code")

# Nats of the two documents of each corpus. On the old ones, 40 tokens in all:
#   before 110 / 40 = 2.75; without replay 150 / 40 = 3.75, forgetting 1; with replay 116 / 40 = 2.9, forgetting 0.15.
BEFORE = {"books": [20, 90], "code": [40, 140]}
NAIVE = {"books": [30, 120], "code": [20, 60]}
REPLAY = {"books": [22, 94], "code": [21, 63]}


def write_run(folder, name, nats, seed=0, start="base", replay=None, curve=()):
    """A run with its evaluations on both corpora; ``curve`` are (step, loss, replay_loss) of its validations."""
    for corpus in (OLD, NEW):
        documents = pa.table(
            {
                "document": pa.array([0, 1], pa.int32()),
                "document_hash": pa.array(["a", "b"]),
                "tokens": pa.array(TOKENS),
                "bytes": pa.array(4 * TOKENS),
                "words": pa.array(TOKENS),
                "nats": pa.array(np.array(nats[corpus.fingerprint], dtype=np.float64)),
            }
        )
        about = {"path": str(corpus.path), "fingerprint": corpus.fingerprint, "split": "validation"}
        about["tokenizer_hash"] = "t"
        summary = {"label": f"{corpus.path.name}-validation", "model": name, "parameters": 1000, "corpus": about}
        summary |= {"documents": 2, "tokens": 40, "context": 64, "stride": 32, "dtype": "float32"}
        path = folder / "evaluation" / summary["label"]
        write_evaluation(path, summary, documents)
    data = {"corpus": "corpora/x", "context": 64, "replay": replay and {"corpus": "corpora/books", "share": replay}}
    model = {"pretrained": start and str(folder.parent / start)}
    (folder / "recipe.yaml").write_text(yaml.safe_dump({"name": name, "seed": seed, "data": data, "model": model}))
    rows = [
        {"kind": "validation", "step": step, "tokens": 100 * step, "seconds": 1.0, "loss": loss}
        | ({} if old is None else {"replay_loss": old})
        for step, loss, old in curve
    ]
    write_rows(folder / "metrics.jsonl", rows)
    return str(folder)


HALF = 12.706205 * ((0.05**2 + (1 / 60) ** 2) / 2) ** 0.5


@pytest.fixture(autouse=True)
def evaluations_by_hand(monkeypatch):
    """The evaluations that :func:`write_run` has written, in place of new ones."""

    def evaluate_all(sources, corpus, **settings):
        return [Evaluation.open(Path(run) / "evaluation" / f"{corpus.path.name}-validation") for run in sources]

    monkeypatch.setattr("contextwise_papers.objectives.exercise_4_continual.evaluate_all", evaluate_all)


@pytest.fixture
def runs(tmp_path):
    return [
        write_run(tmp_path / "base", "base", BEFORE, start=None, curve=[(9, 2.8, None)]),
        write_run(tmp_path / "naive", "naive", NAIVE, curve=[(5, 3.0, 3.5), (10, 2.0, 3.7)]),
        write_run(tmp_path / "replay", "replay", REPLAY, replay=0.1, curve=[(5, 3.1, 3.0), (10, 2.1, 2.9)]),
    ]


def test_forgetting_and_what_replay_saves_by_hand(runs):
    report = Forgetting.of(runs, OLD, NEW)
    assert list(report.ways) == ["naive", "replay"]
    naive, replay = map(report.forgotten, report.ways)
    assert (naive.value, replay.value) == pytest.approx((1.0, 0.15))
    # On the new documents 180 / 40 before, 80 / 40 and 84 / 40 after.
    assert [report.learned(way).value for way in report.ways] == pytest.approx([-2.5, -2.4])
    # One nat a token in either document. With replay 2 / 10 in one and 4 / 30 in the other: a variance of
    # ((0.2 - 0.15)² + (4 / 30 - 0.15)²) / 2, and one degree of freedom.
    assert (naive.low, naive.high) == pytest.approx((1.0, 1.0))
    assert (replay.low, replay.high) == pytest.approx((0.15 - HALF, 0.15 + HALF))

    saved = report.forgotten("replay", "naive")
    assert saved.value == pytest.approx(0.15 - 1.0)
    assert (saved.low, saved.high) == pytest.approx((-0.85 - HALF, -0.85 + HALF))

    old, new = (plot.series for plot in during_plots(report))
    assert new["naive"] == [{"x": 500, "y": 3.0}, {"x": 1000, "y": 2.0}]
    assert old["naive"] == [{"x": 500, "y": 3.5}, {"x": 1000, "y": 3.7}]
    assert [point["y"] for point in old["replay"]] == [3.0, 2.9]


def test_seeds_count_as_one_model(tmp_path):
    other = {"books": [34, 136], "code": [20, 60]}
    runs = [
        write_run(tmp_path / "base", "base", BEFORE, start=None),
        write_run(tmp_path / "one", "naive-seed1", NAIVE, seed=1, curve=[(5, 3.0, 3.5), (10, 2.0, 3.7)]),
        write_run(tmp_path / "two", "naive-seed2", other, seed=2, curve=[(5, 3.2, None), (15, 2.0, 3.9)]),
    ]
    report = Forgetting.of(runs, OLD, NEW)
    assert list(report.ways) == ["naive"]
    # Seeds 1.0 and (170 - 110) / 40 = 1.5 after; between them lies more than between the documents.
    naive = report.forgotten("naive")
    assert naive.value == pytest.approx(1.25)
    assert naive.low < 1.0 < 1.5 < naive.high
    # The step that both validated at; the old corpus was not watched by both.
    (new,) = during_plots(report)
    assert new.series == {"naive": [{"x": 500, "y": pytest.approx(3.1)}]}


def test_two_corpora_are_needed(runs):
    with pytest.raises(ConfigError, match="hold the same documents"):
        Forgetting.of(runs, OLD, OLD)
