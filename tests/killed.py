"""Runs and commands that are killed at a drawn moment and started again: the cases, and what must be equal afterwards.

Each case is a kind of training, or a command, a signal, and a moment: the nth event of a phase (saving, pruning, …). An
event is an operation on files or a forward pass; a killed write leaves half of what it writes.
As a script, ``killed.py --seed S --cases N`` draws cases, prints those that fail, and how many held.
"""

import argparse
import contextlib
import copy
import gc
import importlib
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import yaml

import golden
import writing_commands
from contextwise.cli.commands import groups
from faults import Disk
from shipped import ALL_FILES, RUNS

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
OPTIMIZERS = ("adamw", "muon")
PHASES = (
    "starting", "first step", "between micro-batches", "validating", "appending", "saving", "pruning", "exporting", "finishing"
)  # fmt: skip
ANY = "any"
"""In place of a phase: an event of any."""
LIMIT = 120
"""Seconds after which a command counts as hanging."""


class Case(NamedTuple):
    """A kind of training or a command, killed once; ``draw`` in [0, 1) chooses one of the events of the phase."""

    kind: str
    signal: signal.Signals
    phase: str
    draw: float


# ---- kinds of training ----


def _tiny(values: dict[str, Any], optimizer: str, **changes: Any) -> dict[str, Any]:
    """The recipe with 6 steps of two micro-batches, which saves, prunes, logs and validates."""
    training = values["training"]
    lengths = ("tokens", "epochs", "warmup_steps", "save_every", "log_every", "evaluate_every", "evaluation_tokens")
    kept = {name: value for name, value in training.items() if name not in lengths}
    by_examples = "examples_per_step" in kept or values.get("objective") == "sentence"
    context = values["data"].get("context", 32)
    kept |= {
        "steps": 6,
        "warmup_steps": 1,
        "save_every": 2,
        "log_every": 1,
        "evaluate_every": 3,
        "optimizer": optimizer,
    }
    kept |= {"examples_per_step": 8} if by_examples else {"tokens_per_step": 4 * context}
    synthetic = "synthetic" in values["data"]
    whole = _name(values.get("objective")) == "contrastive"
    kept |= {} if synthetic or whole else {"micro_batch_tokens": (4 if by_examples else 2) * context}
    kept |= {} if synthetic else {"evaluation_tokens": 8 * context}
    kept |= {"curve_every": 3} if "curve_every" in kept else {}
    if whole:
        kept.pop("micro_batch_tokens", None)
    return values | {"training": kept | changes}


def _name(objective: Any) -> Any:
    return objective["name"] if isinstance(objective, dict) else objective


def _shrunk(values: dict[str, Any], inputs: Path) -> dict[str, Any]:
    """A recipe of the package on the small corpora, from the small models."""
    values = copy.deepcopy(values)
    model, objective = values.get("model", {}), _name(values.get("objective"))
    news = objective in ("sentence", "next_sentence", "sentence_order")
    values["data"] = {
        "corpus": str(inputs / ("news" if news else "corpus")),
        "context": {"ul2": 128, "instruction": 320}.get(objective, 32),
    }
    if "replay" in (old := ALL_FILES.get(values.pop("path", None), values)["data"]):
        values["data"]["replay"] = {"corpus": str(inputs / "old"), "share": 0.25}
    if "cue" in model:
        stage, proxy = model["cue"]["stage"], "text_encoder" in model["cue"] and "start" in model["cue"]
        own = {"start": str(inputs / ("proxy" if proxy else "joint"))} if "start" in model["cue"] else {}
        small = {"sentence_encoder": str(inputs / ("lstm" if stage == "swap" else "lm"))}
        small |= {"text_encoder": str(inputs / "encoder"), "autoencoder": str(inputs / "unigrams")}
        small |= {"decoder_layers": 1, "decoder_heads": 2, "context_layers": 1, "context_heads": 2}
        model["cue"] = {name: small.get(name, value) for name, value in model["cue"].items()} | own
        for name in ("width", "context_feed_forward"):
            model["cue"].pop(name, None)
        if "contexts" in old:
            values["data"]["contexts"] = {"columns": ["title", "tags"], "previous_sentence": True}
    elif "pretrained" in model or objective == "instruction":
        model["pretrained"] = str(inputs / ("long" if objective == "instruction" else "causal"))
    elif model.get("family") == "unigram_autoencoder":
        model = {"family": "unigram_autoencoder", "width": 4}
    else:
        for name in ("size", "vocab_size", "feed_forward"):
            model.pop(name, None)
        model |= {"layers": 2, "width": 32, "heads": 1 if model.get("family") == "lstm" else 2}
        if "multi_token" in model:
            model["multi_token"] = model["multi_token"] | {"future_tokens": 2}
    if objective == "instruction":
        values["data"]["corpus"] = str(inputs / "instructions")
    return values | {"model": model}


