"""Every write may fail: one sentence, what was there is unchanged, and the next call succeeds; so after a power failure."""

import inspect
import json
import os
import random
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from contextwise import cli
from contextwise.base.files import PARTIAL
from contextwise.cli.commands import groups, points, verb_of
from contextwise.data.sources import stdlib
from contextwise.experiments import demo
from contextwise.experiments.trial import trial
from faults import POWER_FAILS, Disk, fresh, no_file_above, tree, until_power_fails
from golden import TIMES
from longtasks_files import longbench_line
from processes import _FORKS
from sentence_models import cue_model, make_corpus, save, sentence_model, write_text_encoder
from small import recipe_values, save_model, small_gpt2, write_documents, write_rows
from sweeping import sweep_values
from synthetic_sweep import write_sweep

SAME_BYTES = (
    "old/stopped/model/",
    "out/corpus/",
    "run/model/",
    "out/v.npy",
    "out/c.npy",
    "out/shared/",
    "out/recipes/",
)
"""Files that two runs of a command write alike; others hold times."""
COMMANDS = {
    "prepare": "prepare text.jsonl --tokenizer train:300 --out out/corpus",
    "prepare again": "prepare text.jsonl --tokenizer train:300 --out old/corpus --overwrite",
    "train": "train recipe.yaml --out out/run",
    "resume": "train recipe.yaml --out old/stopped",
    "evaluate": "evaluate model --corpus old/corpus --limit 2 --out out/loss",
    "evaluate again": "evaluate model --corpus old/corpus --limit 2 --out old/loss --overwrite",
    "curve": "curve model --corpus old/corpus --limit 2 --out out/curve",
    "embed": "model embed model lines.txt --out out/v.npy",
    "embed-contexts": "model embed-contexts sentences/cue contexts.jsonl --out out/c.npy",
    "export": "export model --out out/shared",
    "report": "report old/run --out out/report.html",
    "report again": "report old/run --out old/report.html",
    "compare": "compare old/run model --corpus old/corpus --out out/compared.json --html out/compared.html",
    "decide": "decide losses.jsonl --out out/decision",
    "trial": "trial trial.yaml --out out/trial",
    "sweep": "plan sweep sweep.yaml --out out/sweep",
    "transfer": "plan transfer recipe.yaml --widths 16,32 --factors 0.5,1,2 --seeds 2 --to 64 --out out/transfer",
    "budget": "plan budget old/sweep --table out/table.json",
    "recipes": "recipes --copy out/recipes",
    "demo": "demo --quick --out out/demo",
    "reproduce": "reproduce paper/table --recipes recipes --out out/reproduced",
    "answers": "measure answers model questions.jsonl --max-new-tokens 2 --out out/result",
    "attention": "measure attention model --text lines.txt --out out/page.html --csv out/numbers",
    "causality": "measure causality model --out out/result",
    "entropy": "measure entropy model --corpus old/corpus --contexts 4,8 --samples 50 --density-samples 4 --out out/result",
    "evaluate-metadata": "measure evaluate-metadata model title --corpus old/corpus --context 32 --limit 2 --out out/result",
    "forgetting": "measure forgetting model old/run --old old/corpus --new old/other --limit 2 --out out/forgetting.json",
    "infill": "measure infill old/filler code.jsonl --limit 2 --max-new-tokens 2 --out out/result",
    "longbench": "measure longbench model hotpotqa.jsonl --visible 20 --limit 1 --new-tokens 2 --out out/result",
    "needles": "measure needles long --length 160 --masked 120,140 --samples 2 --out out/result",
    "objectives": "measure objectives old/run --out out/objectives.json",
    "rescore": "measure rescore sentences/lm lists.jsonl --out out/result",
    "ruler": "measure ruler long --tasks fwe --length 120 --visible 20 --samples 2 --no-example --out out/result",
    "sentences": "measure sentences sentences/lm --corpus sentences/corpus --split train --limit 2 --out out/result",
    "tasks": "measure tasks long mine --include-path tasks --out out/result",
}
"""Commands of all verbs that write a file; a new verb comes here too."""
READING = {
    "corpus": "corpus old/corpus",
    "fill": "model fill old/filler --prefix 'def one' --suffix pass --max-new-tokens 2",
    "generate": "generate model 'a b' --max-new-tokens 2",
    "parameters": "model parameters recipe.yaml",
    "verify": "model verify old/run",
}
"""Commands of the verbs that write nothing; ``model serve`` does not end."""
LINES = COMMANDS | READING
LONG = ("trial", "sweep", "transfer", "demo")
SLOW = (
    *LONG,
    "reproduce",
    "curve",
    "attention",
    "entropy",
    "tasks",
    "recipes",
)  # a curve is written as an evaluation is
MARKS = dict.fromkeys(SLOW, pytest.mark.slow)
MANY = [pytest.param(name, marks=MARKS.get(name, ())) for name in COMMANDS]
POWER = ("prepare", "train", "report again")
"""Commands whose power fails in each test run: they write a folder, a run and a file. A process of its own takes seconds."""

