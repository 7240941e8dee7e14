"""``contextwise measure forgetting``, as it is typed."""

import json

import pytest

from contextwise.data import prepare_corpus
from small import small_gpt2, write_rows, write_run


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """Two corpora and three runs in one folder."""
    folder = tmp_path_factory.mktemp("work")
    sentences = {"books": "It was a calm sea, and chapter {} began.", "code": "x{0} = [{0}, 1];"}
    for name, sentence in sentences.items():
        write_rows(folder / f"{name}.jsonl", ({"text": sentence.format(i) * (1 + i % 3)} for i in range(40)))
        corpus = prepare_corpus(folder / f"{name}.jsonl", "bytes", folder / name, validation=0.4)
    for seed, name in enumerate(("base", "naive", "replay")):
        data = {"context": 32 if name == "naive" else 40}
        if name == "replay":
            data["replay"] = {"corpus": "books", "share": 0.1}
        model = {} if name == "base" else {"pretrained": "runs/base"}
        recipe = {"name": name, "seed": 0, "data": data, "model": model}
        run = write_run(folder / "runs" / name, small_gpt2(corpus.vocab_size, seed=seed), corpus.tokenizer(), recipe)
        row = {"kind": "validation", "step": 7, "tokens": 700, "seconds": 1.0, "loss": 2.5, "replay_loss": 3.5}
        write_rows(run / "metrics.jsonl", [row])
    return folder


def test_it_evaluates_what_is_missing_and_reports(contextwise, workplace):
    runs = ["runs/base", "runs/naive", "runs/replay"]
    words = contextwise.words("measure forgetting --old books --new code", *runs)
    losses = {}
    for run in runs:
        for corpus in ("books", "code"):
            (file,) = (workplace / run / "evaluation").glob(f"evaluate-{corpus}-validation-*/summary.json")
            summary = json.loads(file.read_text())
            # The same for all
            assert (summary["settings"]["context"], summary["settings"]["stride"]) == (32, 16)
            losses[run, corpus] = summary["loss"]["value"]
    report = json.loads(contextwise("measure forgetting --old books --new code --json", *runs)[1])
    assert report["before"] == "base"
    for change, run in zip(report["changes"], runs[1:], strict=True):
        for name, corpus in (("forgetting", "books"), ("learning", "code")):
            assert change[name]["value"] == pytest.approx(losses[run, corpus] - losses["runs/base", corpus])
        assert change["during"] == [{"step": 7, "tokens": 700, "new": 2.5, "old": 3.5}]
    for difference in (*report["old"]["differences"], *report["new"]["differences"]):
        assert difference["verdict"] in words
    for expected in ("(after − before)", "no replay", "0.1 replayed"):
        assert expected in words


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("runs/base runs/naive --old nowhere --new code", "there is no corpus at nowhere"),
        ("runs/base runs/naive --old code --new code", "hold the same documents; name two corpora"),
        ("runs/base runs/none --old books --new code", "there is no run and no model at runs/none"),
        ("runs/base runs/naive --old books", "--new is missing"),
        ("runs/base runs/naive --old books --new code --limit 0", "--limit is 0, but must be at least 1"),
        (f"runs/base runs/naive --old books --new code --context {10**20}", f"--context is {10**20}, but"),
    ],
)
def test_bad_input_is_refused(contextwise, arguments, message):
    contextwise.refused(f"measure forgetting {arguments}", message)