def trainings(inputs: Path) -> dict[str, dict[str, Any]]:
    """Name -> recipe as values: of each kind of model, objective, data and schedule, and of all recipes of the package."""
    recipes = golden.recipes(inputs)
    for name, values in recipes.items():
        changes: dict[str, Any] = {"branches": [6], "steps": 8} if name == "trunk" else {}
        recipes[name] = _tiny(values, values["training"].get("optimizer", "adamw"), **changes)
    plain = recipes["causal"]
    recipes["patience"] = _tiny(plain, "adamw", patience=1, learning_rate=3.0, evaluate_every=1, steps=12)
    recipes["workers"] = _tiny(plain, "adamw", workers=2)
    recipes["dropped"] = _tiny(plain, "adamw", keep_checkpoints=1, save_every=1)
    for name, source, part, section, setting in (
        ("dropout", "cue-joint", "model", "cue", {"context_dropout": 0.3}),
        ("samples", "parity-mlp", "data", "synthetic", {"samples": 20}),
    ):
        recipes[name] = copy.deepcopy(recipes[source])
        recipes[name][part][section] |= setting
    for path in RUNS:
        values = _shrunk(ALL_FILES[path] | {"path": path}, inputs)
        recipes[f"{path.parent.name}/{path.stem}"] = _tiny(values, values["training"].get("optimizer", "adamw"))
    every = {}
    for name, values in recipes.items():
        for optimizer in OPTIMIZERS:
            training = values["training"] | {"optimizer": optimizer}
            if optimizer == "adamw":
                training = {key: value for key, value in training.items() if not key.startswith("muon")}
            if training.get("trunk") and optimizer == "muon":
                training["trunk"] += "-muon"
            every[f"{name} {optimizer}"] = values | {"name": name.replace("/", "-"), "training": training}
    return every


STARTS = {"causal adamw": "causal", "trunk adamw": "trunk", "trunk muon": "trunk-muon"}
STARTS |= {f"cue-{name} adamw": name for name in ("lm", "lstm", "unigrams", "joint", "proxy")}
"""Kind -> folder of a run from which others start, in order."""


def write_inputs(folder: Path, recipes: dict[str, dict[str, Any]], kinds: list[str]) -> None:
    """Corpora, an encoder, and the runs of :data:`STARTS` from which runs of these kinds start."""
    from contextwise.data import prepare_corpus
    from contextwise.training import Recipe, train
    from small import save_model, small_gpt2

    golden.write_inputs(folder)
    rows = [{"instruction": f"Say {n}.", "input": "", "output": f"It is {n * n}."} for n in range(200)]
    (folder / "alpaca.json").write_text(json.dumps(rows))
    prepare_corpus(f"alpaca:{folder}/alpaca.json", "bytes", folder / "instructions", validation=0.2)
    save_model(folder / "long", small_gpt2(positions=320))
    needed = list(kinds)
    for name, output in reversed(STARTS.items()):
        if any(f"{folder / output}'" in str(recipes[each]) for each in needed):
            needed.append(name)
    for name, output in STARTS.items():
        if name in needed:
            train(Recipe.model_validate(recipes[name] | {"output": str(folder / output)}))
            if not output.startswith("trunk"):
                shutil.rmtree(folder / output / "checkpoints")


# ---- events ----


