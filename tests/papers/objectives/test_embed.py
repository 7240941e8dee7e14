"""``contextwise model embed`` as it is typed."""

import gzip
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from contextwise.base.errors import DataError
from contextwise.models import load_tokenizer
from contextwise_papers.objectives.embedding import Embedder, load_text_model, normalized, write_vectors
from embedding_models import embed_texts, made
from faults import no_file_above
from small import save_model

TEXTS = ["The first text.", "x", "The third one is the longest.", "[brackets] ünï \u2028 in a line"]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return {kind: str(save_model(root / kind, *made(kind))) for kind in ("gpt2", "bert", "contextlm")}


@pytest.fixture
def workplace(tmp_path, models):
    """A folder with the models and a file of texts."""
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    for kind, folder in models.items():
        (tmp_path / kind).symlink_to(folder)
    return tmp_path


def direct(folder, texts=TEXTS, **options):
    return embed_texts(load_text_model(folder, device="cpu"), load_tokenizer(folder), texts, **options)


@pytest.mark.parametrize("kind", ["gpt2", "bert", "contextlm"])
def test_each_line_becomes_a_row(contextwise, models, workplace, kind):
    status, _, errors = contextwise(f"model embed {kind} texts.txt --out new/vectors.npy --batch-size 2")
    pooling = "last token" if kind in ("gpt2", "contextlm") else "mean"
    assert (status, errors) == (0, f"4 vectors of 16 numbers ({pooling}) in new/vectors.npy\n")
    vectors = np.load(workplace / "new" / "vectors.npy")
    assert vectors.dtype == np.float32 and vectors.shape == (4, 16)
    np.testing.assert_allclose(vectors, direct(models[kind]), atol=1e-5)
    assert [file.name for file in (workplace / "new").iterdir()] == ["vectors.npy"]


def test_options_reach_the_vectors(contextwise, models, workplace):
    options = "--pooling cls --normalize --max-tokens 20 --dtype bfloat16"
    status, _, errors = contextwise(f"model embed bert texts.txt --out v.npy {options}")
    assert status == 0 and "note: 2 of 4 texts were longer than 20 tokens, and cut there" in errors
    assert "([CLS])" in errors
    printed = json.loads(contextwise(f"model embed bert texts.txt --out v.npy {options} --json")[1])
    assert printed == {"path": "v.npy", "vectors": 4, "width": 16}
    vectors = np.load(workplace / "v.npy")
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    expected = normalized(direct(models["bert"], pooling="cls", max_tokens=20))
    assert 1e-6 < np.abs(vectors - expected).max() < 0.05  # the precision of bfloat16, and no other vectors


@pytest.mark.parametrize("way", ["jsonl", "gz", "crlf", "unfinished"])
def test_ways_to_give_texts(contextwise, models, workplace, way):
    objects = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()
    plain = "\n".join(TEXTS).encode()
    name, content = {
        "jsonl": ("t.jsonl", objects),
        "gz": ("t.jsonl.gz", gzip.compress(objects)),
        "crlf": ("t.txt", b"\xef\xbb\xbf" + plain.replace(b"\n", b"\r\n")),
        "unfinished": ("t.md", plain),
    }[way]
    (workplace / name).write_bytes(content)
    status, _, errors = contextwise(f"model embed gpt2 {name} --out v.npy")
    assert status == 0, errors
    np.testing.assert_allclose(np.load(workplace / "v.npy"), direct(models["gpt2"]), atol=1e-5)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.txt", None, "there is no file missing.txt"),
        ("empty.txt", b"", "empty.txt is empty; give a file with one text a line"),
        ("gap.txt", b"a\n\nb\n", "gap.txt:2: the line holds no text; every line must be a text"),
        ("blank.txt", b"a\nb\n \t \n", "blank.txt:3: the line holds no text"),
        ("odd.txt", "a\n\u3000\n".encode(), "odd.txt:2: the line holds no text"),
        ("latin.txt", b"a\nb\n\xe4\n", "latin.txt:3: the line is not UTF-8 text"),
        ("gap.jsonl", b'{"text": "a"}\n\n', "gap.jsonl:2: the line is not JSON"),
        (
            "blank.jsonl",
            b'{"text": "a"}\n{"text": ""}\n',
            "blank.jsonl:2: the line holds no text; every line must be an object with a text",
        ),
        ("field.jsonl", b'{"body": "a"}\n', "field.jsonl:1: the line holds no text"),
        ("list.jsonl", b'["a"]\n', "list.jsonl:1: the line holds no text"),
        ("half.jsonl", b'{"text": "\\ud800"}\n', "half.jsonl:1: the line holds no text"),
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

    monkeypatch.setattr("contextwise_papers.objectives.embedding.BATCHES_AT_ONCE", 1)
    monkeypatch.setattr(Embedder, "blocks", stopped)
    assert contextwise("model embed gpt2 texts.txt --out out/v.npy --batch-size 2")[0] == 130
    assert [file.read_text() for file in folder.iterdir()] == (["before"] if existing else [])


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
