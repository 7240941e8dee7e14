"""``contextwise measure longbench``, as it is typed."""

import json

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from longtasks_files import leval_line, longbench_line, needs_longbench
from small import save_model, write_rows

pytestmark = needs_longbench


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A model of bytes with 256 rotary positions and random weights, and files of questions."""
    folder = tmp_path_factory.mktemp("longbench")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=257, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=256, initializer_range=0.5, eos_token_id=256, bos_token_id=None,
    )  # fmt: skip
    save_model(folder / "models" / "tiny", LlamaForCausalLM(config))
    write_rows(folder / "hotpotqa.jsonl", [longbench_line(i) for i in range(6)])
    write_rows(folder / "leval_tpo.jsonl", [leval_line(i) for i in range(2)])
    write_rows(folder / "wrong.jsonl", [{"text": "a", "label": 0}])
    return folder


def test_questions_are_asked_and_reported(contextwise, workplace):
    command = "measure longbench models/tiny hotpotqa.jsonl leval_tpo.jsonl --visible 64,128,all --rope dynamic"
    command += " --lengths 0-5000 --new-tokens 4"
    words = contextwise.words(command)
    (out,) = (workplace / "evaluation" / "tiny").glob("longbench-hotpotqa-and-1-more-*")
    summary = json.loads((out / "summary.json").read_text())
    rows = [json.loads(line) for line in (out / "answers.jsonl").read_text().splitlines()]
    assert len(rows) == 5 + 4 and [row["answered"][0]["seen"] for row in rows] == [64] * 9
    for wanted in (
        "models/tiny: 9 questions on 7 documents. Visible are the first and the last tokens of a prompt",
        f"Trained with 256 positions; rope dynamic, factor {summary['rope_factor']:.3g}.",
        "hotpotqa qa_f1 5",
        "tpo exam 4",
        "Note: 1 of 10 questions were left out for their text's length.",
        f"written to evaluation/tiny/{out.name}/",
    ):
        assert wanted in words
    for row in summary["overall"]["scores"]:
        assert f"{row['visible']:,} {100 * row['score']['value']:.2f} [" in words
    # Asked again, in JSON, it is the same measurement: nothing is answered a second time.
    assert json.loads(contextwise(f"{command} --json")[1]) == summary


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("models/none hotpotqa.jsonl", "there is no run and no model at models/none"),
        ("wrong.jsonl", "wrong.jsonl:1: 'context' is missing, 'input' is missing, 'answers' is missing, 'dataset'"),
        ("none.jsonl", "files is none.jsonl, which cannot be read: No such file"),
        ("hotpotqa.jsonl --visible 512", "its answer at --visible 512; give --visible 224 at most, or --rope dynamic"),
        ("hotpotqa.jsonl --visible 512 --rope ntk", "rope is 'ntk', but"),
        ("hotpotqa.jsonl --lengths 9000-", "no text has a length from 9,000 to below any words"),
    ],
)  # fmt: skip
def test_bad_input_is_refused(contextwise, arguments, message):
    model = "" if arguments.startswith("models/") else "models/tiny "
    contextwise.refused(f"measure longbench {model}{arguments}", message)
