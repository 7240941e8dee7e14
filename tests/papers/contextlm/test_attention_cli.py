"""``contextwise measure attention`` as a user types it."""

import io
import json

import pytest
import torch

from contextwise import ContextLMConfig, ContextLMForCausalLM
from contextwise.data import Corpus
from small import save_model, small_gpt2

TEXT = "The model reads the context, and predicts the next chunk."


@pytest.fixture(scope="module")
def workplace(corpus_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("work")
    tokenizer = Corpus.open(corpus_folder).tokenizer()
    plain = small_gpt2(positions=96, n_layer=2, initializer_range=0.2)
    context = ContextLMForCausalLM(ContextLMConfig(plain.config))
    torch.nn.init.normal_(context.context.gate.weight)
    for name, model in {"plain": plain, "context": context}.items():
        save_model(folder / name, model, tokenizer)
    (folder / "text.txt").write_text(TEXT + "\n")
    (folder / "latin.txt").write_bytes("naïve".encode("latin-1"))
    return folder


def test_two_models_side_by_side(contextwise, workplace):
    words = contextwise.words("measure attention plain context --text text.txt")
    assert "Attention received by each chunk of 4 tokens" in words and "context to plain" in words
    assert "page: attention.html" in words
    page = (workplace / "attention.html").read_text()
    assert "contextwise measure attention plain context --text text.txt" in page
    assert "<h2>Attention received by each token, over that from plain</h2>" in page


def test_the_text_itself(contextwise, workplace):
    (workplace / "words.txt").write_text("the sun rose over the hills")
    given = contextwise('measure attention plain --text "the sun rose over the hills" --json')
    assert given[0] == 0 and given == contextwise("measure attention plain --text words.txt --json")


def test_json_of_a_text_from_standard_input(contextwise, workplace, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode() + b"\r\n")))
    status, output, errors = contextwise("measure attention context --text - --json --out j.html")
    assert status == 0, errors
    numbers = json.loads(output)
    assert "".join(numbers["tokens"][1:]) == TEXT and numbers["chunk_size"] == 4
    [model] = numbers["models"]
    assert model["name"] == "context" and len(model["token_received"]) == len(TEXT) + 1
    assert sum(model["chunk_received"]) == pytest.approx(sum(model["token_received"]))
    assert (workplace / "j.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("plain --text nothing.txt", "the text nothing.txt cannot be read: No such file"),
        ("plain --text plain", "the text plain cannot be read: Is a directory"),
        ("plain --text latin.txt", "latin.txt is no UTF-8 text (byte 2)"),
        ("plain --text text.txt --out plain", "plain is a folder; give the name of a file"),
        ("plain --text text.txt --out text.txt", "--out is text.txt, the file with the text"),
        ("plain --text text.txt --device cuda:99", "--device is 'cuda:99'"),
    ],
)
def test_bad_input_is_refused(contextwise, workplace, arguments, message):
    contextwise.refused(f"measure attention {arguments}", message)
    assert (workplace / "text.txt").read_text() == TEXT + "\n"
