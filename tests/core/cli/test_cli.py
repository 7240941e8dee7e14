"""Common behaviour of all commands: quick help, exit statuses, and errors that people can read."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from command_line import Contextwise
from contextwise import cli
from contextwise.base.errors import CheckpointError, ConfigError, DataError, Interrupted, TrainingError
from contextwise.cli import commands
from contextwise.evaluation.kernel import measures

HEAVY = ("torch", "transformers", "datasets", "plotly", "scipy", "pyarrow")


COMMAND = str(Path(sys.executable).with_name("contextwise"))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(arguments, capture_output=True, text=True, timeout=120)


def test_nothing_heavy_is_imported_to_answer() -> None:
    code = (
        "import sys\nfrom contextwise.cli import main\n"
        "for arguments in ('--help',), ('--version',), (), ('generat',), ('--nonsense',):\n"
        "    sys.argv[1:] = arguments\n"
        "    try:\n        main()\n    except SystemExit:\n"
        f"        print('imported', [name for name in {('numpy', *HEAVY)} if name in sys.modules])"
    )
    lines = run(sys.executable, "-c", code).stdout.splitlines()
    assert [line for line in lines if line.startswith("imported")] == ["imported []"] * 5


@pytest.mark.parametrize("command", [[COMMAND], [sys.executable, "-m", "contextwise"]])
def test_command_and_module_are_the_same(command: list[str]) -> None:
    done = run(*command, "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"contextwise {metadata.version('contextwise')}\n", "")


@pytest.mark.parametrize(
    ("loads", "given", "policy"),
    [
        ("0.60 0.10 0.00 2/95 777", {}, "passive"),  # one other process, for half a minute
        ("1.90 1.10 0.50 1/95 777", {}, None),  # a command that has ended
        ("0.10 0.00 0.00 2/95 777", {}, None),  # an instant of other work
        ("no numbers", {}, None),
        ("0.60 0.10 0.00 2/95 777", {"OMP_WAIT_POLICY": "active"}, "active"),
        ("0.60 0.10 0.00 2/95 777", {"GOMP_SPINCOUNT": "9"}, None),
    ],
)
def test_threads_sleep_beside_other_work(loads, given, policy, tmp_path, monkeypatch) -> None:
    (tmp_path / "loadavg").write_text(loads + "\n")
    monkeypatch.setattr(cli, "LOADS", tmp_path / "loadavg")
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    cli.let_threads_sleep()
    assert os.environ.get("OMP_WAIT_POLICY") == policy
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setattr(cli, "LOADS", tmp_path / "absent")
    cli.let_threads_sleep()
    assert "OMP_WAIT_POLICY" not in os.environ


def test_a_command_beside_other_work_lets_threads_sleep(contextwise, tmp_path, monkeypatch) -> None:
    (tmp_path / "loadavg").write_text("99.0 9.0 9.0 999/9999 777\n")
    monkeypatch.setattr(cli, "LOADS", tmp_path / "loadavg")
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"):
        monkeypatch.setenv(name, "")  # so that it is as before after the test
        monkeypatch.delenv(name)
    assert contextwise("--version")[0] == 0
    assert os.environ.get("OMP_WAIT_POLICY") == "passive"


def test_a_mistyped_command_is_a_usage_error(contextwise) -> None:
    contextwise.refused("generat", "there is no verb 'generat'; did you mean 'contextwise generate'?")
    contextwise.refused("ruler", "did you mean 'contextwise measure ruler'?")
    contextwise.refused("measure ruller", "did you mean 'contextwise measure ruler'?")
    contextwise.refused("measure sweep", "did you mean 'contextwise plan sweep'?")
    contextwise.refused(
        "compare a b --unit bytes", "--unit is 'bytes', but must be one of token, byte; did you mean 'byte'?"
    )
    contextwise.refused("decide losses.csv --margin 1%", "--margin is '1%', but must be a number")
    contextwise.refused("zzz", "there is no verb 'zzz'; contextwise --help lists all")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            "curve",
            "MODEL is missing: A run, a Hugging Face model folder, or a name on the Hub; see contextwise curve -h",
        ),
        (
            "prepare x.txt --out c",
            "--tokenizer is missing: A tokenizer's folder or Hub name (NAME@REVISION), a GGUF file, smollm2, train:N (learn a "
            "byte-level BPE of N tokens), or bytes; see contextwise prepare -h",
        ),
        ("trial --budget 3", "there is no option --budget; did you mean --set KEY=VALUE? See contextwise trial -h"),
        ("curve a --corpus", "--corpus needs a value; see contextwise curve -h"),
        ("curve a b c --corpus x", "too many arguments: b c; see contextwise curve -h"),
        ("measure ruler a --overwrite=1", "--overwrite takes no value; see contextwise measure ruler -h"),
        ("trial --seed 3", "there is no option --seed; did you mean --seeds? See contextwise trial -h"),
        ("train --seed 3", "there is no option --seed; did you mean --set KEY=VALUE? See contextwise train -h"),
        (
            "evaluate --model x",
            "there is no option --model; did you mean the argument MODEL? See contextwise evaluate -h",
        ),
        ("train --corpu x", "there is no option --corpu; did you mean --corpus? See contextwise train -h"),
        ("-x", "there is no option -x; see contextwise -h"),
    ],
)
def test_a_wrong_command_line_is_one_sentence_like_any_other_bad_input(contextwise, words: str, sentence: str) -> None:
    status, output, errors = contextwise(words)
    assert (status, output, " ".join(errors.split())) == (2, "", f"error: {sentence}")
    status, output, _ = contextwise(f"{words} --json" if words != "curve a --corpus" else "curve --json a --corpus")
    assert status == 2 and json.loads(output)["error"]["exit_status"] == 2


FIRST = """demo prepare corpus recipes train decide trial compare report curve evaluate measure generate export plan reproduce
model"""


def test_the_first_help_has_a_dozen_verbs(contextwise) -> None:
    shown = contextwise("--help")[1]
    assert re.findall(r"^│ ([a-z][a-z-]+) ", shown, re.MULTILINE) == FIRST.split()
    assert max(map(len, shown.splitlines())) == 80 and "fill, parameters, serve, verify." in shown
    groups = {"plan": "sweep transfer budget", "model": "parameters verify serve embed fill"}
    for group, listed in groups.items():
        shown = contextwise(group)[1]
        assert re.findall(r"^│ ([a-z][a-z-]+) ", shown, re.MULTILINE) == listed.split()


def test_errors_name_settings_by_their_options() -> None:
    options = {"text_field": "--text-field", "label": "--label", "limit": "--limit"}
    for message, shown in {
        "limit is 0, but must be 1": "--limit is 0, but must be 1",
        "x has 2 problems: \n  - limit is 0\n  - other is 1": "x has 2 problems: \n  - --limit is 0\n  - other is 1",
        "no label; choose one with `label`": "no label; choose one with --label",
        "fix it, or set text_field to one": "fix it, or set --text-field to one",
        "limit is an unknown key; known keys are text_field": "--limit is an unknown key; known keys are text_field",
        "a/text_field.json, 'text_field' and `model` are kept": "a/text_field.json, 'text_field' and `model` are kept",
    }.items():
        assert commands.named_as_typed(message, options) == shown


def test_a_measure_is_one_verb_in_both_places(contextwise) -> None:
    first, grouped = (contextwise(f"{group}curve --help")[1] for group in ("", "measure "))
    assert grouped.splitlines()[2:] == first.splitlines()[2:] and "--samples" in first
    assert {name.removeprefix("measure ") for name in commands.verbs()} >= set(measures())


@pytest.mark.long
def test_a_verb_imports_its_own_module_alone() -> None:
    code = (
        "import sys\nfrom contextwise.cli import main\nsys.argv[1:] = ['plan', 'budget', 'no/sweep']\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert end.code == 2\n"
        "print([name for name in sys.modules if 'verb' in name or name.startswith('contextwise.cli.')])"
    )
    loaded = run(sys.executable, "-c", code).stdout
    assert "'contextwise_plan.verbs'" in loaded and "contextwise_papers" not in loaded and "cli.train" not in loaded


def test_a_closed_pipe_is_no_error() -> None:
    assert run("bash", "-c", f"{COMMAND} --help | true").stderr == ""


@pytest.mark.long
def test_nothing_heavy_is_imported_for_the_help_of_any_verb() -> None:
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom contextwise import cli\n"
        "from contextwise.cli.commands import groups, verbs\n"
        "assert {'evaluate', 'curve', 'measure curve', 'measure ruler', 'train', 'compare'} <= set(verbs())\n"
        "for name in (*verbs(), *groups()):\n"
        "    assert CliRunner().invoke(cli.app, [*name.split(), '--help']).exit_code == 0, name\n"
        f"print('imported', [name for name in {HEAVY} if name in sys.modules])"
    )
    done = run(sys.executable, "-c", code)
    assert done.stdout == "imported []\n", done.stderr


def exit_status_of(problem: BaseException, monkeypatch: pytest.MonkeyPatch) -> int:
    def app(**_: object) -> None:
        raise problem

    monkeypatch.setattr(cli, "app", app)
    with pytest.raises(SystemExit) as raised:
        cli.main()
    return int(raised.value.code or 0)


def test_an_unexpected_error_is_one_sentence_and_a_file_with_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["contextwise", "train", "x.yaml"])
    monkeypatch.setattr("contextwise.cli._place_of_users", lambda error: "")
    assert exit_status_of(ZeroDivisionError("of seven\nby nothing"), monkeypatch) == 1
    (file,) = tmp_path.iterdir()
    assert capsys.readouterr().err == (
        f"error: unexpected ZeroDivisionError: of seven; the traceback is in {file} (--traceback shows it): please report it\n"
    )
    text = file.read_text()
    assert text.startswith("contextwise ") and "contextwise train x.yaml" in text
    assert "Traceback" in text and "by nothing" in text and file.stat().st_mode & 0o077 == 0


def test_an_unexpected_error_of_code_that_is_not_ours_names_its_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Such as a measure of another package; this test is no part of Contextwise either."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert exit_status_of(KeyError("mine"), monkeypatch) == 1
    (file,) = tmp_path.iterdir()
    words = (
        rf"error: unexpected KeyError: 'mine' in test_cli\.py, line \d+; .* {file} .*: that is no part of Contextwise\n"
    )
    assert re.fullmatch(words, capsys.readouterr().err)


@pytest.mark.parametrize("module, place", [("strange.ideas", r"idea\.py, line 2"), ("torch.nn", "")])
def test_an_error_of_an_installed_package_that_offers_features_is_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, module: str, place: str
) -> None:
    file = tmp_path / "idea.py"
    file.write_text("def fail():\n    raise KeyError\n")
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    monkeypatch.setattr(cli, "__file__", __file__)  # whose folder is that of the tests
    point = metadata.EntryPoint("idea", "strange.ideas:Idea", "contextwise.measures")
    monkeypatch.setattr("contextwise.base.plugins.others", lambda: (point,))
    exec(compile(file.read_text(), file, "exec"), names := {"__name__": module})
    with pytest.raises(KeyError) as raised:
        names["fail"]()
    assert re.fullmatch(place, cli._place_of_users(raised.value))


@pytest.mark.parametrize("words", [["--traceback", "train"], ["train", "x.yaml", "--traceback"]])
def test_a_traceback_is_shown_on_request(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["contextwise", *words])
    assert exit_status_of(ConfigError("it went wrong"), monkeypatch) == 2
    assert "Traceback" in capsys.readouterr().err and "--traceback" not in sys.argv
    monkeypatch.setattr("sys.argv", ["contextwise", "generate", "m", "--", "--traceback"])
    assert exit_status_of(ConfigError("it went wrong"), monkeypatch) == 2
    assert "Traceback" not in capsys.readouterr().err and sys.argv[-1] == "--traceback"


@pytest.mark.parametrize(
    ("problem", "status", "message"),
    [
        *((kind("it went wrong"), 2, "error: it went wrong\n") for kind in (ConfigError, DataError, CheckpointError)),
        (TrainingError("it went wrong"), 1, "error: it went wrong\n"),
        (Interrupted("it went wrong"), 130, "it went wrong\n"),  # a stop on request is not an error
        (KeyboardInterrupt(), 130, "stopped by Ctrl-C; run the same command again\n"),
        (OSError(errno.ENOSPC, "full"), 2, "error: no space left on the disk; "),
        (RuntimeError("I/O error: No space left on device (os error 28)"), 2, "error: no space left on the disk; "),
        (
            OSError(errno.ENAMETOOLONG, "File name too long", "x" * 9),
            2,
            "error: xxxxxxxxx cannot be used: File name too",
        ),
        (MemoryError(), 2, "error: the memory of this machine is not enough; "),
        (
            RuntimeError("can't allocate memory: you tried 9 bytes"),
            2,
            "error: the memory of this machine is not enough (can",
        ),
        (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), 2, "error: the memory of this machine is not enough ("),
        (RuntimeError("could not create a primitive"), 2, "error: the memory of this machine is not enough (could"),
        (
            ImportError("libx.so: failed to map segment from shared object"),
            2,
            "error: the memory of this machine is not en",
        ),
    ],
)
def test_errors_have_a_status_and_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    problem: BaseException,
    status: int,
    message: str,
) -> None:
    assert exit_status_of(problem, monkeypatch) == status
    output, errors = capsys.readouterr()
    assert output == "" and errors.startswith(message) and (message[-1] != "\n" or errors == message)


def test_a_full_disk_that_caused_another_error_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        try:
            raise OSError(errno.EDQUOT, "quota")
        except OSError:
            raise ValueError("not saved")  # noqa: B904
    except ValueError as error:
        assert exit_status_of(error, monkeypatch) == 2
    assert "no space left" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_any_verb_with_one_line_and_their_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    def app(**_: object) -> None:
        os.kill(os.getpid(), number)
        time.sleep(10)

    before = signal.getsignal(number)
    monkeypatch.setattr(cli, "app", app)
    with pytest.raises(SystemExit) as raised:
        cli.main()
    name = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}[number]
    assert raised.value.code == 128 + number
    assert capsys.readouterr() == ("", f"stopped by {name}; run the same command again\n")
    assert signal.getsignal(number) == before


def caught(process: int) -> int:
    """The signals that a process has handlers for, as bits."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("SigCgt")).split()[1], 16)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_at_any_instant_of_the_start(number: signal.Signals) -> None:
    for hundredth in range(20):
        process = subprocess.Popen(
            [COMMAND, "corpus", "no/corpus"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        while not caught(process.pid) & (1 << signal.SIGTERM - 1):  # until then Python itself is starting
            time.sleep(0.001)
        time.sleep(hundredth / 50)
        process.send_signal(number)
        output, errors = process.communicate(timeout=60)
        assert output == "" and "Traceback" not in errors and len(errors.splitlines()) == 1, errors
        assert process.returncode in (2, 128 + number)


def test_a_signal_while_python_ends_changes_no_status() -> None:
    code = (
        "import os, signal, sys; from contextwise.base.stopping import prepare_process as p; p()\n"
        "class Last:\n    def __del__(self, kill=os.kill, pid=os.getpid(), numbers=(signal.SIGINT, signal.SIGTERM)):\n"
        "        for number in numbers:\n            kill(pid, number)\n"
        "last = Last(); sys.exit(3)"
    )
    assert run(sys.executable, "-c", code).returncode == 3


def test_a_library_leaves_signals_and_streams_alone(tmp_path: Path) -> None:
    script = tmp_path / "contextwise"  # the name says nothing: it is a user's script
    script.write_text(
        "import signal, sys\nnumbers = signal.SIGINT, signal.SIGTERM\n"
        "state = lambda: [sys.stdin, *map(signal.getsignal, numbers)]\nbefore = state()\n"
        "import contextwise, contextwise.cli, contextwise.api\ncontextwise.Corpus, contextwise.__version__\n"
        "assert before[0] is None and state() == before, state()\n"
    )
    done = run("bash", "-c", f"{sys.executable} {script} <&-")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_terminal_that_knows_ascii_alone_shows_plain_numbers() -> None:
    assert "−0.05 [−0.1, ±∞] 本…".encode("ascii", "plainer") == rb"-0.05 [-0.1, +-\u221e] \u672c..."
    assert "−0.05 ±é".encode("latin-1", "plainer") == "-0.05 ±é".encode("latin-1")
    with pytest.raises(UnicodeDecodeError):
        b"\xff".decode("ascii", "plainer")


@pytest.mark.long
def test_a_full_standard_output_is_one_line() -> None:
    for arguments in ("--version", "reproduce --list"):
        done = run("bash", "-c", f"{COMMAND} {arguments} > /dev/full")
        assert done.returncode == 1
        assert done.stderr == "error: standard output cannot be written: No space left on device\n"


def test_an_empty_path_is_not_the_current_folder(contextwise: Contextwise) -> None:
    contextwise.refused("evaluate . --corpus ''", "a path is empty; give the path of a file or folder")
    contextwise.refused("prepare text.jsonl --tokenizer bytes --out ''", "--out is empty; give a path")
    contextwise.refused("train gpt2-nano --out=", "--out is empty; give a path")
    contextwise.refused("compare a b --html ''", "--html is empty; give a path")
    (contextwise.folder / "losses.csv").write_text("arm,seed,nats")
    contextwise.refused(
        "compare losses.csv", "is a table; losses of other training scripts are for another verb: contextwise decide"
    )


def test_only_the_first_process_of_a_launch_speaks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "1")  # alone: a number that the shell was left with
    assert exit_status_of(ConfigError("it went wrong"), monkeypatch) == 2
    assert capsys.readouterr() == ("", "error: it went wrong\n")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert exit_status_of(ConfigError("it went wrong"), monkeypatch) == 2
    assert capsys.readouterr() == ("", "")


def test_control_characters_are_escaped(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    message = "the file \x1b[31m[bold]x[/bold]\x07 :smile: is bad:\n  - café " + "word " * 40
    exit_status_of(DataError(message), monkeypatch)
    shown = capsys.readouterr().err
    assert shown.startswith("error: the file \\x1b[31m[bold]x[/bold]\\x07 :smile: is bad:\n  - café word word")
    assert len(shown.splitlines()) == 2  # in a log no line is broken


@pytest.mark.long
def test_a_message_does_not_repeat_an_endless_value(contextwise) -> None:
    status, _, errors = contextwise("train", "x" * 100_000)
    assert status == 2 and len(errors) < 2000 and "x" * 100 in errors
    status, _, errors = contextwise("train", path := "/".join(["folder"] * 500))
    assert status == 2 and path in errors


def test_lists_and_refusals_import_neither_torch_nor_transformers(tmp_path: Path, corpus_folder: Path) -> None:
    bad = tmp_path / "recipe.yaml"
    bad.write_text("name: x\ndata: {corpus: c, context: 8}\ntraining: {token: 5}\n")
    good = tmp_path / "good.yaml"
    good.write_text(
        "name: x\ndata: {corpus: no/corpus, context: 8}\nmodel: {layers: 1, width: 8, heads: 1}\n"
        "training: {steps: 5, tokens_per_step: 8}\n"
    )
    other = tmp_path / "trial.yaml"
    other.write_text("arms: [gpt2, pm]\ncorpus: no/corpus\n")
    (tmp_path / "models.py").write_text("class Scaled: pass\n")
    model = tmp_path / "unmeasured"
    model.mkdir()
    (model / "config.json").write_text("{}")
    Tokenizer(WordLevel({"a": 0})).save(str(model / "tokenizer.json"))
    prepared = ["--corpus", str(corpus_folder)]
    commands = [
        (2, ["compare", str(model), str(tmp_path), *prepared, "--split", "test"]),
        (2, ["trial", "gpt2", "contextlm", *prepared, "--tokens", "5"]),
        (2, ["trial", "gpt2", "contextlm", *prepared, "--set", "recipe.model.width=33"]),
        (2, ["trial", "gpt2", "contextlm", *prepared, "--out", str(model)]),
        (2, ["trial", "gpt2", "contextlm", *prepared, "--set", "arms=3"]),
        (2, ["export", str(model), "--out", str(tmp_path)]),
        (2, ["generate", str(model), "hi", "--temperature", "-1"]),
        (2, ["compare", str(model), str(model), "--corpus", str(bad)]),
        (2, ["compare", str(model), f"{model}/", "--curves"]),
        (2, ["decide"]),
        (2, ["trial", "gpt2", f"{tmp_path}/models.py:Scalled", "--corpus", "c"]),
        (2, ["train", str(good), "--set", f"model.variant={tmp_path}/models.py:Scalled"]),
        (0, ["--version"]),
        (0, ["reproduce", "--list"]),
        (2, ["reproduce", "contextlm/table1", "--scale", "huge"]),
        (2, ["train", str(bad)]),
        (2, ["train", str(other)]),
        (2, ["train", str(good)]),
        (2, ["train", str(good), "--json"]),
        (2, ["train", str(good), "--set", "training.step=3"]),
        (2, ["train", str(good), "--set", f"output={tmp_path}"]),
        (2, ["trial", "one"]),
        (2, ["trial"]),
        (2, ["report", str(tmp_path), "--out", str(tmp_path)]),
        (2, ["measure", "causality", str(bad)]),
        (2, ["measure", "causality", str(tmp_path)]),
        (2, ["compare", str(tmp_path), str(tmp_path.parent), "--limit", "3"]),
        (2, ["trial", "gpt2", "contextlm"]),
        (2, ["trial", "gpt2", "gtp2", "--corpus", "no/corpus"]),
        (2, ["trial", "stdlib-quick"]),
        (2, ["curve", str(tmp_path), "--corpus", "no/*.md"]),
    ]
    code = (
        "import os, sys\nos.environ['HF_ENDPOINT'] = 'http://localhost:9'\nfrom contextwise import cli\n"
        f"for status, command in {commands}:\n"
        "    sys.argv[1:] = command\n"
        "    try:\n        cli.main()\n        code = 0\n    except SystemExit as end:\n        code = end.code or 0\n"
        "    assert code == status, (code, command)\n"
        "    loaded = [name for name in ('torch', 'transformers') if name in sys.modules]\n"
        "    assert not loaded, (loaded, command)\n"
    )
    done = run(sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr
    reasons = ("has no split 'test'", "--tokens is 5, but one step", "a width of 33 is not divisible by 4 heads")
    reasons += ("is not empty and holds no trial", "arms is given twice, as gpt2,contextlm and as --set arms=3")
    assert [reason for reason in reasons if reason not in done.stderr] == []


def test_a_setting_of_a_file_is_named_as_in_the_file_and_a_typed_one_as_its_option(contextwise, tmp_path) -> None:
    (tmp_path / "trial.yaml").write_text("arms: [gpt2, pm]\ncorpus: c\nseeds: many\n")
    status, _, errors = contextwise(f"trial {tmp_path}/trial.yaml")
    assert status == 2 and "seeds is 'many'" in errors and "--seeds" not in errors
    status, _, errors = contextwise(f"trial {tmp_path}/trial.yaml --seeds 1")
    assert status == 2 and "--seeds is 1, but must be at least 2" in errors
    status, _, errors = contextwise("trial gpt2 pm --corpus c --seeds 1")
    assert status == 2 and "--seeds is 1, but must be at least 2" in errors


def test_tab_completes_verbs_and_options():
    code = (
        "import os, sys\nfrom contextwise import cli\nsys.argv = ['contextwise']\n"
        "os.environ |= {'_CONTEXTWISE_COMPLETE': 'complete_bash'}\n"
        "for words in ('contextwise tr', 'contextwise plan tr', 'contextwise trial --se'):\n"
        "    os.environ |= {'COMP_WORDS': words, 'COMP_CWORD': str(words.count(' '))}\n"
        "    try:\n        cli.main()\n    except SystemExit as end:\n        assert end.code == 0\n"
    )
    done = run(sys.executable, "-c", code)
    assert done.stdout.split() == ["train", "trial", "transfer", "--seeds", "--set"], done.stderr