AT_ONCE = ("prepare", "train", "evaluate", "decide")
"""Commands of which three are started at once in each test run."""


@pytest.fixture(scope="module", autouse=True)
def small_demo() -> Iterator[None]:
    """A demo of seconds, on short files, with as many steps each time."""
    short = [(name, path) for name, path in stdlib.stdlib_files() if path.stat().st_size < 1000]
    settings = ("tokens=128", "seeds=2", "recipe.data.context=16", "recipe.training.tokens_per_step=64")
    shape = {"layers": 1, "width": 16, "heads": 2}
    settings += tuple(f"recipe.model.{name}={value}" for name, value in shape.items())
    small = replace(demo.QUICK, trial=settings, documents=24, held_out=0.5, vocabulary=300)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stdlib, "stdlib_files", lambda: short)
        patch.setattr(demo, "QUICK", small)
        patch.setattr(demo, "KNOWN", "a-model-that-is-nowhere")
        patch.setattr(trial, "seconds_per_step", lambda recipes, *_: dict.fromkeys(recipes, 1.0))
        yield


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text, a corpus, a recipe, a model, and results of earlier commands."""
    from contextwise.data import Corpus, prepare_corpus
    from contextwise.evaluation.kernel import measure
    from contextwise.evaluation.measures.loss import Loss
    from contextwise.training import Recipe, train

    folder = tmp_path_factory.mktemp("template")
    write_documents(folder / "text.jsonl", 12)
    (folder / "lines.txt").write_text("one line\nanother\n")
    prepare_corpus(folder / "text.jsonl", "bytes", folder / "old" / "corpus", validation=0.6)
    values = recipe_values(folder / "old" / "corpus", folder / "old" / "run", steps=2, save_every=1)
    values["training"] |= {"evaluate_every": 1, "log_every": 1}
    train(Recipe.model_validate(values))
    shutil.copytree(folder / "old" / "run", stopped := folder / "old" / "stopped")
    for made in (stopped / "model", stopped / "checkpoints" / "step-2"):
        shutil.rmtree(made)
    (stopped / "summary.json").unlink()
    del values["output"]
    values["data"]["corpus"] = "old/corpus"
    (folder / "recipe.yaml").write_text(yaml.safe_dump(values))
    shared = {"data": {"context": 16}, "model": {"layers": 1, "width": 16, "heads": 2}}
    shared["training"] = {"tokens_per_step": 64, "warmup_steps": 0, "evaluation_tokens": 16}
    paired = {"corpus": "old/corpus", "arms": ["gpt2", "pm"], "recipe": shared, "tokens": 128}
    paired |= {"seeds": 2, "rates": "fixed", "limit": 6}
    (folder / "trial.yaml").write_text(yaml.safe_dump(paired))
    sweep = sweep_values(Path("old/corpus"), Path("unused"), grid={"data.context": [16], "training.steps": [4]})
    (folder / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    parity = {"bits": 8, "tasks": 10, "first": 4, "shortest": 2, "validation_samples": 16}
    mlp = {"family": "parity_mlp", "width": 8, "feature_size": 4}
    schedule = {"steps": 2, "evaluate_every": 2, "save_every": 1, "examples_per_step": 4}
    trained = {"data": {"synthetic": parity}, "model": mlp, "training": schedule}
    settings = {"name": "one", "tolerance": 10, "contexts": [3], "samples": 1000, "recipe": trained}
    printed = {"bits": 8, "tasks": 10, "contexts": [3], "model": [0.6], "minimum": [0.6]}
    item = {"title": "A table", "source": "a paper", "measure": "parity_table", "printed": printed}
    item["scales"] = {"tiny": {"machine": "one CPU thread", "settings": settings}}
    (folder / "recipes" / "paper").mkdir(parents=True)
    (folder / "recipes" / "paper" / "table.yaml").write_text(yaml.safe_dump(item))
    save_model(folder / "model", small_gpt2())
    corpus = Corpus.open(folder / "old" / "corpus", "validation")
    measure(folder / "model", Loss(limit=1), corpus, out=folder / "old" / "loss")
    (folder / "old" / "report.html").write_text("an older page")
    write_sweep(folder / "old" / "sweep", sizes=["pico", "nano"], contexts=[64, 128, 256], steps=200, measurements=4)
    prepare_corpus(write_documents(folder / "other.jsonl", 12, 1), "bytes", folder / "old" / "other", validation=0.6)
    filler = recipe_values(folder / "old" / "corpus", folder / "old" / "filler", steps=2, evaluate_every=0)
    filler |= {"objective": "infilling", "model": {"layers": 1, "width": 32, "heads": 2}}
    train(Recipe.model_validate(filler))
    save_model(folder / "long", small_gpt2(positions=512))
    write_measured(folder)
    return folder


def write_measured(folder: Path) -> None:
    """Inputs of the measures that read more than a corpus."""
    sentences = folder / "sentences"
    sentences.mkdir()
    make_corpus(sentences)
    save(cue_model(write_text_encoder(sentences / "bert")), sentences / "cue")
    save(sentence_model(), sentences / "lm")
    write_rows(folder / "contexts.jsonl", [{"title": "Oil"}, {}])
    write_rows(folder / "lists.jsonl", [{"id": i, "candidates": ["Oil rises.", "Oil falls."]} for i in range(3)])
    write_rows(folder / "code.jsonl", [{"text": "def one():\n    return 1\n\nprint(one())\n"}] * 4)
    turns = {"category": "writing", "turns": ["Say it.", "Again."]}
    write_rows(folder / "questions.jsonl", [{"question_id": i, **turns} for i in range(2)])
    write_rows(folder / "hotpotqa.jsonl", [longbench_line(i) for i in range(2)])
    runs = [(arm, seed, number) for arm in "ab" for seed in range(3) for number in range(6)]
    write_rows(
        folder / "losses.jsonl",
        (
            {
                "arm": arm,
                "seed": seed,
                "document": number,
                "tokens": 9,
                "nats": 20.0 + number + seed / 9 + (arm == "b") / 2,
            }
            for arm, seed, number in runs
        ),
    )
    (folder / "tasks").mkdir()
    write_rows(folder / "tasks" / "mine.jsonl", [{"text": f"a {word}"} for word in ("b", "c", "d")])
    task = {"task": "mine", "dataset_path": "json", "output_type": "loglikelihood_rolling", "test_split": "train"}
    task |= {"doc_to_text": "", "doc_to_target": "{{text}}", "metric_list": [{"metric": "word_perplexity"}]}
    task["dataset_kwargs"] = {"data_files": {"train": "tasks/mine.jsonl"}}
    (folder / "tasks" / "mine.yaml").write_text(yaml.safe_dump(task))


def chosen(name: str, count: int, number: int, every: bool) -> list[int]:
    """The operations that fail: all, or some drawn ones, the same in each run; of long commands 12 instead of all."""
    number = number if not every else 12 if name in LONG else count
    return sorted(random.Random(count).sample(range(1, count + 1), min(number, count)))


class Whole(NamedTuple):
    """An undisturbed command: the files after it, their sizes, its numbers, and the numbers of its operations."""

    files: dict[str, str]
    sizes: list[int]
    numbers: dict[str, Any]
    operations: int
    readings: int


@pytest.fixture(scope="module")
def wholes() -> dict[str, Whole]:
    """The undisturbed commands so far, by name."""
    return {}


@pytest.fixture
def whole(contextwise: Callable, template: Path, tmp_path: Path, name: str, wholes: dict[str, Whole]) -> Whole:
    """The undisturbed command of a test."""
    if name not in wholes:
        counts: list[int] = []
        for reads in (True, False):
            folder = contextwise.folder = fresh(template, tmp_path / "whole")
            with Disk(folder, reads=reads).installed() as disk:
                status, _, errors = contextwise(LINES[name])
            assert status == 0, errors
            counts.append(len(disk.operations))
        sizes = sorted({path.stat().st_size for path in folder.rglob("*") if path.is_file()})
        wholes[name] = Whole(tree(folder), sizes, numbers(folder), counts[1], counts[0])
    return wholes[name]


def numbers(folder: Path) -> dict[str, Any]:
    """The summaries in a folder, without times, machines and the folder's own path."""
    dropped = {*TIMES, "sha256", "digest", "hardware"}
    summaries = {path: json.loads(path.read_text().replace(str(folder), "")) for path in folder.rglob("summary.json")}
    return {
        path.relative_to(folder).as_posix(): {name: value for name, value in summary.items() if name not in dropped}
        for path, summary in summaries.items()
    }


