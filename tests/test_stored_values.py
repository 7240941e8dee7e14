"""Files that Contextwise wrote, damaged or with hostile values: a sentence and status 2, or the rest and the bad row."""

import json
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from command_line import Contextwise
from contextwise import api, decide
from contextwise.base.files import write_json
from contextwise.base.runs import Row
from contextwise.base.schemas import Count, Number, matching, parse_json
from contextwise.experiments import cost
from contextwise.experiments.trial import Trial, load_trial
from contextwise_plan.scaling.observations import read_observations, write_table
from fuzzing import VALUES, mutated_bytes, report, run
from small import loss_rows, recipe_values, write_documents, write_rows
from synthetic_sweep import write_sweep

MEASURED = ["evaluate run --corpus corpus --context 8", "curve run --corpus corpus --context 8"]
READ = ["report run", "report run other", "compare run other", "compare --curves run other"]
USED = ["generate run the -n 3", "export run --out shared", "train run/recipe.yaml --out run", "model parameters run"]
OF_RUN = [*READ, *USED, *MEASURED]
KINDS: dict[str, tuple[list[str], list[str]]] = {
    "run": (["run/recipe.yaml", "run/*.json"], OF_RUN),
    "metrics": (["run/metrics.jsonl"], [*READ, "train run/recipe.yaml --out run"]),
    "model": (["run/model/manifest.json", "run/model/*"], [*USED, *MEASURED]),
    "result": (["run/evaluation/*/summary.json", "run/evaluation/*/manifest.json"], [*READ, *MEASURED]),
    "decision": (["decision/*.json"], ["decide losses.jsonl --out decision"]),
    "corpus": (
        ["corpus/manifest.json", "corpus/*/*"],
        ["corpus corpus", "evaluate run --corpus corpus --out new", "train half/recipe.yaml --out new"],
    ),
    "sweep": (
        ["sweep/plan.json", "sweep/sweep.yaml", "sweep/runs/*/metrics.jsonl", "sweep/runs/*/*.json"],
        ["report sweep", "plan sweep --status sweep", "plan budget sweep --budget 1e15"],
    ),
    "table": (["sweep.json"], ["report sweep.json", "plan budget sweep.json --budget 1e15"]),
    "item": (["runs/reproduce/*/*/*.json"], ["reproduce --list"]),
    "trial": (["trial/*.json", "trial/trial.yaml"], ["trial trial/trial.yaml", "trial trial/trial.yaml --dry-run"]),
}
"""Kind of a file -> patterns of its names, and commands that read it."""
SLOW = {"trial"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of each kind, as the verbs write them."""
    folder = tmp_path_factory.mktemp("stored")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_documents(Path("text.jsonl"), 30)
        api.prepare(Path("text.jsonl"), out=Path("corpus"), tokenizer="bytes", validation=0.5)
        for name, steps in (("run", 2), ("other", 2), ("half", 4)):
            values = recipe_values(Path("corpus"), Path(name), steps=steps, save_every=2, log_every=1, evaluate_every=1)
            values["model"] |= {"layers": 1, "width": 8}
            trained = api.train(values | {"name": name})
            if name != "half":
                for measure in (api.evaluate, api.curve):
                    measure(trained, "corpus", context=8)
        for path in (trained.summary_file, trained.model, trained.checkpoints / "step-4"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        decide([str(write_rows(Path("losses.jsonl"), loss_rows("ab", 4, range(8))))], out="decision")
        write_sweep(Path("sweep"), sizes=("pico", "nano"), contexts=(64, 128, 256, 512), measurements=6, noise=0.002)
        write_table(read_observations(Path("sweep")), Path("sweep.json"), Path("sweep"))
        outcome = {"title": "t", "source": "s", "scale": "tiny", "printed": {}, "supports": "", "inferred": []}
        outcome |= {"date": "2026-01-01", "environment": {}, "tables": [], "plots": [], "runs": [], "figures": {}}
        claims = [{"text": "x", "holds": True, "evidence": ""}]
        write_json(Path("runs/reproduce/contextlm/tiny/table1.json"), outcome | {"claims": claims, "seconds": 1.0})
    return folder


@pytest.fixture(scope="module")
def with_trial(made: Path) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        patch.setattr(cost, "seconds_per_step", lambda recipes, *_: dict.fromkeys(recipes, 1.0))
        recipe = {
            "model": {"layers": 1, "width": 8, "heads": 2},
            "training": {"tokens_per_step": 128, "warmup_steps": 0},
        }
        arms = {"gpt2": None, "slower": ["training.learning_rate=1e-4"]}
        values = {"arms": arms, "corpus": "corpus", "recipe": {**recipe, "data": {"context": 32}}, "tokens": 256}
        Trial(load_trial(None, values | {"rates": "fixed", "seeds": 2}, output=Path("trial"))).run()
    return made


def hostile(file: Path, draw: random.Random) -> tuple[str, bytes]:
    """What was done to a file, and its content then; of JSON, JSON Lines and YAML, single values are changed in most cases."""
    content = file.read_bytes()
    whole = {
        "truncated": content[: draw.randrange(len(content) + 1)],
        "empty": b"",
        "not UTF-8": b"\xff\xfe" + content,
        "byte order mark": b"\xef\xbb\xbf" + content,
        "nested lists": b"[" * 100_000,
        "nested objects": b'{"a":' * 5000 + b"1" + b"}" * 5000,
        "many digits": b"9" * 5000,
        "another kind": draw.choice([b"null", b"[]", b'"a"', b"{}"]),
        "bytes": mutated_bytes(content, draw),
    }
    if draw.random() < 0.15 or file.suffix not in (".json", ".jsonl", ".yaml"):
        how = draw.choice([*whole])
        return how, whole[how]
    if file.suffix == ".yaml":
        what, values = hostile_value(yaml.safe_load(content), draw)
        return what, yaml.safe_dump(values, allow_unicode=True).encode()
    if file.suffix == ".jsonl":
        lines = content.splitlines()
        at = draw.randrange(len(lines))
        what, values = hostile_value(json.loads(lines[at]), draw)
        lines[at] = dumped(values, draw)
        return f"line {at + 1}: {what}", b"\n".join(lines) + b"\n"
    what, values = hostile_value(json.loads(content), draw)
    return what, dumped(values, draw)


def dumped(values: Any, draw: random.Random) -> bytes:
    """JSON, in one of ten cases with a key twice."""
    text = json.dumps(values, default=str).encode()
    return text.replace(b"{", b'{"step": 1, "runs": 2, "measure": 3, ', 1) if draw.random() < 0.1 else text


def hostile_value(values: Any, draw: random.Random) -> tuple[str, Any]:
    """Replace, remove, negate, wrap or add one value."""
    *above, last = draw.choice(list(places(values)) or [("a",)])
    inside = values
    for key in above:
        inside = inside[key]
    old, how = inside[last] if last in inside or isinstance(inside, list) else None, draw.random()
    if how < 0.15 and isinstance(inside, dict):
        inside.pop(last, None)
        return f"without {(*above, last)}", values
    if how < 0.2 and isinstance(inside, dict):
        inside["further"] = 1
        return f"more in {above}", values
    new = draw.choice(VALUES)
    if isinstance(old, int | float) and how < 0.4:
        new = draw.choice([-old, str(old), [old], old * 10**6])
    inside[last] = {str(key): each for key, each in new.items()} if isinstance(new, dict) else new
    return f"{(*above, last)} = {str(new)[:60]!r}", values


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values inside a value; of a list, the first three."""
    if path:
        yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    for key, part in inner:
        yield from places(part, (*path, key))


def try_kinds(kinds: list[str], rounds: int, made: Path, place: Path) -> None:
    draw, problems = random.Random(f"{kinds} {rounds}"), []
    for number in range(rounds):
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(made, place)
        patterns, commands = KINDS[kinds[number % len(kinds)]]
        file = draw.choice([path for pattern in patterns for path in sorted(place.glob(pattern))])
        what, content = hostile(file, draw)
        file.write_bytes(content)
        words = draw.choice(commands)
        ended = run(words.split(), place).problem((0, 1, 2) if words.startswith("train") else (0, 2))
        if ended is not None:
            problems.append(f"{file.relative_to(place)}: {what}\n{ended}")
    report(problems)


@pytest.mark.long
@pytest.mark.parametrize("rounds", [pytest.param(11, id="slice"), pytest.param(2000, id="all", marks=pytest.mark.slow)])
def test_hostile_values_in_files(made: Path, tmp_path: Path, rounds: int) -> None:
    try_kinds([kind for kind in KINDS if kind not in SLOW], rounds, made, tmp_path / "place")


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(SLOW))
def test_hostile_values_in_files_that_training_reads(with_trial: Path, tmp_path: Path, kind: str) -> None:
    try_kinds([kind], 150, with_trial, tmp_path / "place")


