"""``contextwise model embed`` as it is typed, and the folder that sentence-transformers opens."""

import gzip
import importlib.util
import io
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from contextwise.base.errors import ConfigError, DataError
from contextwise.models import load_tokenizer
from contextwise_papers.objectives.embedding.embedder import Embedder, embed_texts, load_text_model
from contextwise_papers.objectives.embedding.export import export_sentence_transformer
from contextwise_papers.objectives.embedding.whitening import normalized, write_vectors
from embedding_models import CLS, END, SEP, made
from faults import no_file_above
from small import save_model

TEXTS = ["The first text.", "x", "The third one is the longest.", "[brackets] ünï \u2028 in a line"]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return {kind: str(save_model(root / kind, *made(kind))) for kind in ("gpt2", "bert", "t5", "contextlm")}


@pytest.fixture
def workplace(tmp_path, models):
    """A folder with the models and a file of texts."""
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    for kind, folder in models.items():
        (tmp_path / kind).symlink_to(folder)
    return tmp_path


def direct(folder, texts=TEXTS, **options):

    return embed_texts(load_text_model(folder, device="cpu"), load_tokenizer(folder), texts, **options)


@pytest.mark.parametrize("kind", ["gpt2", "bert", "t5", "contextlm"])
def test_each_line_becomes_a_row(contextwise, models, workplace, kind):
    status, _, errors = contextwise(f"model embed {kind} texts.txt --out new/vectors.npy --batch-size 2")
    pooling = "last token" if kind in ("gpt2", "contextlm") else "mean"
    assert (status, errors) == (0, f"4 vectors of 16 numbers ({pooling}, layer 2 of 2) in new/vectors.npy\n")
    vectors = np.load(workplace / "new" / "vectors.npy")
    assert vectors.dtype == np.float32 and vectors.shape == (4, 16)
    np.testing.assert_allclose(vectors, direct(models[kind]), atol=1e-5)
    assert [file.name for file in (workplace / "new").iterdir()] == ["vectors.npy"]


def test_options_reach_the_vectors(contextwise, models, workplace):
    options = "--pooling cls --layer 1 --normalize --max-tokens 20 --truncate --dtype bfloat16"
    status, _, errors = contextwise(f"model embed bert texts.txt --out v.npy {options}")
    assert status == 0 and "note: 2 of 4 texts were longer than 20 tokens, and cut there" in errors
    assert "([CLS], layer 1 of 2)" in errors
    printed = json.loads(contextwise(f"model embed bert texts.txt --out v.npy {options} --json")[1])
    assert printed == {
        "path": "v.npy",
        "vectors": 4,
        "width": 16,
        "pooling": "cls",
        "layer": 1,
        "layers": 2,
        "cut": 2,
        "split": 0,
        "max_tokens": 20,
        "whitening": None,
    }
    vectors = np.load(workplace / "v.npy")
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    expected = normalized(direct(models["bert"], pooling="cls", layer=1, max_tokens=20))
    assert 1e-6 < np.abs(vectors - expected).max() < 0.05  # the precision of bfloat16, and no other vectors


def test_queries_get_the_whitening_of_the_documents(contextwise, workplace):
    lines = [f"document {i} {'y' * (i % 5)}" for i in range(30)]
    (workplace / "docs.txt").write_text("\n".join(lines))
    (workplace / "queries.txt").write_text("\n".join(lines[3:6]))
    status, _, errors = contextwise("model embed bert docs.txt --out d.npy --whiten --components 3 --max-tokens 10")
    assert status == 0 and "split into chunks that overlap" in errors and "layer 2 of 2, whitened" in errors
    options = "--whitening d.npy.whitening --max-tokens 10"
    assert contextwise(f"model embed bert queries.txt --out q.npy {options}")[0] == 0
    vectors = np.load(workplace / "d.npy")
    np.testing.assert_allclose(np.cov(vectors.T), np.eye(3), atol=1e-3)
    np.testing.assert_allclose(np.load(workplace / "q.npy"), vectors[3:6], atol=1e-3)
    contextwise.refused(
        "model embed gpt2 queries.txt --out q.npy --whitening d.npy.whitening", "vectors of another model"
    )
    contextwise.refused("model embed bert queries.txt --out q.npy --whiten", "3 texts are too few to whiten 16 numbers")