class Events:
    """Counts the events of each phase, and sends this process a signal at one of them."""

    def __init__(self, at: tuple[str, int] | None = None, number: signal.Signals = signal.SIGKILL) -> None:
        self.at, self.number = at, number
        self.seen: Counter[str] = Counter()
        self.phase, self.process = "starting", os.getpid()

    def happens(self, phase: str | None = None, half: Callable[[], Any] = lambda: None) -> None:
        for name in (phase or self.phase, ANY):
            self.seen[name] += 1
            if (name, self.seen[name]) == self.at and self.process == os.getpid():
                if self.number == signal.SIGKILL:
                    half()
                os.kill(os.getpid(), self.number)

    def within(self, phase: str, function: Callable[..., Any], after: str = "") -> Callable[..., Any]:
        """The function, whose operations on files are events of a phase."""

        def call(*arguments: Any, **options: Any) -> Any:
            before, self.phase = self.phase, phase
            try:
                return function(*arguments, **options)
            finally:
                self.phase = after or before

        return call

    @contextlib.contextmanager
    def watched(self, root: Path) -> Iterator[None]:
        """Count while the block runs."""
        from contextwise.base.runs import RunFolder
        from contextwise.training import checkpoints, run
        from contextwise.training.trainer import PretrainingTrainer as Trained

        class Watched(Disk):
            def operation(disk, kind: str, path: Any, half: Callable[[], Any] = lambda: None) -> None:
                if os.path.abspath(os.fsdecode(path)).startswith(disk.root):  # noqa: PTH100
                    self.happens(None, half)

        step, loss = Trained.training_step, Trained.compute_loss
        passes = 0

        def training_step(trainer: Any, *arguments: Any) -> Any:
            nonlocal passes
            self.phase, passes = "training", 0
            if trainer.state.global_step == 0:
                self.happens("first step")
            return step(trainer, *arguments)

        def compute_loss(trainer: Any, model: Any, *arguments: Any, **options: Any) -> Any:
            nonlocal passes
            passes += model.training
            if not model.training:
                self.happens("validating")
            elif passes > 1 or trainer.state.global_step:
                self.happens("between micro-batches")
            return loss(trainer, model, *arguments, **options)

        with contextlib.ExitStack() as stack:
            for owner, name, function in (
                (Trained, "training_step", training_step),
                (Trained, "compute_loss", compute_loss),
                (Trained, "_save_checkpoint", self.within("saving", Trained._save_checkpoint)),
                (checkpoints, "prune_run", self.within("pruning", checkpoints.prune_run)),
                (RunFolder, "append_metrics", self.within("appending", RunFolder.append_metrics)),
                (run, "export_model", self.within("exporting", run.export_model, "finishing")),
            ):
                stack.enter_context(mock.patch.object(owner, name, function))
            disk = Watched(root, removals=True)
            disk._fsync = lambda _: None  # no case survives a power failure
            stack.enter_context(disk.installed())
            yield


# ---- processes ----


def _forked(function: Callable[[], None], log: Path) -> int:
    """Call a function in a fork of this process; the number of its process."""
    process = os.fork()
    if process == 0:
        status = 1
        try:
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(output, 1)
            os.dup2(output, 2)
            function()
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    return process


def _in_child(function: Callable[[], None], log: Path) -> int:
    """The same; wait for its end, and give the exit status, negative after a signal."""
    process = _forked(function, log)
    limit = time.monotonic() + LIMIT
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > limit:
            os.kill(process, signal.SIGKILL)
        time.sleep(0.002)


def _command(
    words: list[str], folder: Path, events: Events | None = None, after: Callable[[], None] = lambda: None
) -> None:
    """Type a command in a folder."""
    from contextwise import cli

    os.chdir(folder)
    sys.argv = ["contextwise", *words]
    try:
        with events.watched(folder) if events else contextlib.nullcontext():
            cli.main()
    finally:
        after()


class Whole(NamedTuple):
    """An undisturbed command: what it leaves, the events of each phase, and the exit status of the same command after it."""

    state: dict[str, Any]
    events: dict[str, int]
    again: int


