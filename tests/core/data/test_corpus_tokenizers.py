"""Tokenizers of a corpus: loading, learning, and encoding without loss."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from contextwise.base.errors import ConfigError, DataError
from contextwise.data import tokenizers as module
from contextwise.data.tokenizers import (
    CorpusTokenizer,
    byte_tokenizer,
    learn_bpe,
    load_tokenizer,
    pieces,
    vocabulary_to_learn,
)
from contextwise.models.tokenizers import tokenizer_hash

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data" / "tokenizers"
TEXTS = [f"the cat number {i} isn't the other's, but it sat\n\n on the mat\u2028in 19{i:02d}!" for i in range(100)]
learned = learn_bpe(TEXTS, 300)
as_bytes = byte_tokenizer()


@given(st.text(max_size=200))
def test_byte_tokens_are_the_bytes_and_decode_to_the_text(text: str) -> None:
    (ids,) = as_bytes.encode([text])
    assert ids.tolist() == list(text.encode())
    assert as_bytes.backend.encode(text, add_special_tokens=False).ids == ids.tolist()
    assert as_bytes.tokenizer.decode(ids) == text
    assert ids.dtype == np.uint16 and as_bytes.vocab_size == 257 and as_bytes.end_of_text == 256


@given(st.lists(st.text(max_size=100), max_size=4))
def test_learned_tokens_decode_to_the_text(texts: list[str]) -> None:
    for text, ids in zip(texts, learned.encode(texts), strict=True):
        assert learned.tokenizer.decode(ids) == text


@pytest.mark.parametrize("tokenizer", [learned, as_bytes])
def test_end_of_text_written_in_a_text_is_text(tokenizer: CorpusTokenizer) -> None:
    text = "before <|endoftext|> after"
    (ids,) = tokenizer.encode([text])
    assert tokenizer.end_of_text not in ids
    assert tokenizer.tokenizer.decode(ids) == text


@settings(max_examples=300)
@given(st.text("ab1' .\n\r\t\u00a0\u2028é\x1c", max_size=60), st.integers(1, 8))
def test_cutting_a_text_never_changes_its_tokens(text: str, size: int) -> None:
    cut = list(pieces(text, size))
    assert "".join(cut) == text
    whole = learned.backend.encode(text, add_special_tokens=False).ids
    assert [i for piece in cut for i in learned.backend.encode(piece, add_special_tokens=False).ids] == whole


def test_long_texts_are_cut_without_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\n".join(TEXTS * 3)
    monkeypatch.setattr(learned, "piece", None)
    wanted = learned.encode(["short", text, "", "last"])
    monkeypatch.setattr(learned, "piece", 500)
    monkeypatch.setattr(module, "GROUP_BYTES", 1300)
    assert len(list(pieces(text, 500))) > 20
    for got, want in zip(learned.encode(["short", text, "", "last"]), wanted, strict=True):
        np.testing.assert_array_equal(got, want)


def test_tokenizers_whose_words_span_newlines_are_not_cut() -> None:
    spanning = Tokenizer(models.BPE())
    spanning.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    assert learned.piece is not None
    spanning.add_special_tokens(["<|endoftext|>"])
    wrapped = PreTrainedTokenizerFast(tokenizer_object=spanning, eos_token="<|endoftext|>")
    assert CorpusTokenizer(wrapped, "folder", "x", 0).piece is None


def test_the_same_texts_give_the_same_tokenizer() -> None:
    again = learn_bpe(iter(TEXTS), 300)
    assert again.backend.to_str() == learned.backend.to_str()
    assert again.vocab_size == 300
    assert learn_bpe(["abc"], 5000).vocab_size == 257


def test_a_saved_tokenizer_opens_everywhere_and_gives_the_same_ids(tmp_path: Path) -> None:
    about = learned.save(tmp_path / "t")
    assert about["vocab_size"] == 300 and about["end_of_text"] == learned.backend.token_to_id("<|endoftext|>")
    ids = learned.encode([TEXTS[3]])[0].tolist()
    for opened in (
        AutoTokenizer.from_pretrained(tmp_path / "t"),
        PreTrainedTokenizerFast.from_pretrained(tmp_path / "t"),
    ):
        assert opened(TEXTS[3], add_special_tokens=False)["input_ids"] == ids
        assert opened.eos_token_id == about["end_of_text"]
    for path in (tmp_path / "t", tmp_path / "t" / "tokenizer.json", tmp_path):
        if path == tmp_path:
            (tmp_path / "t").rename(tmp_path / "tokenizer")  # a corpus folder
        again = load_tokenizer(str(path))
        assert again.encode([TEXTS[3]])[0].tolist() == ids
        assert again.end_of_text == about["end_of_text"]


def test_gpt2s_two_files(tmp_path: Path) -> None:
    model = json.loads(learned.backend.to_str())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = "".join(" ".join(pair) + "\n" for pair in model["merges"])
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + merges, encoding="utf-8")
    opened = load_tokenizer(str(tmp_path))
    assert opened.end_of_text == learned.end_of_text
    assert opened.encode(TEXTS[:5])[4].tolist() == learned.encode(TEXTS[:5])[4].tolist()


def test_truncation_and_padding_of_a_tokenizer_do_not_change_a_corpus(tmp_path: Path) -> None:
    backend = Tokenizer.from_str(learned.backend.to_str())
    backend.enable_truncation(5)
    backend.enable_padding(length=50)
    backend.save(str(tmp_path / "tokenizer.json"))
    short, long = load_tokenizer(str(tmp_path)).encode(["a", TEXTS[0]])
    assert len(short) == 1 and len(long) == len(learned.encode([TEXTS[0]])[0])


def word_tokenizer(folder: Path, tokens: int, unknown: str | None = None) -> Path:
    folder.mkdir()
    backend = Tokenizer(models.WordLevel({f"w{i}": i for i in range(tokens)}, unk_token=unknown))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize(("tokens", "dtype"), [(2**16, np.uint16), (2**16 + 1, np.uint32)])
def test_the_smallest_type_that_holds_every_id(tmp_path: Path, tokens: int, dtype: type) -> None:
    tokenizer = load_tokenizer(str(word_tokenizer(tmp_path / "t", tokens)), end_of_text="w7")
    (ids,) = tokenizer.encode([f"w{tokens - 1} w0"])
    assert ids.dtype == dtype and ids.tolist() == [tokens - 1, 0]
    assert tokenizer.end_of_text == 7


def test_invalid_tokenizers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = str(word_tokenizer(tmp_path / "words", 20))
    with pytest.raises(DataError, match=r"names no end-of-text token; prepare a corpus with end_of_text"):
        load_tokenizer(words)
    with pytest.raises(DataError, match=r"has no token 'end'; set end_of_text"):
        load_tokenizer(words, end_of_text="end")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty holds no tokenizer: neither tokenizer\.json nor vocab\.json"):
        load_tokenizer(str(tmp_path / "empty"))
    (tmp_path / "empty" / "tokenizer.json").write_text("{")
    with pytest.raises(DataError, match=r"tokenizer\.json cannot be read"):
        load_tokenizer(str(tmp_path / "empty"))
    with pytest.raises(DataError, match=r"there is no tokenizer folder \./missing/folder"):
        load_tokenizer("./missing/folder")
    monkeypatch.setattr(module, "hub_problem", lambda: "the Hub is away")
    with pytest.raises(DataError, match=r"there is no tokenizer folder tran:300; did you mean train:300\?"):
        load_tokenizer("tran:300")
    with pytest.raises(DataError, match=r"folder 2048 here, and the Hub is away; did you mean train:2048\?"):
        load_tokenizer("2048")
    with pytest.raises(DataError, match=r"there is no tokenizer folder gpt9 here, and the Hub is away"):
        load_tokenizer("gpt9")


def test_a_token_id_beyond_all_vocabularies_is_refused_at_once(tmp_path: Path) -> None:
    """The library counts up to it, for a minute, whenever the tokenizer is written."""
    settings: dict[str, Any] = {"version": "1.0", "added_tokens": [], "model": {"type": "WordLevel", "unk_token": "a"}}
    settings["model"] |= {"vocab": {"a": 0, "<eos>": 1, "far": 10**9}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(settings))
    for read in (load_tokenizer, lambda folder: tokenizer_hash(Path(folder) / "tokenizer.json")):
        with pytest.raises(DataError, match="the token 'far' has the id 1,000,000,000, beyond all vocabularies"):
            read(str(tmp_path))


def test_a_text_that_a_tokenizer_cannot_encode(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(word_tokenizer(tmp_path / "words", 20, unknown="missing")), end_of_text="w0")
    with pytest.raises(DataError, match="the tokenizer words cannot tokenize the text"):
        tokenizer.encode(["w1 other"])


@pytest.mark.parametrize(
    "spec",
    ["train:", "train:4q", "train:-5", "train:256", "train:4096.0", "train:²", "train:99999999999", "train:1048577"],
)
def test_invalid_vocabulary_sizes(spec: str) -> None:
    with pytest.raises(ConfigError, match=f"tokenizer is {spec!r}"):
        vocabulary_to_learn(spec)


def test_vocabulary_sizes() -> None:
    assert vocabulary_to_learn("train:257") == 257
    assert vocabulary_to_learn("train:4k") == 4000
    assert vocabulary_to_learn("bytes") is None


@pytest.mark.long
@pytest.mark.skipif(not SHARED.exists(), reason="needs ../shared/data/tokenizers")
@pytest.mark.parametrize(("name", "end"), [("gpt2", 50256), ("gpt-neox-20b", 0)])
def test_published_tokenizers(name: str, end: int) -> None:
    tokenizer = load_tokenizer(str(SHARED / name))
    text = "Hello world,\n\nit's 2024.\n" + "x " * 100 + "\nthe end"
    reference = Tokenizer.from_file(str(SHARED / name / "tokenizer.json")).encode(text, add_special_tokens=False).ids
    assert tokenizer.end_of_text == end and tokenizer.dtype == np.uint16
    assert tokenizer.piece is not None
    tokenizer.piece = 20
    assert tokenizer.encode([text])[0].tolist() == reference


def test_one_word_of_a_hundred_thousand_letters_is_learned_in_linear_time() -> None:
    """A word is cut for learning only; learning it whole takes minutes."""
    long = "ab" * 50_000
    learned_on_it = learn_bpe([long, " " * 100_000, "a b c"], 270)
    assert learned_on_it.vocab_size == 270
    (ids,) = learned_on_it.encode([long])
    assert learned_on_it.tokenizer.decode(ids) == long