@pytest.mark.parametrize("way", ["jsonl", "gz", "field", "input", "input-json", "crlf", "unfinished"])
def test_ways_to_give_texts(contextwise, models, workplace, monkeypatch, way):
    objects = "".join(json.dumps({"text": text, "body": text[::-1]}) + "\n" for text in TEXTS).encode()
    plain = "\n".join(TEXTS).encode()
    name, content, options, expected = {
        "jsonl": ("t.jsonl", objects, "", TEXTS),
        "gz": ("t.jsonl.gz", gzip.compress(objects), "", TEXTS),
        "field": ("t.data", objects, "--text-field body", [text[::-1] for text in TEXTS]),
        "input": ("-", plain, "", TEXTS),
        "input-json": ("-", objects, "--text-field text", TEXTS),
        "crlf": ("t.txt", b"\xef\xbb\xbf" + plain.replace(b"\n", b"\r\n"), "", TEXTS),
        "unfinished": ("t.md", plain, "", TEXTS),
    }[way]
    if name == "-":
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    else:
        (workplace / name).write_bytes(content)
    status, _, errors = contextwise(f"model embed gpt2 {name} --out v.npy {options}")
    assert status == 0, errors
    np.testing.assert_allclose(np.load(workplace / "v.npy"), direct(models["gpt2"], expected), atol=1e-5)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.txt", None, "there is no file missing.txt"),
        ("empty.txt", b"", "empty.txt is empty; give a file with one text a line"),
        ("gap.txt", b"a\n\nb\n", "gap.txt:2: the line is empty; every line must hold a text"),
        ("blank.txt", b"a\nb\n \t \n", "blank.txt:3: the line is empty"),
        ("odd.txt", "a\n\u3000\n".encode(), "odd.txt:2: the text is empty"),
        ("latin.txt", b"a\nb\n\xe4\n", "latin.txt:3: the line is not UTF-8 text"),
        ("gap.jsonl", b'{"text": "a"}\n\n', "gap.jsonl:2: the line is empty"),
        ("blank.jsonl", b'{"text": "a"}\n{"text": ""}\n', "blank.jsonl:2: the text is empty"),
        ("field.jsonl", b'{"body": "a"}\n', "field.jsonl:1: there is no field 'text'"),
        ("broken.jsonl", b'{"text": "a"}\n{', "broken.jsonl:2: the line is not JSON"),
        ("cut.txt.gz", gzip.compress(b"a\n" * 1000, mtime=0)[:20], "cut.txt.gz is damaged or cut short"),
    ],
    ids=lambda value: value if isinstance(value, str) and "." in value[:12] else "",
)
def test_a_bad_file_is_refused_before_the_model_is_opened(contextwise, workplace, name, content, message):
    """The model is a folder without one."""
    if content is not None:
        (workplace / name).write_bytes(content)
    contextwise.refused(f"model embed . {name} --out v.npy", message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("gpt2 texts.txt --out v.npy --pooling cls", "the pooling is cls, but in a decoder"),
        ("t5 texts.txt --out v.npy --pooling cls", "the tokenizer adds no [CLS] token before a text"),
        ("bert texts.txt --out v.npy --max-tokens 41", "max tokens is 41, but the model has positions for 40"),
        ("gpt2 texts.txt --out v.npy --dtype int4", "--dtype is 'int4'"),
        ("gpt2 texts.txt --out v.npy --device tpu9", "--device is 'tpu9'"),
        ("nothing texts.txt --out v.npy", "there is no run and no model at"),
        ("bare texts.txt --out v.npy", "has no tokenizer; save it"),
        ("gpt2 texts.txt --out v.csv", "give a name that ends in .npy"),
    ],
)
def test_bad_input_is_refused(contextwise, models, workplace, arguments, message):
    (workplace / "bare").mkdir()
    shutil.copyfile(Path(models["gpt2"], "config.json"), workplace / "bare" / "config.json")
    contextwise.refused(f"model embed {arguments}", message)