def same(files: dict[str, str], expected: dict[str, str]) -> None:
    """The same files, of the same content where it does not depend on the time."""
    assert files.keys() == expected.keys()
    for name in files:
        if any(part in name for part in SAME_BYTES):
            assert files[name] == expected[name], name


def finished(contextwise: Callable, folder: Path, command: str, expected: dict[str, str], outcome: tuple) -> None:
    """After a command that may have failed: one sentence, nothing lost or left over, and the same command succeeds."""
    status, _, errors = outcome
    lines = [line for line in errors.splitlines() if line.startswith("error: ")]
    allowed = (0, 1, 2) if command.startswith("plan sweep") else (0, 2)  # 1: the sweep ended, but a run of it failed
    assert status in allowed and "Traceback" not in errors and "error: unexpected" not in errors, errors
    if status:
        assert len(lines) == 1, errors
        assert not [path for path in folder.rglob("*") if PARTIAL in path.name], errors
        status, _, errors = contextwise(command)
        assert status == 0 or "already exists" in errors, errors  # it had been written
    same(tree(folder), expected)


@pytest.mark.long
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", MANY)
def test_every_operation_on_files_may_fail(
    contextwise, template: Path, tmp_path: Path, whole: Whole, name: str, every: bool
) -> None:
    command, before = COMMANDS[name], tree(template)
    for number in chosen(name, whole.operations, 2, every):
        for stays in (False, True) if every else (bool(number % 2),):
            folder = contextwise.folder = fresh(template, tmp_path / "faulty")
            with Disk(folder, number, stays).installed() as disk:
                outcome = contextwise(command)
            failed = disk.operations[number - 1]
            # A single file is replaced, and cannot be had back, when the folder is synced; a run that resumes has gone on.
            if outcome[0] and (name, failed) != ("report again", "fsync /old") and name != "resume":
                now = tree(folder)
                assert {file: now.get(file) for file in before} == before, failed
            finished(contextwise, folder, command, whole.files, outcome)


