"""``contextwise measure sentences`` and ``measure rescore``, as they are typed."""

import json

import pytest
import torch

from contextwise.data.tokenizers import byte_tokenizer
from contextwise_papers.cue import CueForCausalLM
from contextwise_papers.cue.encoding import TextEncoder
from sentence_models import cue_model, make_corpus, sentence_model, write_text_encoder
from small import save_model, write_rows


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A corpus of articles, a sentence model, CUE models with contexts and without, candidates, and contexts."""
    folder = tmp_path_factory.mktemp("sentences")
    make_corpus(folder)
    model = cue_model(write_text_encoder(folder / "bert"))
    save_model(folder / "cue", model)
    save_model(folder / "plain-cue", cue_model(None))
    save_model(folder / "lm", sentence_model())
    rows = [{"id": i, "candidates": ["Oil rises.", "Oil falls."], "contexts": {"title": "Oil"}} for i in range(7)]
    write_rows(folder / "lists.jsonl", rows)
    (folder / "known.json").write_text('{"title": "Oil"}')
    (folder / "wrong.jsonl").write_text('{"title": "Oil", "topcs": []}\n')
    return folder


CORPUS = "--corpus corpus --split train"


def test_a_cue_model_is_scored_by_sentence(contextwise):
    words = contextwise.words(f"measure sentences cue {CORPUS}")
    assert "30 sentences of 12 documents, each on its own" in words
    assert "Contexts (share of the sentences that have them): title (90%), date (100%)" in words
    assert "perplexity without ends" in words and "Its sentence encoder alone: perplexity" in words
    assert "gain over the sentence encoder alone" in words and "not in contexts" in words
    assert "Tokens whose word occurs in the context: " in words
    assert "written to evaluation/cue/sentences-corpus-train-" in words
    status, output, _ = contextwise(f"measure sentences cue {CORPUS} --json")
    summary = json.loads(output)
    assert status == 0 and set(summary["cache_effect"]["bins"]) >= {"in contexts"}


def test_contexts_are_withheld(contextwise):
    words = contextwise.words(f"measure sentences cue {CORPUS} --contexts none")
    assert "No contexts." in words and "gain over the sentence encoder alone" not in words
    assert "written to evaluation/cue/sentences-corpus-train-" in words
    words = contextwise.words(f"measure sentences cue {CORPUS} --contexts 'title, date' --drop-contexts 0.5")
    assert "50% of them withheld at random" in words
    words = contextwise.words(f"compare lm cue {CORPUS}")
    assert "are scored sentence by sentence" in words


def test_a_sentence_model_and_long_sentences(contextwise):
    words = contextwise.words(f"measure sentences lm {CORPUS} --limit 4")
    assert "10 sentences of 4 documents" in words and "The model takes no contexts." in words
    assert "are longer than the model's 48 positions; they were scored in overlapping windows" in words


@pytest.mark.parametrize("model", ["cue", "plain-cue", "lm"])
def test_lists_are_ranked(contextwise, workplace, model):
    status, output, errors = contextwise(f"measure rescore {model} lists.jsonl")
    words = " ".join(output.split())
    assert status == 0 and max(map(len, output.splitlines())) <= 80
    assert f"{model}: 14 candidates in 7 lists" in words and "and 2 more lists" in words
    assert ("7 with contexts" in words) == (model == "cue")
    assert ("the contexts of 7 of 7 lists are ignored" in errors) == (model != "cue")
    assert errors.count("note: ") == (model != "cue")
    [folder] = (workplace / "evaluation" / model).glob("rescore-lists-*")
    assert len((folder / "ranked.jsonl").read_text().splitlines()) == 7
    assert f"written to evaluation/{model}/rescore-lists-" in words
    status, output, _ = contextwise(f"measure rescore {model} lists.jsonl --json")
    assert status == 0 and json.loads(output) == json.loads((folder / "summary.json").read_text())


def test_truncated_texts_are_counted(contextwise, workplace):
    long = workplace / "long.json"
    long.write_text(json.dumps({"title": "x" * 100}))
    _, _, errors = contextwise("generate cue Oil --max-new-tokens 2 --contexts long.json")
    assert "note: 1 context text was longer than 64 tokens, and truncated" in errors
    long.write_text(json.dumps({"title": "x" * 100, "topics": ["y" * 100]}))
    _, _, errors = contextwise("generate cue Oil --max-new-tokens 2 --contexts long.json")
    assert "note: 2 context texts were longer than 64 tokens, and truncated" in errors


@pytest.mark.parametrize("model", ["cue", "plain-cue", "lm"])
@pytest.mark.parametrize(
    "command",
    [
        f"curve {CORPUS} --context 8 --limit 2",
        f"measure entropy {CORPUS} --contexts 4,8 --samples 60 --density-samples 10",
        "generate --greedy --max-new-tokens 3",
    ],
)
def test_a_note_says_that_a_cue_model_has_no_contexts(contextwise, model, command):
    status, _, errors = contextwise(command, model)
    verb = "continues" if command.startswith("generate") else "is measured"
    note = f"note: {model} takes contexts; it {verb} without any"
    assert status == 0 and errors.count(note) == errors.count("takes contexts") == (model != "lm")


def test_a_sentence_is_written_with_its_contexts(contextwise, workplace):
    """Greedy, token by token, by the model's own forward pass, behind the end-of-text that begins each sentence."""
    known = {"title": "Oil", "topics": ["oil", "trade"]}
    (workplace / "one.json").write_text(json.dumps(known, indent=2))
    model = CueForCausalLM.from_pretrained(workplace / "cue").eval()
    encoder = TextEncoder.open(str(workplace / "bert"), "mean", device="cpu")
    written = {}
    for texts, option in ((["Oil", "oil, trade"], "--contexts one.json"), ([], "")):
        given = {"contexts": torch.from_numpy(encoder.encode(texts))[None]} if texts else {}
        ids = [256, *b"Oil"]
        for _ in range(12):
            with torch.no_grad():
                ids.append(int(model(torch.tensor([ids]), **given).logits[0, -1].argmax()))
            if ids[-1] == 256:
                break
        expected = byte_tokenizer().tokenizer.decode(ids, skip_special_tokens=True)
        _, output, errors = contextwise(f"generate cue Oil --greedy --max-new-tokens 12 {option}")
        assert output.removesuffix("\n") == expected and ("without any" in errors) == (not texts)
        written[bool(texts)] = output
    assert written[True] != written[False]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (f"measure sentences lm {CORPUS} --drop-contexts 0.5", "--drop-contexts is given, but lm is no CUE"),
        (f"measure sentences cue {CORPUS} --contexts title,title", "--contexts names 'title' twice"),
        (f"measure sentences cue {CORPUS} --contexts title,", "'', which is no context here"),
        (f"measure sentences cue {CORPUS} --contexts none,title", "'none', which is no context here"),
        (f"measure sentences cue {CORPUS} --contexts none --drop-contexts 1", "is scored without contexts"),
        ("measure rescore lm nowhere.jsonl", "file is nowhere.jsonl, which cannot be read: No such file"),
        ("generate lm --contexts known.json", "--contexts is given, but lm takes no contexts; leave it out"),
        ("generate plain-cue --contexts known.json", "plain-cue takes no contexts"),
        ("generate cue --contexts nowhere.json", "there is no file nowhere.json"),
        ("generate cue --contexts wrong.jsonl", "wrong.jsonl: the context 'topcs' is unknown"),
        ("generate cue --contexts lists.jsonl", "give one object of contexts"),
    ],
)  # fmt: skip
def test_bad_input_is_refused(contextwise, command, message):
    contextwise.refused(command, message)
