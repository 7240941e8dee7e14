"""Corpora of very many documents of one token, of one document, and of one very long document."""

import json
import random
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

import contextwise
from contextwise.data import Corpus
from processes import forked
from small import EXACT, WORDS, loss_rows, recipe_values, save_model, small_gpt2, write_rows

GIB = 2**30


def prepared(folder: Path, rows: list[dict[str, str]]) -> Path:
    contextwise.prepare(write_rows(folder / "text.jsonl", rows), "bytes", folder / "corpus", validation=0.4)
    return folder / "corpus"


@pytest.mark.long
@pytest.mark.parametrize("count", [2_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_documents_of_one_token(contextwise: Callable, workplace: Path, count: int) -> None:
    """They are counted, trained on in windows of many, and scored; a curve over what no token has before it is refused."""
    draw = random.Random(0)
    corpus = prepared(workplace, [{"text": draw.choice("abcdefghijklmnopqrstuvwxyz")} for _ in range(count)])
    splits = [Corpus.open(corpus, split=split) for split in ("train", "validation")]
    assert sum(map(len, splits)) == sum(split.tokens for split in splits) == count
    save_model(workplace / "model", small_gpt2())
    result = contextwise_evaluate(workplace)
    assert result["documents"] == result["tokens"] == len(splits[1]) and result["loss"]["value"] > 0
    values = recipe_values(corpus, workplace / "run", steps=2, **EXACT)
    (workplace / "recipe.yaml").write_text(json.dumps(values))
    assert contextwise("train recipe.yaml")[0] == 0
    contextwise.refused("curve model --corpus corpus", "no document has a token with 1 tokens before it")
    assert "too short to reward any training context" in contextwise.words("corpus corpus")


def contextwise_evaluate(folder: Path) -> dict:
    return contextwise.evaluate(folder / "model", folder / "corpus").summary


@pytest.mark.long
def test_a_corpus_of_one_document(contextwise: Callable, workplace: Path) -> None:
    """Nothing is held out of it, which is said; a measure gives a loss without an interval, and a decision is refused."""
    text = " ".join(random.Random(0).choices(WORDS, k=400))
    write_rows(workplace / "text.jsonl", [{"text": text}])
    for share in (0.005, 0.5, 0.999):
        status, _, errors = contextwise(f"prepare text.jsonl --tokenizer bytes --out {share} --validation {share}")
        splits = sorted(
            path.name for path in (workplace / str(share)).iterdir() if path.name in ("train", "validation")
        )
        assert (status, splits) in ((0, ["train"]), (2, [])) or splits == ["validation"], errors
        assert splits == [] or "the text is one document, which did not fall to the split" in errors.replace("\n", " ")
    write_rows(workplace / "other.jsonl", [{"text": " ".join(random.Random(1).choices(WORDS, k=200))}])
    sources = "train=text.jsonl validation=other.jsonl"
    assert contextwise(f"prepare {sources} --tokenizer bytes --out corpus")[0] == 0
    save_model(workplace / "model", small_gpt2())
    assert "One document allows no interval" in contextwise.words("evaluate model --corpus corpus")
    summary = contextwise_evaluate(workplace)
    assert summary["documents"] == 1 and summary["loss"]["low"] is None
    assert contextwise("curve model --corpus corpus")[0] == 0
    contextwise.refused(
        "trial gpt2 pm --corpus corpus",
        "the corpus corpus holds out 1 document, 1 of them for the rates, but a decision needs 6",
    )
    contextwise.refused("trial gpt2 pm --corpus 0.5", "has no split 'validation'")
    write_rows(workplace / "losses.jsonl", loss_rows("ab", 3, "d"))
    assert "1 document cannot show how far documents differ" in contextwise.words("decide losses.jsonl")


def long_document(folder: Path, characters: int, peak: Path) -> None:
    """Prepare one document of so many tokens, train on it, and measure it; write the peak of memory, in bytes."""
    draw = random.Random(0)
    with (folder / "text.txt").open("w") as file:
        for _ in range(characters // 1000):
            file.write(("".join(draw.choices("abcdefgh ", k=999))) + "\n")
    corpus = contextwise.prepare(folder / "text.txt", "bytes", folder / "corpus")
    assert (len(corpus), corpus.tokens) == (1, characters // 1000 * 1000)
    save_model(folder / "model", small_gpt2())
    contextwise.train(recipe_values(folder / "corpus", folder / "run", steps=2, **EXACT))
    settings = {"contexts": [4, 16], "samples": 50}
    contextwise.curve(folder / "model", folder / "corpus", split="train", **settings)
    contextwise.evaluate(folder / "model", Corpus.open(folder / "corpus", split="train").first(20_000))
    peak.write_text(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))


@pytest.mark.slow
def test_a_document_of_100_million_tokens(tmp_path: Path) -> None:
    """The memory that it takes is bounded: its text a few times, and its tokens."""
    used = []
    for number, size in enumerate((10**6, 10**8)):
        folder = tmp_path / str(number)
        folder.mkdir()
        process = forked(long_document, folder, size, folder / "peak")
        process.join()
        assert process.exitcode == 0
        used.append(int((folder / "peak").read_text()))
    assert used[1] < used[0] + 2.5 * GIB