class Bench:
    """Runs cases in forks of this process, which imports what the commands import."""

    def __init__(
        self, folder: Path, template: Path, words: dict[str, list[str]], log: Callable[[str], None] = print
    ) -> None:
        self.folder, self.template, self.words, self.log = folder, template, words, log
        self.wholes: dict[str, Whole] = {}
        self.tried: dict[str, Any] = {}  # modules that were imported, or could not be
        folder.mkdir(parents=True, exist_ok=True)
        groups()  # reads the entry points of all distributions, once for all forks

    def fresh(self, name: str) -> Path:
        """A new copy of the template."""
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.template, folder)
        return folder

    def whole(self, kind: str) -> Whole:
        """The undisturbed command."""
        if kind not in self.wholes:
            folder, notes, events = self.fresh("work"), self.folder / "notes.json", Events()

            def note() -> None:
                notes.write_text(json.dumps([events.seen, sorted(sys.modules)]))

            status = _in_child(lambda: _command(self.words[kind], folder, events, note), self.folder / "log")
            if status:
                raise RuntimeError(f"{kind} fails: {(self.folder / 'log').read_text()}")
            seen, modules = json.loads(notes.read_text())
            self._import(modules)
            gc.collect()
            gc.freeze()  # else each fork copies the pages that its first collection touches
            after = state(folder)
            again = 0  # a finished run is found
            if self.words[kind][0] != "train":
                again = _in_child(lambda: _command(self.words[kind], folder), self.folder / "log")
            self.wholes[kind] = Whole(after, seen, again)
        return self.wholes[kind]

    def _import(self, modules: list[str]) -> None:
        """Import what the command has imported, so that the forks have it."""
        libraries = (
            "contextwise",
            "transformers",
            "safetensors",
            "torch",
            "scipy",
            "rich",
            "datasets",
            "sklearn",
            "lm_eval",
        )
        for name in modules:
            if name.startswith(libraries) and name not in sys.modules and name not in self.tried:
                self.tried[name] = None
                with contextlib.suppress(Exception):
                    importlib.import_module(name)

    def problem(self, case: Case) -> str | None:
        """What is wrong after a case; None if it held."""
        whole = self.whole(case.kind)
        at = case.phase, 1 + int(case.draw * whole.events[case.phase])
        folder, log, words = self.fresh("work"), self.folder / "log", self.words[case.kind]
        status = _in_child(lambda: _command(words, folder, Events(at, case.signal)), log)
        printed = log.read_text()
        stopped = {signal.SIGKILL: -9, signal.SIGTERM: 143, signal.SIGINT: 130}[case.signal]
        if status != stopped and not (status == 0 and case.signal != signal.SIGKILL and _late(case.phase)):
            return f"{at}: exit status {status}, not {stopped}: {printed[-600:]}"
        if status > 0 and ("stopped" not in printed or "Traceback" in printed):
            return f"{at}: no sentence about the stop: {printed[-600:]}"
        status = _in_child(lambda: _command(words, folder), log)
        now = state(folder)
        # What was complete when the process was killed may be refused as any other that exists.
        if status not in (0, whole.again if now == whole.state else 0):
            return f"{at}: the same command again: exit status {status}: {log.read_text()[-900:]}"
        if now != whole.state:
            names = [name for name in {*now, *whole.state} if now.get(name) != whole.state.get(name)]
            shown = [_difference(name, whole.state, now) for name in sorted(names)[:8]]
            return f"{at}: not the same: {'; '.join(shown)}"
        return None


def _late(phase: str) -> bool:
    """Whether a stop in a phase may come too late to stop the command, which then ends as usual."""
    return phase in (ANY, "exporting", "finishing", "saving", "pruning", "appending", "validating")


def _difference(name: str, a: dict[str, Any], b: dict[str, Any]) -> str:
    if name not in a:
        return f"{name} is left over"
    if name not in b:
        return f"{name} is missing"
    x, y = a[name], b[name]
    while isinstance(x, dict | list) and type(x) is type(y) and len(x) == len(y):
        keys = x if isinstance(x, dict) else range(len(x))
        key = next((key for key in keys if isinstance(x, list) or key in y if x[key] != y[key]), None)
        if key is None:
            break
        name, x, y = f"{name}:{key}", x[key], y[key]
    return f"{name} differs: {str(x)[:200]} / {str(y)[:200]}"


def state(folder: Path) -> dict[str, Any]:
    """Path -> content of every file and folder below a folder; hashes of bytes, and JSON without times."""
    import hashlib

    result: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_dir():
            result[name] = "folder"
        elif path.suffix in (".json", ".jsonl"):
            values = [json.loads(line) for line in path.read_text().splitlines()] if path.suffix == ".jsonl" else None
            result[name] = _timeless(json.loads(path.read_text()) if values is None else values)
        elif path.suffix in (".safetensors", ".npy", ".bin", ".parquet", ".arrow", ".csv"):
            result[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            result[name] = "file"
    return result


# A checkpoint of a stop in a validation keeps that this is to be repeated, also after that is done.
_NOT_COMPARED = golden.TIMES | {"tstamp", "sha256", "bytes", "output", "path", "date"}


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: _timeless(each) for name, each in value.items() if name not in _NOT_COMPARED and "second" not in name
        }
    return [_timeless(each) for each in value] if isinstance(value, list) else value


# ---- commands ----

OTHERS = ("train", "resume", "demo")
"""Commands that have cases of their own, or are made of other commands."""