@pytest.mark.parametrize("existing", [False, True])
def test_an_interrupted_run_leaves_an_existing_file(contextwise, workplace, monkeypatch, existing):
    folder = workplace / "out"
    folder.mkdir()
    if existing:
        (folder / "v.npy").write_text("before")
    blocks = Embedder.blocks

    def stopped(self, lines):
        for i, block in enumerate(blocks(self, lines)):
            if i == 1:
                raise KeyboardInterrupt
            yield block

    monkeypatch.setattr("contextwise_papers.objectives.embedding.embedder.BATCHES_AT_ONCE", 1)
    monkeypatch.setattr(Embedder, "blocks", stopped)
    assert contextwise("model embed gpt2 texts.txt --out out/v.npy --batch-size 2")[0] == 130
    assert [file.read_text() for file in folder.iterdir()] == (["before"] if existing else [])


@pytest.mark.parametrize(
    ("kind", "pooling", "around"),
    [
        ("gpt2", None, ([], [])),
        ("bert", "cls", ([CLS], [SEP])),
        ("bert", None, ([CLS], [SEP])),
        ("t5", None, ([], [END])),
    ],
)
def test_the_folder_for_sentence_transformers(models, tmp_path, kind, pooling, around):
    """The tokenizer puts the special tokens itself now, and the files name the pooling; opened, where it is installed."""
    out = export_sentence_transformer(models[kind], tmp_path / "st", pooling, normalize=True)
    before, after = around
    assert AutoTokenizer.from_pretrained(out)("ab").input_ids == [*before, 97, 98, *after]
    assert AutoTokenizer.from_pretrained(out).pad_token is not None
    settings = json.loads((out / "1_Pooling" / "config.json").read_text())
    usual = {"gpt2": "lasttoken", "bert": "mean_tokens", "t5": "mean_tokens"}[kind]
    chosen = [name for name, value in settings.items() if value is True]
    assert chosen == [f"pooling_mode_{'cls_token' if pooling else usual}"]
    assert settings["word_embedding_dimension"] == 16
    np.testing.assert_allclose(direct(out, pooling=pooling), direct(models[kind], pooling=pooling), atol=1e-6)
    if importlib.util.find_spec("sentence_transformers") is None:
        return
    import sentence_transformers

    vectors = sentence_transformers.SentenceTransformer(str(out), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(vectors, normalized(direct(models[kind], pooling=pooling)), atol=1e-5)


def test_what_sentence_transformers_cannot_open_is_refused(models, tmp_path):
    with pytest.raises(ConfigError, match="only stock transformers models, and .* is a contextlm"):
        export_sentence_transformer(models["contextlm"], tmp_path / "st")
    with pytest.raises(ConfigError, match="already exists"):
        export_sentence_transformer(models["gpt2"], tmp_path)
    assert not (tmp_path / "st").exists()


def test_vectors_are_written_whole_or_not_at_all(tmp_path):
    """The last bytes of a file too: numpy's own writing loses them without an error."""
    vectors, path = np.arange(32, dtype=np.float64).reshape(16, 2).T, tmp_path / "v.npy"
    for limit in range(1, 256, 15):
        with no_file_above(limit), pytest.raises(DataError, match="no space left"):
            write_vectors(path, vectors)
        assert not list(tmp_path.iterdir())
    with pytest.raises(DataError, match="the vectors cannot be written to .*v.npy"):
        write_vectors(Path("/dev/null/v.npy"), vectors)
    for rows in (vectors, vectors[:0]):
        write_vectors(path, rows)
        read = np.load(path)
        assert read.dtype == np.float32
        assert np.array_equal(read, rows)
