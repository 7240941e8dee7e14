"""Text that tokens do not hold: what is counted, and the special tokens that no text may spell."""

import json
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from contextwise.base.errors import DataError
from contextwise.data import Corpus, prepare_corpus
from contextwise.data.tokenizers import CorpusTokenizer, byte_tokenizer, learn_bpe, load_tokenizer

TEXTS = ["the end is near", "it is the end of the sea"] * 9
SPECIAL = ["<unk>", "</s>", "<mask>"]


def wrapped(backend: Tokenizer, unknown: str | None = "<unk>", end: str = "</s>") -> CorpusTokenizer:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=end, unk_token=unknown)
    return CorpusTokenizer(tokenizer, "folder", "made", tokenizer.convert_tokens_to_ids(end))


def word_level() -> Tokenizer:
    backend = Tokenizer(models.WordLevel(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.train_from_iterator(TEXTS, trainers.WordLevelTrainer(special_tokens=SPECIAL))
    return backend


def word_piece() -> Tokenizer:
    backend = Tokenizer(models.WordPiece(unk_token="<unk>"))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.WhitespaceSplit(), decoders.WordPiece()
    backend.train_from_iterator(TEXTS, trainers.WordPieceTrainer(special_tokens=SPECIAL, vocab_size=80))
    return backend


def unigram() -> Tokenizer:
    backend = Tokenizer(models.Unigram())
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    trainer = trainers.UnigramTrainer(special_tokens=SPECIAL, unk_token="<unk>", vocab_size=60)
    backend.train_from_iterator(TEXTS, trainer)
    return backend


def with_byte_fallback() -> Tokenizer:
    """A Unigram as SentencePiece makes it, with a token for each byte."""
    letters = [(letter, -3.0) for letter in "▁thendisar"]
    pieces = [(name, 0.0) for name in SPECIAL] + [(f"<0x{byte:02X}>", -9.0) for byte in range(256)] + letters
    backend = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL])
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    return backend


def bpe(ignore_merges: bool = False) -> Tokenizer:
    backend = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    backend.train_from_iterator(TEXTS, trainers.BpeTrainer(special_tokens=SPECIAL, vocab_size=80))
    return backend


def bytes_behind(normalizer: Any = None, first: Any = None, prefix: bool = False) -> Tokenizer:
    """A byte-level BPE with something before it."""
    backend = Tokenizer.from_str(byte_tokenizer().backend.to_str())
    steps = [first, pre_tokenizers.ByteLevel(add_prefix_space=prefix)]
    backend.pre_tokenizer = pre_tokenizers.Sequence([step for step in steps if step is not None])
    backend.normalizer = normalizer
    backend.add_special_tokens(SPECIAL)
    return backend


def held(tokenizer: CorpusTokenizer, *texts: str) -> list[bool]:
    return tokenizer.gives_back(texts, tokenizer.encode(list(texts))).tolist()


@pytest.mark.parametrize(
    ("make", "kept", "lost"),
    [
        (word_level, ["the end", " the end", "near"], ["the END", "the  end", "the\nend", "the end,"]),
        (word_piece, ["the end", "then"], ["the £", "the  end", "the\nend"]),
        (unigram, ["the end", " the  end"], ["the E", "e\u0301nd", "x"]),
        (with_byte_fallback, ["the E\n", "é £ 漢", "  a"], ["the ▁end", "<0x41>"]),
        (bpe, ["the end"], ["the end!", "the E", "the\nend"]),
        (lambda: bytes_behind(), ["the\n end!", "É ﬁ e\u0301  ", " "], []),
        (lambda: bytes_behind(prefix=True), ["the end", " the end", "\nE"], []),
        (lambda: bytes_behind(normalizers.NFC()), ["é ﬁ"], ["e\u0301", "a e\u0301"]),
        (lambda: bytes_behind(normalizers.NFKC()), ["é"], ["ﬁ", "1½"]),
        (lambda: bytes_behind(normalizers.Lowercase()), ["the end"], ["The end", "É"]),
        (lambda: bytes_behind(normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()])), ["e"], ["é"]),
        (lambda: bytes_behind(normalizers.Strip()), ["the end"], ["the end\n"]),
        (lambda: bytes_behind(first=pre_tokenizers.Digits()), ["in 1987\n"], []),
        (lambda: bytes_behind(first=pre_tokenizers.Whitespace()), ["theend"], ["the end", "the\nend"]),
    ],
)
def test_which_texts_tokens_give_back(make: Callable[[], Tokenizer], kept: list[str], lost: list[str]) -> None:
    tokenizer = wrapped(make(), None if make is bpe else "<unk>")
    assert held(tokenizer, *kept, *lost) == [True] * len(kept) + [False] * len(lost)