class _Run:
    """In place of a training process of a sweep: a fork of this process, which ends with it."""

    def __init__(self, folder: Path, run: str, environment: Any) -> None:
        from contextwise.experiments.executors import _die_with_parent

        log = folder / "logs" / f"{run}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        words = ["train", str(folder / "recipes" / f"{run}.yaml"), "--out", str(folder / "runs" / run)]

        def train() -> None:
            _die_with_parent()
            _command(words, Path.cwd())

        self.process = _forked(train, log)

    def poll(self) -> Any:
        from contextwise.experiments.executors import Outcome

        ended, status = os.waitpid(self.process, os.WNOHANG)
        return Outcome(os.waitstatus_to_exitcode(status), "") if ended else None

    def stop(self) -> None:
        os.kill(self.process, signal.SIGTERM)

    def wait(self) -> Any:
        os.waitpid(self.process, 0)


def command_bench(folder: Path, pattern: str = "") -> Bench:
    """A bench of the commands that write, but training, whose names match a regular expression, in a new folder."""
    template = folder / "template"
    template.mkdir(parents=True)
    writing_commands.write_template(template)
    commands = {name: words.split() for name, words in writing_commands.COMMANDS.items() if re.search(pattern, name)}
    return Bench(folder / "bench", template, {name: words for name, words in commands.items() if name not in OTHERS})


@contextlib.contextmanager
def small_commands() -> Iterator[None]:
    """Commands of seconds."""
    from contextwise.experiments import executors
    from evals.harness.harness_sets import few_tasks

    with (
        writing_commands.small_demo(),
        mock.patch.object(executors, "RunProcess", _Run),
        mock.patch("contextwise_evals.harness.tasks.harness_tasks", few_tasks),
    ):
        yield


# ---- many cases ----


def training_bench(folder: Path, pattern: str = "") -> Bench:
    """A bench of the kinds of training whose names match a regular expression, in a new folder."""
    template = folder / "template"
    (template / "in").mkdir(parents=True)
    with contextlib.chdir(template):
        recipes = trainings(Path("in"))
        kinds = [kind for kind in recipes if re.search(pattern, kind)]
        write_inputs(Path("in"), recipes, kinds)
        words = {}
        for kind in kinds:
            file = template / f"{kind.replace('/', '-').replace(' ', '-')}.yaml"
            file.write_text(yaml.safe_dump(recipes[kind] | {"output": "run"}))
            words[kind] = ["train", file.name]
    return Bench(folder / "bench", template, words)


def drawn(kinds: list[str], phases: tuple[str, ...], count: int, seed: int) -> list[Case]:
    """Cases, each kind, signal and phase as often as the others."""
    draw = random.Random(seed)
    columns = []
    for values in (kinds, SIGNALS, phases):
        column = [values[i % len(values)] for i in range(count)]
        draw.shuffle(column)
        columns.append(column)
    return sorted((Case(*chosen, draw.random()) for chosen in zip(*columns, strict=True)), key=lambda case: case.kind)


class Report(NamedTuple):
    """How many of the cases held, those that did not, with what is wrong, and how many have no such moment."""

    held: int
    problems: list[str]
    empty: int


def hold(
    folder: Path, pattern: str, count: int, seed: int, commands: bool = False, say: Callable[[str], None] = print
) -> Report:
    """Draw cases and run them, in a new folder."""
    import torch

    torch.set_num_threads(1)
    with small_commands():
        bench = (command_bench if commands else training_bench)(folder, pattern)
        phases = (ANY,) if commands else PHASES
        held, empty, problems, begin = 0, 0, [], time.monotonic()
        for number, case in enumerate(drawn(list(bench.words), phases, count, seed), start=1):
            if not bench.whole(case.kind).events.get(case.phase):
                empty += 1
                continue
            problem = bench.problem(case)
            if problem:
                problems.append(f"{case.kind}, {case.signal.name}, {case.phase}, draw {case.draw:.4f}: {problem}")
                say(problems[-1])
            else:
                held += 1
            if number % 20 == 0:
                say(f"{number} of {count} cases, {held} held, {time.monotonic() - begin:.0f} s")
    return Report(held, problems, empty)


def hold_into(report: Path, *arguments: Any) -> None:
    """:func:`hold` in a process of its own; ``report`` gets the result."""
    multiprocessing.set_start_method("fork", force=True)  # of loaders, as in the command; this one comes from a server
    output = os.open(report.with_suffix(".log"), os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    report.write_text(json.dumps(hold(*arguments)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--kinds", default="", help="a regular expression for the names of kinds")
    parser.add_argument("--commands", action="store_true", help="cases of the other commands in place of training")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        report = hold(Path(name), arguments.kinds, arguments.cases, arguments.seed, arguments.commands)
    tried = report.held + len(report.problems)
    print(f"{report.held} of {tried} cases held; {report.empty} more have no such moment")
    sys.exit(bool(report.problems))


if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"
    main()
