"""``contextwise evaluate --sentences`` and ``--rescore``, and ``contextwise embed --contexts``, as they are typed."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sentence_models import cue_model, make_corpus, save, sentence_model, write_text_encoder

Typed = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of articles, a sentence model, CUE models with contexts and without, candidates, and contexts."""
    folder = tmp_path_factory.mktemp("sentences")
    make_corpus(folder)
    save(cue_model(write_text_encoder(folder / "bert")), folder / "cue")
    save(cue_model(None), folder / "plain-cue")
    save(sentence_model(), folder / "lm")
    rows = [
        {"id": i, "candidates": ["Oil rises.", "Oil falls."], "contexts": {"title": "Oil"}} for i in range(7)
    ]
    (folder / "lists.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "contexts.jsonl").write_text('{"title": "Oil", "topics": ["oil", "trade"]}\n{}\n')
    (folder / "wrong.jsonl").write_text('{"title": "Oil", "topcs": []}\n')
    return folder


CORPUS = ("--corpus", "corpus", "--split", "train")


def test_a_cue_model_is_scored_by_sentence_without_a_flag(contextwise: Typed) -> None:
    status, output, errors = contextwise("evaluate", "cue", *CORPUS)
    words = " ".join(output.split())
    assert status == 0 and max(map(len, output.splitlines())) <= 80, errors
    assert "30 sentences of 12 documents, each on its own" in words
    assert "Contexts (of the sentences, so many have it): title (90%), date (100%)" in words
    assert "perplexity without ends" in words and "Its sentence encoder alone: perplexity" in words
    assert "what the contexts gain" in words and "not in contexts" in words
    assert "Tokens whose word stands in the context: " in words
    assert "written to evaluation/cue/corpus-train-sentences/" in words
    status, output, _ = contextwise("evaluate", "cue", *CORPUS, "--json")
    summary = json.loads(output)
    assert status == 0 and summary["by_sentence"] and set(summary["cache_effect"]["bins"]) >= {"in contexts"}


def test_contexts_are_withheld(contextwise: Typed) -> None:
    status, output, _ = contextwise("evaluate", "cue", *CORPUS, "--contexts", "none")
    words = " ".join(output.split())
    assert status == 0 and "No contexts." in words and "what the contexts gain" not in words
    assert "written to evaluation/cue/corpus-train-sentences-no-contexts/" in words
    status, output, _ = contextwise(
        "evaluate", "cue", *CORPUS, "--contexts", "title, date", "--drop-contexts", "0.5"
    )
    words = " ".join(output.split())
    assert status == 0 and "50% of them withheld at random" in words
    assert "corpus-train-sentences-title-date-dropped-0.5/" in words
    status, output, _ = contextwise("compare", "lm", "cue", *CORPUS)
    words = " ".join(output.split())
    assert (
        status == 0
        and "Every sentence was scored on its own" in words
        and "Relative perplexity of cue to lm" in words
    )


def test_a_sentence_model_and_long_sentences(contextwise: Typed) -> None:
    status, output, _ = contextwise("evaluate", "lm", "--sentences", *CORPUS, "--limit-documents", "4")
    words = " ".join(output.split())
    assert status == 0 and "10 sentences of 4 documents" in words and "The model takes no contexts." in words
    assert "are longer than the model's 48 positions; they were scored in overlapping windows" in words


@pytest.mark.parametrize("model", ["cue", "lm"])
def test_lists_are_ranked(contextwise: Typed, workplace: Path, model: str) -> None:
    status, output, errors = contextwise("evaluate", model, "--rescore", "lists.jsonl")
    words = " ".join(output.split())
    assert status == 0 and max(map(len, output.splitlines())) <= 80
    assert f"{model}: 14 candidates in 7 lists" in words and "and 2 more lists" in words
    assert ("7 with contexts" in words) == (model == "cue")
    assert ("the contexts of 7 of 7 lists are passed over" in errors) == (model == "lm")
    written = (workplace / "evaluation" / model / "rescored-lists.jsonl").read_text().splitlines()
    assert len(written) == 7 and f"written to evaluation/{model}/rescored-lists.jsonl" in words
    status, output, _ = contextwise("evaluate", model, "--rescore", "lists.jsonl", "--json")
    assert status == 0 and json.loads(output) == [json.loads(line) for line in written]


def test_cue_vectors_are_written(contextwise: Typed, workplace: Path) -> None:
    status, _, errors = contextwise("embed", "cue", "--contexts", "contexts.jsonl", "--out", "cue.npy")
    assert status == 0 and "2 vectors of 16 numbers (e_cue of contexts) in cue.npy" in errors
    vectors = np.load(workplace / "cue.npy")
    assert vectors.shape == (2, 16) and not np.allclose(vectors[0], vectors[1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evaluate", "lm", "--sentences"], "there are no sentences to score; give a prepared corpus"),
        (["evaluate", "lm", "--sentences", *CORPUS, "--contexts", "none"], "lm is no CUE model and takes no contexts"),
        (["evaluate", "lm", "--sentences", *CORPUS, "--drop-contexts", "0.5"], "--drop-contexts is given, but lm is no CUE"),
        (["evaluate", "lm", "--sentences", *CORPUS, "--limit-documents", "0"], "--limit-documents is 0"),
        (["evaluate", "lm", "--sentences", *CORPUS, "--batch-tokens", "0"], "--batch-tokens is 0"),
        (["evaluate", "lm", "--sentences", *CORPUS, "--stride", "8"], "--stride is given together with --sentences"),
        (["evaluate", "cue", *CORPUS, "--stride", "4"], "cue is a CUE model, which is scored sentence by sentence; leave --stride"),
        (["evaluate", "cue", *CORPUS, "--causality"], "leave --causality out"),
        (["evaluate", "cue", *CORPUS, "--contexts", "titel"], "'titel', which is no context here; did you mean 'title'?"),
        (["evaluate", "cue", *CORPUS, "--contexts", "title,title"], "--contexts names 'title' twice"),
        (["evaluate", "cue", *CORPUS, "--contexts", "title,"], "give names of contexts with commas between"),
        (["evaluate", "cue", *CORPUS, "--contexts", "none,title"], "give names of contexts with commas between"),
        (["evaluate", "cue", *CORPUS, "--contexts", "none", "--drop-contexts", "1"], "is scored without contexts"),
        (["evaluate", "plain-cue", *CORPUS, "--contexts", "title"], "the model has no context encoder"),
        (["evaluate", "lm", "--sentences", *CORPUS, "--out", "bert"], "holds something that is not an evaluation"),
        (["evaluate", "lm", "--rescore", "nowhere.jsonl"], "there is no file nowhere.jsonl"),
        (["evaluate", "cue", "--rescore", "contexts.jsonl"], "contexts.jsonl:1 has no list 'candidates'"),
        (["evaluate", "lm", "--rescore", "lists.jsonl", "--out", "lists.jsonl"], "is the file that is read"),
        (["embed", "lm", "--contexts", "contexts.jsonl", "--out", "x.npy"], "lm is no CUE model"),
        (["embed", "plain-cue", "--contexts", "contexts.jsonl", "--out", "x.npy"], "was trained without contexts"),
        (["embed", "cue", "--contexts", "wrong.jsonl", "--out", "x.npy"], "wrong.jsonl:1: the context 'topcs' is none"),
        (["embed", "cue", "lists.jsonl", "--contexts", "contexts.jsonl", "--out", "x.npy"], "FILE is given together with"),
        (["embed", "cue", "--contexts", "contexts.jsonl", "--out", "x.npy", "--layer", "1"], "--layer is given together"),
        (["embed", "cue", "--out", "x.npy"], "there is nothing to embed"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_sentence_and_status_2(
    contextwise: Typed, arguments: list[str], message: str
) -> None:
    status, output, errors = contextwise(*arguments)
    assert status == 2 and message in " ".join(errors.split())
    assert output == "" and errors.startswith("error: ") and "Traceback" not in errors
