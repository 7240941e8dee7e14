"""Files and folders that are complete or absent."""

import contextlib
import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from contextwise.base.errors import ConfigError, DataError
from contextwise.base.files import (
    atomic_directory,
    atomic_write,
    exclusive,
    is_held,
    output_folder,
    read_json,
    relative_to_here,
    without_folders,
    write_json,
)
from processes import Program


def test_a_folder_appears_complete(tmp_path):
    target = tmp_path / "made" / "folder"
    with atomic_directory(target) as partial:
        (partial / "a").write_text("one")
        assert not target.exists()
    assert (target / "a").read_text() == "one"
    assert [path.name for path in target.parent.iterdir()] == ["folder"]


@pytest.mark.parametrize("above", ["", "made", "made/deep"])
def test_a_folder_that_fails_leaves_nothing(tmp_path, above):
    with pytest.raises(RuntimeError), atomic_directory(tmp_path / above / "folder") as partial:
        (partial / "a").write_text("one")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_a_lock_outlives_a_folder_that_another_process_removes(tmp_path, monkeypatch):
    """Which had made it, and wrote nothing."""
    opened, removed = Path.open, []

    def open_late(path, *arguments, **options):
        if path.name == ".x.lock" and len(removed) < 2:
            removed.append(path.parent.rmdir())
        return opened(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", open_late)
    with exclusive(tmp_path / "made" / "x", "the folder"):
        assert len(removed) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_replaced_completely_or_not_at_all(tmp_path):
    for text in ("one", "two"):
        with atomic_directory(tmp_path / "folder", replace=True) as partial:
            (partial / text).write_text(text)
        assert [path.name for path in (tmp_path / "folder").iterdir()] == [text]
    with pytest.raises(RuntimeError), atomic_directory(tmp_path / "folder", replace=True) as partial:
        (partial / "three").write_text("three")
        raise RuntimeError
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")] == ["folder", "folder/two"]


def test_a_folder_is_restored_if_its_successor_cannot_be_synced(tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "old").write_text("old")

    def full(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("contextwise.base.files.sync_tree", full)
    with (
        pytest.raises(DataError, match="no space left while writing the thing"),
        atomic_directory(tmp_path / "folder", "the thing", replace=True) as partial,
    ):
        (partial / "new").write_text("new")
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")] == ["folder", "folder/old"]


def test_a_folder_is_replaced_or_stays_where_the_system_exchanges_none(tmp_path, monkeypatch):
    real, faults = Path.rename, [False, True]  # of renaming the new folder

    def rename(path, target):
        if Path(target).name == "folder" and path.name != "folder.partial-old" and faults.pop(0):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(path, target)

    (tmp_path / "folder").mkdir()
    monkeypatch.setattr("contextwise.base.files.ctypes.CDLL", lambda *_, **__: SimpleNamespace())
    monkeypatch.setattr(Path, "rename", rename)
    for text, fails in (
        ("one", contextlib.nullcontext()),
        ("two", pytest.raises(DataError, match="Input/output error")),
    ):
        with fails, atomic_directory(tmp_path / "folder", replace=True) as partial:
            (partial / text).write_text(text)
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")] == ["folder", "folder/one"]


WRITER = """
import sys; from pathlib import Path; from contextwise.base.files import atomic_directory
# Ends when its standard input is closed.
with atomic_directory(Path(sys.argv[1]), "the thing") as folder:
    (folder / 'a').write_text(sys.argv[2]); print('ready', flush=True); sys.stdin.read()
"""


SLOW_WRITER = """
import os, sys; from pathlib import Path; from contextwise.base.files import atomic_write
os.fsync = lambda file: (print('ready', flush=True), sys.stdin.read())
atomic_write(Path(sys.argv[1]), 'slow')
"""


@pytest.mark.long
def test_a_killed_writer_of_a_file_leaves_what_the_next_one_removes(tmp_path):
    file = tmp_path / "x[1].json"
    killed, slow = Program(SLOW_WRITER, file), Program(SLOW_WRITER, file)
    assert killed.stdout.readline() == slow.stdout.readline() == "ready\n"
    killed.kill()
    killed.communicate()
    assert len(list(tmp_path.iterdir())) == 2
    atomic_write(file, "fast")
    assert file.read_text() == "fast" and len(list(tmp_path.iterdir())) == 2  # that of the slow one is in use
    slow.communicate()
    assert slow.returncode == 0
    assert file.read_text() == "slow" and list(tmp_path.iterdir()) == [file]


@pytest.fixture
def faults(monkeypatch):
    """The next file that is locked is removed before its lock; empty afterwards."""
    real, faults = fcntl.flock, ["removed"]

    def late(file, operation):
        if faults and faults.pop():
            Path(file.name).unlink()
        real(file, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    return faults


def test_a_file_that_was_taken_for_a_leftover_is_written_again(tmp_path, faults):
    """Another process removes it between its creation and its lock."""
    atomic_write(tmp_path / "file", "content")
    assert (tmp_path / "file").read_text() == "content" and not faults
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_a_file_is_no_leftover_until_it_has_its_name(tmp_path, monkeypatch):
    """Another process writes the same file just before."""
    file, real = tmp_path / "file", Path.replace

    def late(partial, path):
        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", real)
            atomic_write(path, "of the other")
        return real(partial, path)

    monkeypatch.setattr(Path, "replace", late)
    atomic_write(file, "content")
    assert file.read_text() == "content" and list(tmp_path.iterdir()) == [file]


def test_content_is_on_the_disk_before_its_name_and_the_name_at_the_end(tmp_path, monkeypatch):
    """A file or folder is whole or absent after a power failure, and there once its writer has returned."""
    file, folder, synced = tmp_path / "file", tmp_path / "folder", []

    def sync(opened):
        synced.append((os.fstat(opened).st_ino, [path.name for path in (file, folder) if path.exists()]))

    monkeypatch.setattr(os, "fsync", sync)
    atomic_write(file, "content")
    with atomic_directory(folder) as partial:
        (partial / "inner").mkdir()
        (partial / "inner" / "a").write_text("one")
    above, *parts = (path.stat().st_ino for path in (tmp_path, folder, folder / "inner", folder / "inner" / "a"))
    assert synced[:2] == [(file.stat().st_ino, []), (above, ["file"])]
    assert sorted(synced[2:-1]) == sorted((part, ["file"]) for part in parts)
    assert synced[-1] == (above, ["file", "folder"])


@pytest.mark.long
def test_a_second_process_waits_with_a_message_and_replaces_nothing(tmp_path):
    first = Program(WRITER, tmp_path / "folder", "first")
    assert first.stdout.readline() == "ready\n"
    (kept,) = tmp_path.glob("folder.partial-*")
    second = Program(WRITER, tmp_path / "folder", "second")
    said = second.stderr.readline()
    assert said == f"another process is writing the thing {tmp_path / 'folder'}; waiting for it to end\n"
    assert kept.exists() and is_held(tmp_path / "folder")
    assert first.communicate()[1] == "" and first.returncode == 0
    assert "folder was created by another process while the thing was written" in second.communicate()[1]
    assert (tmp_path / "folder" / "a").read_text() == "first" and not is_held(tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


WAITER = """
import sys; from pathlib import Path
from contextwise.base.errors import Interrupted
from contextwise.base.files import exclusive
from contextwise.base.progress import interruption
try:
    with interruption.listening(), exclusive(Path(sys.argv[1]), 'the run', wait=True):
        pass
except Interrupted as error:
    print(error)
"""


def test_a_process_that_waits_ends_on_a_signal(tmp_path):
    with exclusive(tmp_path / "run", "the run"):
        process = Program(WAITER, tmp_path / "run")
        assert "waiting for it to end" in process.stderr.readline()
        os.kill(process.pid, signal.SIGTERM)
        said, _ = process.communicate()
    assert said == f"stopped while waiting for the run {tmp_path / 'run'}; run the same command again\n"


@pytest.mark.parametrize("inside", [False, True])
def test_a_path_that_is_held_is_refused(tmp_path, inside):
    with exclusive(tmp_path / "run", "the run", inside=inside):
        assert is_held(tmp_path / "run", inside=inside)
        with (
            pytest.raises(ConfigError, match=r"another process is using the run .*run; wait for it to end"),
            exclusive(tmp_path / "run", "the run", inside=inside),
        ):
            pass
        assert is_held(tmp_path / "run", inside=inside)
    assert not is_held(tmp_path / "run", inside=inside)
    assert not list(tmp_path.rglob(".*"))


def test_a_lock_file_that_is_removed_before_it_is_locked_is_no_lock(tmp_path, faults):
    """The process that held it has ended in between: another one would make the next file, and lock that."""
    with exclusive(tmp_path / "run", "the run"):
        assert is_held(tmp_path / "run") and not faults


def test_a_lock_of_another_user_is_seen(tmp_path, monkeypatch):
    """It cannot be opened for writing."""

    def refused(file):
        raise PermissionError(errno.EACCES, "no", str(file))

    with exclusive(tmp_path / "run", "the run"):
        monkeypatch.setattr("contextwise.base.files._locked", refused)
        assert is_held(tmp_path / "run")
    assert not is_held(tmp_path / "run")


def test_a_partial_folder_that_vanished_is_not_created_again(tmp_path):
    with (
        pytest.raises(DataError, match="cannot be written to .*No such file"),
        atomic_directory(tmp_path / "folder") as partial,
    ):
        partial.rmdir()
        write_json(partial / "inner" / "a.json", {})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("write", [atomic_write, lambda path, text, what: write_json(path, text, what)])
def test_a_write_that_fails_keeps_the_old_file(tmp_path, monkeypatch, write):
    file = tmp_path / "file"
    file.write_text("old")

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match="no space left while writing the thing to .*file"):
        write(file, "new", "the thing")
    assert file.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_no_file_takes_the_place_of_a_pipe_or_device(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/stdout")):
        with pytest.raises(OSError, match="give a file"):
            atomic_write(path, "text")
    assert (tmp_path / "pipe").is_fifo() and [file.name for file in tmp_path.iterdir()] == ["pipe"]


def test_a_real_limit_on_file_size_is_one_sentence(tmp_path):
    program = (
        "import resource, signal, sys; from pathlib import Path\n"
        "from contextwise.base.errors import DataError; from contextwise.base.files import atomic_write\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try: atomic_write(Path(sys.argv[1]), b'x' * 5000, 'the thing')\n"
        "except DataError as error: print(error)"
    )
    output, errors = Program(program, tmp_path / "file").communicate()
    assert "no space left while writing the thing" in output, errors
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("out", "message"),
    [
        *((name, "names no new folder; give a name in it") for name in ("", ".", "..", "/")),
        ("~nobody-here", "no such home"),
    ],
)
def test_an_output_that_leads_nowhere_is_refused(tmp_path, monkeypatch, out, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=message):
        output_folder(Path(out))


def test_an_output_that_is_a_link_to_itself_is_refused(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises((ConfigError, OSError), match="loop"):  # which one depends on the version of Python
        output_folder(tmp_path / "loop")


@pytest.mark.parametrize("inside", [False, True])
def test_a_lock_that_cannot_be_made_leaves_no_folder(tmp_path, monkeypatch, inside):
    def fail(*_):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("contextwise.base.files._locked", fail)
    with pytest.raises(OSError, match="open files"), exclusive(tmp_path / "a" / "b", "it", inside=inside):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="there is no /proc")
@pytest.mark.parametrize("wait", [False, True])
def test_no_process_is_blamed_where_no_lock_can_be_created(wait, capsys):
    with pytest.raises(DataError, match="cannot be written to /proc/x"), exclusive(Path("/proc/x"), "it", wait=wait):
        pass
    assert "another process" not in capsys.readouterr().err


def test_a_name_that_is_too_long_is_no_link():
    with pytest.raises(OSError, match="too long"):
        output_folder(Path("a" * 300))


def test_json_is_read_back_or_refused(tmp_path):
    write_json(tmp_path / "a.json", {"ä": [1, 2.5, None]})
    assert read_json(tmp_path / "a.json", "it") == {"ä": [1, 2.5, None]}
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "b.json", float("nan"))
    with pytest.raises(DataError, match="it is missing: there is no file"):
        read_json(tmp_path / "b.json", "it")
    (tmp_path / "c.json").write_text("{")
    with pytest.raises(DataError, match="it cannot be read"):
        read_json(tmp_path / "c.json", "it")


def test_shared_texts_name_no_folder_of_this_machine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = f"{tmp_path}/runs/a, /mnt{tmp_path}/books, https://x.org{tmp_path}/y and {Path.home()}/b"
    expected = f"runs/a, /mnt{tmp_path}/books, https://x.org{tmp_path}/y and ~/b"
    assert relative_to_here(text) == expected
    values = {"a": [str(tmp_path / "runs" / "a"), "runs/a"], "b": "../../x", "c": 3}
    assert without_folders(values) == {"a": ["a", "runs/a"], "b": "x", "c": 3}


def test_names_with_brackets_are_not_patterns(tmp_path):
    (tmp_path / "x[1].partial-old").mkdir()
    (tmp_path / "x1.partial-of-another").mkdir()
    with atomic_directory(tmp_path / "x[1]") as partial:
        (partial / "a").write_text("one")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x1.partial-of-another", "x[1]"]


@contextlib.contextmanager
def exclusive_of_another_process(path, inside):
    program = (
        "import sys; from pathlib import Path; from contextwise.base.files import exclusive\n"
        "with exclusive(Path(sys.argv[1]), 'the run', inside=sys.argv[2] == 'True'):\n"
        "    print('held', flush=True); sys.stdin.read()"
    )
    process = Program(program, path, inside)
    assert process.stdout.readline() == "held\n"
    yield process
    assert is_held(path, inside=inside)
    process.communicate()
    assert not is_held(path, inside=inside)


@pytest.mark.parametrize("inside", [False, True])
def test_the_lock_of_the_next_process_stays_where_a_lock_file_was_removed(tmp_path, inside):
    target = tmp_path / "run"
    with contextlib.ExitStack() as stack:
        with exclusive(target, "the run", inside=inside):
            (target / ".lock" if inside else tmp_path / ".run.lock").unlink()
            stack.enter_context(exclusive_of_another_process(target, inside))
        assert is_held(target, inside=inside)


def test_a_folder_that_was_moved_away_is_not_made_again(tmp_path):
    (tmp_path / "run").mkdir()
    with (
        pytest.raises(DataError, match="cannot be written to .*No such file"),
        atomic_directory(tmp_path / "moved" / "checkpoints" / "step-1", held=True),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_process_that_is_killed_between_two_renames_loses_nothing(tmp_path):
    """Without an exchange of folders the old one is moved away first; the next process moves it back."""
    (tmp_path / "folder.partial-old").mkdir()
    (tmp_path / "folder.partial-old" / "a").write_text("old")
    with pytest.raises(RuntimeError), atomic_directory(tmp_path / "folder", replace=True):
        raise RuntimeError
    assert (tmp_path / "folder" / "a").read_text() == "old"


@pytest.fixture
def no_flock(monkeypatch):
    """A file system without ``flock``."""

    def refused(file, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("contextwise.base.files.fcntl.flock", refused)


@pytest.mark.parametrize("inside", [False, True])
def test_a_file_is_the_lock_where_there_is_no_flock(tmp_path, no_flock, inside):
    target = tmp_path / "run"
    with exclusive(target, "the run", inside=inside):
        assert is_held(target, inside=inside)
        with (
            pytest.raises(ConfigError, match=r"using the run .*\(if none is, remove .*lock.owner\)"),
            exclusive(target, "the run", inside=inside),
        ):
            pass
        write_json(target / "a.json", 1)
    assert not is_held(target, inside=inside)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["a.json"]


def test_the_file_of_a_killed_process_is_removed_and_that_of_another_machine_is_not(tmp_path, no_flock):
    process = Program("print()")
    process.communicate()
    owner = tmp_path / ".run.lock.owner"
    owner.write_text(f"{process.pid}\n{socket.gethostname()}\n")
    assert not is_held(tmp_path / "run")
    with exclusive(tmp_path / "run", "the run"):
        assert owner.read_text().startswith(f"{os.getpid()}\n")
    owner.write_text("1\nelsewhere\n")
    assert is_held(tmp_path / "run")
    refused = pytest.raises(ConfigError, match=r"\(if none is, remove .*owner\)")
    with refused, exclusive(tmp_path / "run", "the run"):
        pass
    assert owner.read_text() == "1\nelsewhere\n"


def test_a_child_of_a_killed_process_does_not_keep_its_lock(tmp_path):
    code = (
        "import os, sys, time; from pathlib import Path; from contextwise.base.files import exclusive\n"
        "with exclusive(Path(sys.argv[1]), 'the folder', inside=True):\n"
        "    child = os.fork()\n"
        "    if child == 0: time.sleep(60); os._exit(0)\n"
        "    print(child, flush=True); time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    with (
        pytest.raises(ConfigError, match="another process is using the folder"),
        exclusive(tmp_path, "the folder", inside=True),
    ):
        pass
    parent.kill()
    parent.wait()
    try:
        with exclusive(tmp_path, "the folder", inside=True):
            os.kill(child, 0)  # it is still there
    finally:
        os.kill(child, signal.SIGKILL)


def test_only_a_lock_file_that_nobody_holds_is_removed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    left = tmp_path / ".run.lock"
    left.touch()
    assert not is_held(Path("run"))
    assert not left.exists()
    assert not is_held(Path("run"))  # there is none: none is made
    assert not is_held(Path())
    assert [file.name for file in tmp_path.iterdir()] == ["run"]
    with exclusive(Path("run"), "the run"):
        code = "from pathlib import Path; from contextwise.base.files import is_held; assert is_held(Path('run'))"
        subprocess.run([sys.executable, "-c", code], check=True)
        assert left.exists()
