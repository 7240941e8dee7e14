"""The command line: :mod:`contextwise.cli.commands` finds its verbs.

The verbs import what they run inside their functions: ``--help``, ``--version`` and mistyped verbs are answered without torch.

Exit status: 0 done; 2 the input is at fault; 130 stopped by Ctrl-C, 143 by SIGTERM; 1 anything else. An error that nothing
explains is one sentence too, with the path of a file that holds its traceback.
"""

import codecs
import contextlib
import io
import json
import os
import re
import shlex
import signal
import sys
import sysconfig
import tempfile
import time
import traceback
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from contextwise.base import plugins, stopping
from contextwise.base.errors import ConfigError, ContextwiseError, DataError, Interrupted, one_line
from contextwise.base.progress import console, document_printed, printable, say
from contextwise.base.stopping import first_process
from contextwise.base.trust import trust
from contextwise.cli.commands import HELP_OPTIONS, LazyCommands

_NO_MEMORY = re.compile(
    r"can't allocate memory|cannot allocate memory|failed to map segment from shared object|could not create a primitive$",
    re.IGNORECASE,
)
"""Messages of torch, the system, the loader of libraries and oneDNN."""

LOADS = Path("/proc/loadavg")
"""Linux's mean number of processes that want a core, and how many threads do now."""
PLAINER = {"−": "-", "–": "-", "…": "...", "×": "x", "±": "+-", "≤": "<=", "≥": ">=", "≈": "~", "→": "->", "·": "|"}
"""Characters that we print -> those for a terminal without them."""

app = typer.Typer(
    cls=LazyCommands,
    name="contextwise",
    help="Decide whether a pretraining idea helps, measure how much context a model uses, plan how long a context to train.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings=HELP_OPTIONS,
)


