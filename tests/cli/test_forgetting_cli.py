"""``contextwise forgetting``, as it is typed."""

import json
import shutil

import pytest
import torch
import yaml
from transformers import GPT2Config, GPT2LMHeadModel

from contextwise.data import prepare_corpus


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """Two corpora and three runs (a few thousand parameters, never trained) in one folder."""
    folder = tmp_path_factory.mktemp("work")
    for name, sentence in (
        ("books", "It was a calm sea, and chapter {} began."),
        ("code", "x{0} = [{0}, 1];"),
    ):
        lines = [json.dumps({"text": sentence.format(i) * (1 + i % 3)}) + "\n" for i in range(40)]
        (folder / f"{name}.jsonl").write_text("".join(lines))
        corpus = prepare_corpus(folder / f"{name}.jsonl", "bytes", folder / name, validation=0.4)
    for seed, name in enumerate(("base", "naive", "replay")):
        run = folder / "runs" / name
        torch.manual_seed(seed)
        config = GPT2Config(vocab_size=corpus.vocab_size, n_positions=48, n_embd=16, n_layer=1, n_head=2)
        GPT2LMHeadModel(config).save_pretrained(run / "model")
        for file in (corpus.path / "tokenizer").iterdir():
            shutil.copy(file, run / "model")
        data = {"context": 32 if name == "naive" else 40}
        if name == "replay":
            data["replay"] = {"corpus": "books", "share": 0.1}
        model = {} if name == "base" else {"pretrained": "runs/base"}
        (run / "recipe.yaml").write_text(
            yaml.safe_dump({"name": name, "seed": 0, "data": data, "model": model})
        )
        row = {
            "kind": "validation",
            "step": 7,
            "tokens": 700,
            "seconds": 1.0,
            "loss": 2.5,
            "replay_loss": 3.5,
        }
        (run / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    return folder


def test_it_evaluates_what_is_missing_and_reports(contextwise, workplace):
    runs = ["runs/base", "runs/naive", "runs/replay"]
    status, output, _ = contextwise("forgetting", *runs, "--old", "books", "--new", "code", "--out", "f.json")
    assert status == 0 and max(map(len, output.splitlines())) <= 80
    losses = {}
    for run in runs:
        for corpus in ("books", "code"):
            summary = json.loads(
                next(
                    (workplace / run / "evaluation").glob(f"evaluate-{corpus}-validation-*/summary.json")
                ).read_text()
            )
            assert (summary["settings"]["context"], summary["settings"]["stride"]) == (
                32,
                16,
            )  # the same for all
            losses[run, corpus] = summary["loss"]["value"]
    report = json.loads((workplace / "f.json").read_text())
    assert report["before"] == "base"
    for change, run in zip(report["changes"], runs[1:], strict=True):
        assert change["forgetting"]["value"] == pytest.approx(
            losses[run, "books"] - losses["runs/base", "books"]
        )
        assert change["learning"]["value"] == pytest.approx(losses[run, "code"] - losses["runs/base", "code"])
        assert change["during"] == [{"step": 7, "tokens": 700, "new": 2.5, "old": 3.5}]
    words = " ".join(output.split())
    for difference in (*report["old"]["differences"], *report["new"]["differences"]):
        assert difference["verdict"] in words
    for wanted in ("(after − before)", "no replay", "0.1 replayed", "written to f.json"):
        assert wanted in words


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["runs/base", "--old", "books", "--new", "code"], "give the model before, then one"),
        (["runs/base", "runs/naive", "--old", "nowhere", "--new", "code"], "there is no corpus at nowhere"),
        (
            ["runs/base", "runs/naive", "--old", "code", "--new", "code"],
            "hold the same documents; name two corpora",
        ),
        (
            ["runs/base", "runs/none", "--old", "books", "--new", "code"],
            "there is no run and no model at runs/none",
        ),
        (["runs/base", "runs/naive", "--old", "books"], "Missing option '--new'"),
    ],
)
def test_bad_input_is_one_message_and_status_2(contextwise, arguments, message):
    status, output, errors = contextwise("forgetting", *arguments)
    assert status == 2 and message in " ".join(errors.replace("│", " ").split())
    assert output == "" and "Traceback" not in errors
