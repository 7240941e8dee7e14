"""Hostile recipes, texts and command lines: one sentence and status 2, no traceback, no hang, nothing left."""

import gzip
import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from safetensors.numpy import load_file, save_file

from faults import tree
from fuzzing import VALUES, hostile_yaml, mutated_bytes, mutated_values, report, run
from small import recipe_values, save_model, small_gpt2, write_documents

ROUNDS = [pytest.param(4, id="slice"), pytest.param(1500, id="all", marks=pytest.mark.slow)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text, a corpus, a model and a run."""
    from contextwise.data import prepare_corpus
    from contextwise.training import Recipe, train

    folder = tmp_path_factory.mktemp("fuzz")
    write_documents(folder / "text.jsonl", 12)
    prepare_corpus(folder / "text.jsonl", "bytes", folder / "corpus", validation=0.5)
    train(Recipe.model_validate(small_recipe(folder) | {"output": str(folder / "run")}))
    save_model(folder / "model", small_gpt2())
    return folder


def small_recipe(folder: Path) -> dict[str, Any]:
    values = recipe_values(folder / "corpus", folder / "out", steps=2, save_every=1)
    values["model"] |= {"layers": 1, "width": 8}
    values["training"] |= {
        "evaluate_every": 1,
        "evaluation_tokens": 64,
        "workers": 0,
        "warmup_steps": 0,
        "schedule": "wsd",
        "optimizer": "adamw",
    }
    return values | {"seed": 3, "objective": {"name": "causal"}}


def small_sweep(folder: Path) -> dict[str, Any]:
    recipe = small_recipe(folder)
    base = {name: recipe[name] for name in ("data", "model", "training")}
    base["training"] = base["training"] | {"steps": None, "curve_tokens": 64}
    del base["data"]["context"]
    grid = {"data.context": [8, 16], "training.tokens": [256, 512], "seed": [0, 1]}
    return {"name": "tiny", "base": base, "grid": grid, "learning_rate": "fixed"}


def small_trial(folder: Path) -> dict[str, Any]:
    recipe = small_recipe(folder)
    shared = {name: recipe[name] for name in ("data", "model", "training")}
    shared["model"]["context_predictor"] = None
    corpus = shared["data"].pop("corpus")
    arms = {"gpt2": None, "slower": ["training.learning_rate=1e-4"], "contextlm": "contextlm"}
    values = {"corpus": corpus, "arms": arms, "recipe": shared, "tokens": [1024, 2048], "seeds": 3}
    return values | {"rates": {"factors": [0.5, 1.0]}, "margin": 0.01, "equal": "tokens"}


MUTATED = [("train", 1500), ("plan sweep", 300), ("trial", 300)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("verb", "rounds"), [("train", 2), *(pytest.param(*case, marks=pytest.mark.slow) for case in MUTATED)]
)
def test_mutated_recipes(folder: Path, tmp_path: Path, verb: str, rounds: int) -> None:
    draw, problems = random.Random(verb), []
    before = tree(folder)
    values = {"train": small_recipe, "plan sweep": small_sweep, "trial": small_trial}[verb](folder)
    words = [] if verb == "train" else ["--dry-run"]
    for number in range(rounds):
        recipe, out = tmp_path / "recipe.yaml", tmp_path / f"out-{number}"
        chosen = mutated_values(values, draw) if number else values  # the first is sound
        text = yaml.safe_dump(chosen, allow_unicode=True).encode()
        recipe.write_bytes(text if not number or draw.random() < 0.8 else mutated_bytes(text, draw))
        ended = run([*verb.split(), str(recipe), "--out", str(out), *words], tmp_path)
        # Status 1: it trained, and the loss was no finite number.
        if (problem := ended.problem((0, 1, 2) if number else (0,))) is not None:
            problems.append(f"{recipe.read_bytes()!r}\n{problem}")
        if ended.status == 2 and out.exists() and [file for file in out.iterdir() if not file.name.startswith(".")]:
            problems.append(f"left behind: {[*out.iterdir()]}\n{recipe.read_bytes()!r}\n{ended.text}")
        shutil.rmtree(out, ignore_errors=True)
    assert tree(folder) == before
    report(problems)


@pytest.mark.parametrize("verb", ["train", "plan sweep", "trial"])
@pytest.mark.parametrize("name", hostile_yaml())
def test_hostile_yaml(tmp_path: Path, contextwise, name: str, verb: str) -> None:
    contextwise.folder = tmp_path
    (tmp_path / "recipe.yaml").write_text(hostile_yaml()[name])
    status, output, errors = contextwise(f"{verb} recipe.yaml")
    assert (status, output) == (2, "") and errors.startswith("error: "), errors
    assert "Traceback" not in errors and len(errors) < 3000
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.yaml"]


def write_hostile_texts(folder: Path) -> dict[str, Path]:
    """Files that prepare may be given."""
    folder.mkdir()
    contents: dict[str, bytes] = {
        "empty.jsonl": b"",
        "blank.txt": b" \n\n",
        "nul.txt": b"a\x00b" * 50,
        "binary.txt": bytes(range(256)) * 20,
        "binary.jsonl": bytes(range(256)) * 20,
        "pair.jsonl": b'{"text": "a \\ud800 b"}\n',
        "deep.jsonl": b'{"text": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n",
        "digits.jsonl": b'{"text": "a", "n": ' + b"9" * 5000 + b"}\n",
        "types.jsonl": b'{"text": 3}\n[1]\nnull\n',
        "nan.jsonl": b'{"text": "some words", "n": NaN}\n' * 30,
        "large.jsonl": b'{"text": "some words", "n": 99999999999999999999999}\n' * 30,
        "list.json": b'[{"text": "some words"}, {"text": 2}]',
        "torn.json": b'[{"text": "some words"}, ',
        "cut.jsonl.gz": gzip.compress(b'{"text": "some words"}\n' * 1000)[:-20],
        "false.jsonl.gz": b"not compressed",
        "false.parquet": b"PAR1 not really PAR1",
        "word.txt": b"a" * 300_000,
        "blanks.txt": b"x" + b" " * 300_000 + b"x",
        "reserved.jsonl": b'{"text": "some words", "input_ids": 1, "n_bytes": "x", "document_hash": []}\n' * 30,
        "names.jsonl": json.dumps({"text": "some words", "": 1, "a\u0000b": 2, "\U0001f600": [1, "x"]}).encode()
        + b"\n",
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    table = pa.Table.from_arrays([pa.array(["some words"] * 30)] * 2, names=["text", "text"])
    pq.write_table(table, folder / "twice.parquet")
    pq.write_table(pa.table({"text": pa.array([b"\xff"] * 30)}), folder / "bytes.parquet")
    (folder / "folder.jsonl").mkdir()
    return {path.name: path for path in sorted(folder.iterdir())}


@pytest.mark.long
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("tokenizer", [pytest.param("train:300", marks=pytest.mark.long), "bytes"])
def test_hostile_texts(tmp_path: Path, tokenizer: str, every: bool) -> None:
    problems = []
    texts = write_hostile_texts(tmp_path / "texts")
    texts |= {"all": tmp_path / "texts", "no name": tmp_path / ("n" * 300)}
    chosen = texts if every else random.Random(tokenizer).sample(sorted(texts), 2)
    for name in chosen:
        text = texts[name]
        out = tmp_path / "out" / name
        ended = run(["prepare", str(text), "--tokenizer", tokenizer, "--out", str(out)], tmp_path)
        if (problem := ended.problem()) is not None:
            problems.append(problem)
        if ended.status == 2 and out.parent.exists() and [*out.parent.glob(f"{out.name}*")]:
            problems.append(f"left behind: {[*out.parent.iterdir()]} of {name}")
    report(problems)


HOSTILE_WORDS = [str(value) for value in VALUES if not isinstance(value, list | dict) and "\x00" not in str(value)]
HOSTILE_WORDS += [
    "9" * 5000,
    "meta",
    "train:99999999999",
    "cuda:99",
    "\udcff",
    "run",
    "corpus",
    "model",
    "text.jsonl",
    "-5",
]


@pytest.mark.long
@pytest.mark.parametrize("rounds", ROUNDS)
def test_hostile_command_lines(folder: Path, tmp_path: Path, rounds: int) -> None:
    """Arguments and options of every verb that ends by itself, with values from a list of hostile ones."""
    from typer.main import get_command

    from contextwise import cli
    from contextwise.cli.commands import verbs

    draw, problems = random.Random(3), []
    parsed: Any = get_command(cli.app)
    never = {"model serve", "demo", "trial", "plan sweep", "reproduce", "measure ruler"}
    typed = sorted(set(verbs()) - never)
    place = tmp_path / "place"
    for _ in range(rounds):
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(folder, place)
        verb = draw.choice(typed).split()
        command = parsed
        for name in verb:
            command = command.get_command(None, name)
        parameters = command.make_context(verb[-1], [], resilient_parsing=True).command.params
        options = {parameter.opts[0]: parameter for parameter in parameters if parameter.opts[0].startswith("-")}
        words = [
            *verb,
            *(
                draw.choice(["run", "model", "corpus", "text.jsonl", draw.choice(HOSTILE_WORDS)])
                for _ in range(draw.randint(0, 2))
            ),
        ]
        if "--corpus" in options:
            words += ["--corpus", "corpus"]
        for name in draw.sample(sorted(options), min(len(options), draw.randint(0, 3))):
            words += [name] if options[name].is_flag else [name, draw.choice(HOSTILE_WORDS)]
        if (problem := run(words, place).problem((0, 1, 2))) is not None:
            problems.append(problem)
    report(problems)


def test_numbers_that_are_not_finite_in_weights_are_refused(contextwise, folder: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(folder / "model", tmp_path / "model"))
    weights = load_file(model / "model.safetensors")
    weights["transformer.wte.weight"][3, 3] = np.nan
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    for command in ("generate model the", f"evaluate model --corpus {folder / 'corpus'}"):
        contextwise.refused(command, "not finite")