def _plainer(error: UnicodeError) -> tuple[str, int]:
    """What is written for characters that a stream cannot encode: plainer ones, or their numbers."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    unknown = error.object[error.start : error.end]
    return "".join(PLAINER.get(each, ascii(each)[1:-1]) for each in unknown), error.end


codecs.register_error("plainer", _plainer)


def _print_version(wanted: bool) -> None:
    if wanted:
        from contextwise.base.machine import own_version

        print(f"contextwise {own_version()}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
    traceback: Annotated[  # main() has taken this and the next
        bool, typer.Option("--traceback", help="Show the traceback of an error; may stand after the verb too.")
    ] = False,
    trust_remote_code: Annotated[
        bool,
        typer.Option(
            "--trust-remote-code", help="Run the Python code that comes with a model; may stand after the verb too."
        ),
    ] = False,
) -> None:
    pass


def quieten_libraries() -> None:
    """Keep other libraries' progress bars and warnings off the terminal, unless the user has set them.

    Set before those libraries are imported, which is when they read it. It changes what is shown, no result.
    """
    for name in ("HF_HUB_DISABLE_PROGRESS_BARS", "HF_DATASETS_DISABLE_PROGRESS_BARS"):
        os.environ.setdefault(name, "1")
    for name in ("TRANSFORMERS_VERBOSITY", "DATASETS_VERBOSITY"):
        os.environ.setdefault(name, "error")


def let_threads_sleep() -> None:
    """Let torch's threads sleep while they wait for each other, if other processes use this machine now and in the last minute.

    Spinning, their default, is faster on a quiet machine alone: beside one other process on two cores it makes the steps of
    small models several times as long (``benchmarks/beside.py``). Set before torch is imported; it changes no result, and
    nothing that the user has set.
    """
    if any(name in os.environ for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")):
        return
    others = max(1, (os.cpu_count() or 1) // 8)
    with contextlib.suppress(OSError, ValueError):  # another system than Linux
        for _ in range(3):
            load, _, _, threads, _ = LOADS.read_text().split()
            if float(load) < others / 2 or int(threads.partition("/")[0]) <= others:  # one that runs is of this process
                return
            time.sleep(0.005)
        os.environ["OMP_WAIT_POLICY"] = "passive"


def print_error(error: ContextwiseError | str) -> None:
    """Print ``error: <message>`` on standard error, once for all the processes of a launch; of a stop the message alone.

    The message holds text of users (paths, values): it is shown as it is, brackets included.
    """
    if first_process():
        message = re.sub(r"(\S{100})\S{4900,}", r"\1…", printable(str(error)))  # longer than any path
        # Lines are broken to fit a terminal only: in a log file a broken path could not be searched for.
        word = Text() if isinstance(error, Interrupted) else Text.assemble(("error", "bold red"), ": ")
        console.print(word.append(message), soft_wrap=not console.is_terminal)


def main() -> None:
    """Run the command line and exit."""
    quieten_libraries()
    if os.environ.get("COLUMNS") == "0":  # of a terminal without a size; rich would print nothing
        del os.environ["COLUMNS"]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="plainer")  # names of files need not be text, and a terminal may know ASCII alone
    try:
        with stopping.raising():
            status = _status_of_command()
    except stopping.Stopped:  # while the end was reported
        stopping.end_at_once(stopping.received.number or signal.SIGINT)
    sys.exit(status)


def _status_of_command() -> int:
    show_traceback, trust.remote_code = _take("--traceback"), _take("--trust-remote-code")
    document_printed.clear()
    try:
        try:
            Path.cwd()
        except OSError:  # torch's libraries would end the process
            message = "the current folder was removed; run the same command again in a folder that exists"
            raise ConfigError(message) from None
        let_threads_sleep()
        status = app(prog_name="contextwise", standalone_mode=False) or 0  # the status of an Exit
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:
        status = 1 if isinstance(error, OSError) and not _flushed() else _report(error, show_traceback)
    if stopping.received.raised:
        say(stopping.message())
        status = stopping.exit_status()
    return status if _flushed() else status or 1


def _take(option: str) -> bool:
    """Remove an option that may stand anywhere before ``--`` from the command line; whether it was there."""
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    given = option in sys.argv[1:end]
    sys.argv = [sys.argv[0], *(word for word in sys.argv[1:end] if word != option), *sys.argv[end:]]
    return given


def _report(error: BaseException, show_traceback: bool) -> int:
    """Print what ended a command, in one sentence; the exit status."""
    if isinstance(error, KeyboardInterrupt):
        stopping.received.raised = True
        return stopping.exit_status()
    if show_traceback:
        traceback.print_exception(error)
    own = error if isinstance(error, ContextwiseError) else None
    if type(error).__name__ == "NoArgsIsHelpError":  # the help was printed
        return 2
    known = _of_memory(error) or own or _of_usage(error) or _of_the_system(error)
    if known is not None:
        print_error(known)
        _print_json(known, known.exit_status)
        return known.exit_status
    if not stopping.received.raised:  # a library may turn the stop into an error of its own
        message = unexpected(error)
        print_error(message)
        _print_json(message, 1)
    return 1


def _print_json(error: ContextwiseError | str, status: int) -> None:
    """With ``--json``: print the error as JSON on standard output too, unless the result is there already."""
    if "--json" not in sys.argv or document_printed.is_set() or not first_process():
        return
    problems = error.problems if isinstance(error, ConfigError) else ()
    listed = [{"field": each.field, "why": each.why, "fix": each.fix} for each in problems]
    values = {"message": str(error), "exit_status": status, "problems": listed}
    with contextlib.suppress(OSError):
        print(json.dumps({"error": values}, indent=2, ensure_ascii=False))


USAGE = {
    r"Missing (?:argument|option) '(.+)'\.": "{0} is missing",
    r"Option '(.+)' requires an argument\.": "{0} needs a value",
    r"Option '(.+)' does not take a value\.": "{0} takes no value",
    r"No such option: (.+?) \(Possible options: (.+)\)": "there is no option {0}; did you mean {1}?",
    r"No such option: (.+)": "there is no option {0}",
    r"Got unexpected extra argument(?:\(s\)|s)? \((.*)\)": "too many arguments: {0}",
}
"""Message of Typer on a wrong command line -> ours."""


def _of_usage(error: BaseException) -> ConfigError | None:
    """The error of a wrong command line, with the help to read; None for others. (Typer does not export its classes.)"""
    said, context = getattr(error, "format_message", None), getattr(error, "ctx", None)
    if said is None:
        return None
    message = " ".join(said().split())
    for form, words in USAGE.items():
        if match := re.fullmatch(form, message):
            message = words.format(match[1], *(each.replace(", ", " or ") for each in match.groups()[1:]))
            if words == "{0} is missing" and (about := getattr(error.param, "help", None)):  # type: ignore[attr-defined]
                message += f": {about.partition('. ')[0].rstrip('.')}"
            break
    if context is None or "contextwise " in message:
        return ConfigError(message)
    return ConfigError(f"{message}{'; see' if message[-1] != '?' else ' See'} {context.command_path} -h")


def _of_the_system(error: BaseException) -> ContextwiseError | None:
    """The error of a full disk, or of a file that cannot be used; None for others."""
    from contextwise.base.files import is_disk_full

    if is_disk_full(error):
        return DataError("no space left on the disk; free some space, and run the same command again")
    if isinstance(error, OSError) and error.filename is not None:
        return DataError(f"{os.fsdecode(error.filename)} cannot be used: {error.strerror}")
    return None


def _of_memory(error: BaseException) -> ConfigError | None:
    """The error of too little memory, also if a file was blamed for it; None for others."""
    cause: BaseException | None = error
    while cause is not None:
        is_memory = isinstance(cause, MemoryError) or type(cause).__name__ == "OutOfMemoryError"
        # A message of ours may quote texts of users.
        if is_memory or (_NO_MEMORY.search(str(cause)) and not isinstance(cause, ContextwiseError)):
            reason = one_line(cause, 160)
            return ConfigError(
                f"the memory of this machine is not enough{reason and f' ({reason})'}; take a smaller model, context or batch"
            )
        cause = cause.__cause__ or cause.__context__
    return None


def unexpected(error: BaseException) -> str:
    """The message of an error that nothing else explains; its traceback is written to a file."""
    from contextwise.base.machine import own_version

    lines = str(error).strip().splitlines()
    place = _place_of_users(error)
    what = f"{type(error).__name__}{f': {lines[0][:200]}' if lines else ''}{place and f' in {place}'}"
    content = [f"contextwise {own_version()}\n", f"{shlex.join(sys.argv)}\n\n"]
    content += traceback.format_exception(error)
    try:
        handle, path = tempfile.mkstemp(prefix="contextwise-crash-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.writelines(content)
    except OSError:
        return f"unexpected {what}; --traceback shows where it happened"
    whose = "that is no part of Contextwise" if place else "please report it"
    return f"unexpected {what}; the traceback is in {path} (--traceback shows it): {whose}"


def _place_of_users(error: BaseException) -> str:
    """The innermost line of an error's traceback in a file of a user, or of a package that offers features; else empty."""
    offering = {point.module.partition(".")[0] for point in plugins.others()}
    libraries = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
    libraries.append(str(Path(__file__).parents[2]))
    for frame, line in reversed([*traceback.walk_tb(error.__traceback__)]):
        file, package = Path(frame.f_code.co_filename), frame.f_globals.get("__name__", "").partition(".")[0]
        own = file.is_file() and not any(file.is_relative_to(folder) for folder in libraries)
        own = own and "torchinductor" not in str(file) and file.resolve() != Path(sys.argv[0]).resolve()
        if own or package in offering:
            return f"{file.name}, line {line}"
    return ""


def _flushed() -> bool:
    """Write what standard output still holds; False if that fails, which is said, unless its reader ended (``| head``)."""
    try:
        if sys.stdout is not None:
            os.write(1, b"")  # an error for /dev/full, also where what was held is lost by now
            sys.stdout.flush()
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            print_error(f"standard output cannot be written: {os.strerror(error.errno or 0)}")
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python flushes once more at its end
        return False
    return True