@pytest.mark.long
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [*MANY, *READING])
def test_the_disk_may_fail_once(
    contextwise, template: Path, tmp_path: Path, whole: Whole, name: str, every: bool
) -> None:
    """At any reading, listing, writing or syncing: a command that ends well has the result of an undisturbed one."""
    command = LINES[name]
    for number in chosen(name, whole.readings, 3, every):
        folder = contextwise.folder = fresh(template, tmp_path / "faulty")
        with Disk(folder, number, reads=True).installed() as disk:
            outcome = contextwise(command)
        finished(contextwise, folder, command, whole.files, outcome)
        assert numbers(folder) == whole.numbers, disk.operations[number - 1]


def test_every_verb_has_its_command_here() -> None:
    """Those that write nothing have no option that names a file to write."""
    verbs = {typed: point.value for typed, point in points().items()}
    ours = {
        name: {verbs[verb_in(line)] for line in lines.values()} for name, lines in (("w", COMMANDS), ("r", READING))
    }
    assert set(verbs.values()) == ours["w"] | ours["r"] | {verbs["model serve"]}
    assert not ours["w"] & ours["r"]
    for line in READING.values():
        found = verb_of(verb_in(line))
        assert found and not {"out", "csv", "html", "table", "copy"} & set(inspect.signature(found[1]).parameters)