@pytest.mark.parametrize("kind", sorted({*KINDS} - SLOW))
@pytest.mark.slow
def test_sound_files_are_read(made: Path, tmp_path: Path, contextwise: Contextwise, kind: str) -> None:
    contextwise.folder = Path(shutil.copytree(made, tmp_path / "place"))
    for words in KINDS[kind][1]:
        status, _, errors = contextwise(words)
        assert status == 0, errors


@pytest.mark.parametrize(
    ("text", "why"), [("[" * 100_000, "it is nested too deeply"), ("\ufeff{}", "BOM"), ("", "Expecting value")]
)
def test_json_that_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_json(text)


@pytest.mark.parametrize(
    ("form", "value", "why"),
    [
        (Count, -1, "it is -1, but must be at least 0"),
        (Count, True, "it is true, but must be a whole number"),
        (Count, 1.0, "it is 1.0, but must be a whole number"),
        (Number, "1", 'it is "1", but must be a number'),
        (Number, 1e999, "it is Infinity, but must be a finite number"),
        (dict[str, list[Count]], {"a": [1, "b"]}, 'a.1 is "b", but must be a whole number'),
        (Row, {"kind": "x", "step": 1, "tokens": 1}, "it has no seconds"),
        (Row, [], "it is [], but must be a mapping of keys to values"),
    ],
)
def test_values_that_do_not_match(form: Any, value: Any, why: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(why)}$"):
        matching(form, value)