@given(st.lists(st.text(st.sampled_from("aé e\u0301\u030aÅ\u212b.\n"), max_size=9), min_size=1))
def test_a_byte_level_tokenizer_with_nfc_gives_back_what_is_in_that_form(texts: list[str]) -> None:
    tokenizer = wrapped(bytes_behind(normalizers.NFC()))
    assert held(tokenizer, *texts) == [unicodedata.is_normalized("NFC", text) for text in texts]


def test_own_tokenizers_lose_nothing() -> None:
    texts = ["the\n end!", "É ﬁ e\u0301 \x00", "<|endoftext|>"]
    assert held(byte_tokenizer(), *texts) == held(learn_bpe(TEXTS, 300), *texts) == [True] * 3


def test_bytes_that_a_vocabulary_lacks_are_looked_for() -> None:
    settings = json.loads(bytes_behind().to_str())
    del settings["model"]["vocab"]["!"]
    tokenizer = wrapped(Tokenizer.from_str(json.dumps(settings)))
    assert held(tokenizer, "the end", "the end!") == [True, False]


@pytest.mark.parametrize("make", [word_level, word_piece, unigram, with_byte_fallback, bpe, lambda: bpe(True)])
def test_no_text_spells_a_special_token(make: Callable[[], Tokenizer]) -> None:
    backend = make()
    ids = [backend.token_to_id(name) for name in ("</s>", "<mask>")]
    tokenizer = wrapped(Tokenizer.from_str(backend.to_str()))
    texts = ["the </s> end", "a</s>", "</s>", "the <mask> <mask>", "</s></s> is"]
    for tokens in tokenizer.encode(texts):
        assert not set(ids) & set(tokens.tolist())
    # All other text keeps its ids, in the order that the saved tokenizer has.
    for text in ["the end is near", "it is the sea", "the un of it"]:
        assert tokenizer.encode([text])[0].tolist() == backend.encode(text, add_special_tokens=False).ids
    assert tokenizer.tokenizer.convert_tokens_to_ids("</s>") == tokenizer.end_of_text == ids[0]


def test_an_end_of_text_that_is_no_special_token_is_not_made_from_text_either(tmp_path: Path) -> None:
    settings = json.loads(unigram().to_str())
    backend = Tokenizer.from_str(json.dumps(settings | {"added_tokens": []}))
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(str(tmp_path))
    assert tokenizer.tokenizer.eos_token == "</s>"
    assert tokenizer.end_of_text not in tokenizer.encode(["the </s> end"])[0]
    marked = learn_bpe(TEXTS, 300).backend
    marked.add_tokens([AddedToken("</s>", special=False)])
    marked.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(str(tmp_path), end_of_text="</s>")
    assert held(tokenizer, "the </s> end") == [True]
    assert tokenizer.end_of_text not in tokenizer.encode(["the </s> end"])[0]


def test_an_ordinary_word_as_end_of_text_is_refused_where_a_text_has_it(tmp_path: Path, write_jsonl: Any) -> None:
    word_level().save(str(tmp_path / "tokenizer.json"))
    source = write_jsonl([{"text": "it is the sea"}, {"text": "the end is near"}])
    with pytest.raises(
        DataError, match="makes the token 'near', which ends documents, from a text that begins 'the end is"
    ):
        prepare_corpus(source, tmp_path / "tokenizer.json", tmp_path / "c", end_of_text="near")
    assert not (tmp_path / "c").exists()


def test_what_is_lost_is_counted_and_said(tmp_path: Path, write_jsonl: Any, capsys: Any) -> None:
    wrapped(word_level()).tokenizer.save_pretrained(tmp_path / "tok")
    texts = ["the end </s> is I quite far", "the end is near", "the  end", "it is"]
    source = write_jsonl([{"text": text} for text in texts])
    corpus = prepare_corpus(source, tmp_path / "tok", tmp_path / "c", validation=0)
    assert corpus.manifest["splits"]["train"]["lost"] == {"documents": 2, "bytes": 27 + 8}
    lost = {corpus.tokenizer().decode(corpus.document(i)): bool(corpus.lost[i]) for i in range(4)}
    assert lost == {
        "the end <unk> is <unk> <unk> <unk>": True,
        "the end is near": False,
        "the end": True,
        "it is": False,
    }
    said = " ".join(capsys.readouterr().err.split())
    assert "the tokens of 2 of 4 documents (63.6% of the bytes) do not decode to their text" in said
    assert corpus.lost_note in said


def test_a_corpus_that_holds_its_text_says_nothing(corpus: Corpus, tmp_path: Path, capsys: Any) -> None:
    assert corpus.lost_note is None and corpus.lost is not None and not corpus.lost.any()
    assert "loses text" not in capsys.readouterr().err
    assert corpus.first(50).lost is None
    (tmp_path / "t.bin").write_bytes(bytes(20))
    unknown = Corpus.open(tmp_path / "t.bin")
    assert unknown.lost is None and "is not known" in unknown.lost_note