def verb_in(line: str) -> str:
    words = line.split()
    return " ".join(words[:2]) if words[0] in groups() else words[0]


@pytest.mark.long
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", MANY)
def test_no_file_may_grow(contextwise, template: Path, tmp_path: Path, whole: Whole, name: str, every: bool) -> None:
    command, before = COMMANDS[name], tree(template)
    limits = sorted({limit for size in whole.sizes for limit in (size - 1, size // 2) if limit >= 0})
    limits = limits if every and name not in LONG else [40, 3000]
    for limit in limits:
        folder = contextwise.folder = fresh(template, tmp_path / "faulty")
        with no_file_above(limit):
            outcome = contextwise(command)
        if outcome[0] and name != "resume":
            now = tree(folder)
            assert {file: now.get(file) for file in before} == before, limit
        finished(contextwise, folder, command, whole.files, outcome)


@pytest.mark.long
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name",
    [
        name if name in POWER else pytest.param(name, marks=[pytest.mark.slow, MARKS.get(name, pytest.mark.slow)])
        for name in COMMANDS
        if name != "demo"  # whose size the process does not know
    ],
)
def test_after_a_power_failure_the_same_command_succeeds(
    contextwise, template: Path, tmp_path: Path, whole: Whole, name: str, every: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = COMMANDS[name]
    for number in chosen(name, whole.operations, 1, every):
        monkeypatch.chdir(tmp_path)  # the folder of the command before this one is removed
        folder = contextwise.folder = fresh(template, tmp_path / "faulty")
        process = _FORKS.Process(target=until_power_fails, args=(folder, shlex.split(command), number))
        process.start()
        process.join()
        assert process.exitcode == POWER_FAILS
        status, _, errors = contextwise(command)
        assert status == 0, errors
        same(tree(folder), whole.files)


def run_here(folder: Path, words: list[str], log: Path) -> None:
    """A command in a process of its own, whose messages go into a file."""
    for standard in (1, 2):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), standard)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    os.chdir(folder)
    sys.argv = ["contextwise", *words]
    cli.main()


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [name if name in AT_ONCE else pytest.param(name, marks=pytest.mark.slow) for name in COMMANDS if name != "demo"],
)
def test_three_at_once_have_one_result(template: Path, tmp_path: Path, whole: Whole, name: str) -> None:
    """One does the work, or they share it; one that ends without the result says that another process has it."""
    folder, words = fresh(template, tmp_path / "shared"), shlex.split(COMMANDS[name])
    logs = [tmp_path / f"log {number}" for number in range(3)]
    processes = [_FORKS.Process(target=run_here, args=(folder, words, log)) for log in logs]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    texts = [log.read_text() for log in logs]
    assert 0 in [process.exitcode for process in processes], texts
    for process, text in zip(processes, texts, strict=True):
        assert "Traceback" not in text and "unexpected" not in text, text
        assert process.exitcode == 0 or (process.exitcode == 2 and ("another process" in text or "exists" in text)), (
            text
        )
    assert not [path for path in folder.rglob("*") if PARTIAL in path.name]
    same(tree(folder), whole.files)
    assert numbers(folder) == whole.numbers
