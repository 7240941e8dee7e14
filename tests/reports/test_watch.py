"""The live page of runs: what it says of each, and that only this machine's browser gets it."""

import http.client
import json
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contextwise.base.errors import CheckpointError, ConfigError
from contextwise.base.runs import RunFolder
from contextwise.reports.watch import Progress, runs_of, watch_page, watch_server
from small import recipe_values


@pytest.fixture
def folder(make_run: Callable[..., Any], tmp_path: Path) -> Path:
    """Three runs as of a sweep: one finished, one of whose 12 steps 8 are done, one that waits."""
    finished = make_run("A")
    runs = tmp_path / "sweep" / "runs"
    runs.mkdir(parents=True)
    finished.path.rename(runs / "a")
    for name, steps in (("b", (2, 4, 6, 8)), ("c", ())):
        run = RunFolder(runs / name)
        run.path.mkdir()
        run.write_recipe(recipe_values(tmp_path / "corpus", run.path))
        for step in steps:
            spent = {"step": step, "tokens": 128 * step, "flops": 1e6 * step, "seconds": 5.0 * step}
            run.append_metrics({"kind": "train", **spent, "loss": 6.0 - step / 10, "tokens_per_second": 25.6})
    return tmp_path / "sweep"


def test_progress(folder: Path) -> None:
    a, b, c = runs_of(folder)
    assert [Progress.of(run).state for run in (a, b, c)] == ["finished", "stopped", "waiting"]
    assert runs_of(b.path)[0].path == b.path and len(runs_of(folder / "runs")) == 3
    progress = Progress.of(b)
    assert (progress.step, progress.steps, progress.loss, progress.left) == (8, 12, 5.2, None)
    with b.locked():
        progress = Progress.of(b)
        assert progress.state == "running" and progress.left == pytest.approx(4 * 5.0)
        page = watch_page(b.path)
        assert page.title == "b: running, step 8 of 12, about 20 s left" and page.refresh
        assert 'http-equiv="refresh"' in page.render()
    assert watch_page(folder).title == "sweep: 1 finished, 1 stopped, 1 waiting"
    done = watch_page(a.path)
    assert "finished" in done.title and not done.refresh and "refresh" not in done.render().split("<style>")[0]
    with pytest.raises(CheckpointError, match="holds no run"):
        runs_of(folder.parent / "corpus")


def test_a_browser_on_this_machine_gets_the_page(folder: Path) -> None:
    with watch_server(folder, 0) as server:
        port = server.server_address[1]
        threading.Thread(target=server.serve_forever, daemon=True).start()

        def get(path: str = "/", **headers: str) -> tuple[int, str]:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

        status, text = get()
        assert status == 200 and "8/12" in text and "5.2000" in text
        RunFolder(folder / "runs" / "b").append_metrics(
            {"kind": "train", "step": 10, "seconds": 50.0, "loss": 5.0, "tokens": 1280, "flops": 1e7}
        )
        assert "10/12" in get()[1]
        assert get(Host="example.org")[0] == get("/runs/b/recipe.yaml")[0] == get("/../recipe.yaml")[0] == 404
        with pytest.raises(ConfigError, match=f"nothing can listen at port {port}"):
            watch_server(folder, port)
        server.shutdown()


def test_a_browser_may_leave(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with watch_server(folder, 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for _ in range(5):
            with socket.create_connection(server.server_address[:2]) as leaving:
                leaving.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
                leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection = http.client.HTTPConnection(*server.server_address[:2], timeout=60)
        connection.request("GET", "/", headers={"Host": "localhost"})
        assert connection.getresponse().status == 200
        server.shutdown()
    assert "Traceback" not in capfd.readouterr().err


def test_the_page_is_written_once(contextwise: Any, folder: Path, workplace: Path) -> None:
    assert contextwise(f"watch {folder} --out page.html")[:2] == (0, "page: page.html\n")
    assert json.dumps("8/12")[1:-1] in (workplace / "page.html").read_text()
    contextwise.refused("watch nothing", "nothing holds no run; give the folder of a run")


def test_a_validation_loss_stands_beside_what_it_was_measured_on_and_one_window_is_not_shown(folder: Path) -> None:
    _, b, _ = runs_of(folder)
    assert "finished, validated on at most 256 windows of 256 tokens" in watch_page(folder).render()
    spent = {"step": 8, "tokens": 1024, "flops": 8e6, "seconds": 40.0}
    b.append_metrics({"kind": "validation", **spent, "loss": 1.2345, "examples": 1})
    assert Progress.of(b).validation is None and "1.2345" not in watch_page(folder).render()
    b.append_metrics({"kind": "validation", **spent, "loss": 1.2345, "examples": 6})
    assert Progress.of(b).validation == 1.2345 and "on 6 windows of" in watch_page(folder).render()
