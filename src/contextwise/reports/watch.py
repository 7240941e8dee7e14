"""A live page about the runs of a folder: losses, speed, time left; served on the loopback interface or written once."""

import contextlib
import sys
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from contextwise.base.config import validate
from contextwise.base.errors import CheckpointError, ConfigError, ContextwiseError
from contextwise.base.estimates import duration
from contextwise.base.files import is_held
from contextwise.base.runs import RunFolder, measured_on
from contextwise.base.tables import Cell, Column, Table
from contextwise.reports.page import Page, Plot, Section
from contextwise.reports.runs import Curve, training_figure
from contextwise.training.recipe import Recipe

REFRESH_SECONDS = 15
LOOPBACK = ("localhost", "127.0.0.1")
MOST_CURVES = 20
"""Runs whose losses are drawn: those that were written to last."""


@dataclass(frozen=True)
class Progress:
    """How far a run is.

    Attributes:
        state: ``finished``, ``running``, ``diverged``, ``stopped`` (some steps are done) or ``waiting``.
        steps: of the whole run; None if its recipe cannot be read.
        validation: the newest validation loss, and what it was measured on; None if that was too little.
        left: seconds, at the pace of the newest rows of its log.
    """

    run: RunFolder
    state: str
    step: int
    steps: int | None
    loss: float | None
    validation: float | None
    validated_on: str
    speed: float | None
    left: float | None

    @classmethod
    def of(cls, run: RunFolder) -> "Progress":
        """Read the progress of a run from its files."""
        rows, held_out, steps = run.metrics("train"), run.metrics("validation"), None
        shown, on = list[dict[str, Any]](), ""
        with contextlib.suppress(ContextwiseError):
            shown = run.validations()
            on = measured_on(run.recipe(), shown[-1].get("examples")).strip() if shown else ""
        last = rows[-1] if rows else {}
        step = max((row["step"] for row in (*rows[-1:], *held_out[-1:])), default=0)
        with contextlib.suppress(ContextwiseError):
            steps = validate(Recipe, run.recipe(), "the recipe").total_steps
        state = "stopped" if rows else "waiting"
        if run.finished:
            state = "finished"
        elif run.diverged:
            state = "diverged"
        elif is_held(run.path, inside=True):
            state = "running"
        recent, left = rows[-20:], None
        if state == "running" and steps and len(recent) > 1 and recent[-1]["step"] > recent[0]["step"]:
            taken = recent[-1]["step"] - recent[0]["step"]
            left = (steps - step) * (recent[-1]["seconds"] - recent[0]["seconds"]) / taken
        validation = shown[-1]["loss"] if shown else None
        return cls(run, state, step, steps, last.get("loss"), validation, on, last.get("tokens_per_second"), left)


def runs_of(folder: Path) -> list[RunFolder]:
    """The run in a folder, or the runs of a sweep or trial, or of any folder of runs.

    Raises:
        CheckpointError: there is none.
    """
    folders = [folder, *sorted(folder.glob("*/")), *sorted(folder.glob("runs/*/"))]
    runs = [run for run in map(RunFolder, folders) if run.exists]
    if not runs:
        raise CheckpointError(f"{folder} holds no run; give the folder of a run, a sweep, a trial, or of runs")
    return runs[:1] if runs[0].path == folder else runs


def watch_page(folder: Path) -> Page:
    """The page about the runs of a folder as they are now; a browser loads it again while one of them is not finished."""
    progress = [Progress.of(run) for run in runs_of(folder)]
    counts = {
        state: sum(each.state == state for each in progress) for state in dict.fromkeys(p.state for p in progress)
    }
    title = f"{folder.resolve().name}: {', '.join(f'{number} {state}' for state, number in counts.items())}"
    if len(progress) == 1:
        (only,) = progress
        left = "" if only.left is None else f", about {duration(only.left)} left"
        title = f"{folder.resolve().name}: {only.state}, step {only.step:,} of {only.steps or 0:,}{left}"
    rows: list[list[Cell]] = []
    for each in progress:
        step = f"{each.step:,}" + ("" if each.steps is None else f"/{each.steps:,}")
        name = each.run.path.name, ", validated ".join(filter(None, [each.state, each.validated_on]))
        rows.append([name, step, each.loss, each.validation, each.speed, each.left])
    columns = [Column("run"), Column("step", align="right")]
    columns += [Column(f"{name}\nloss", "estimate", ".4f") for name in ("training", "validation")]
    columns += [Column("tok/s", "count"), Column("left", "duration")]
    newest = sorted(progress, key=lambda p: p.run.metrics_file.stat().st_mtime if p.run.metrics_file.exists() else 0.0)
    drawn = [each.run for each in progress if each in newest[-MOST_CURVES:]]
    figure = training_figure([Curve(run, run.path.name, i) for i, run in enumerate(drawn)])
    plots = [] if figure is None else [Plot("training", figure, "Training and validation loss of each run")]
    sections = [Section("Runs", [Table("", columns, rows)]), Section("Losses", plots)]
    over = all(each.state in ("finished", "diverged") for each in progress)
    return Page(title, sections, "", [], "runs", refresh=0 if over else REFRESH_SECONDS)


def watch_server(folder: Path, port: int) -> ThreadingHTTPServer:
    """A server of the page on the loopback interface; a request reads the files anew, and writes nothing.

    Raises:
        CheckpointError: the folder holds no run.
        ConfigError: the port is taken.
    """
    runs_of(folder)

    class Handler(BaseHTTPRequestHandler):
        timeout = 30

        def do_GET(self) -> None:
            # A page of another site can have a name of its own that leads here (DNS rebinding).
            if self.headers.get("Host", "").partition(":")[0] not in LOOPBACK or self.path != "/":
                self.send_error(404)
                return
            try:
                status, text = 200, watch_page(folder).render()
            except ContextwiseError as error:
                status, text = 500, Page(str(error), [], refresh=REFRESH_SECONDS).render()
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *request: Any) -> None:
            if not isinstance(sys.exception(), ConnectionError):  # the browser has loaded the page again meanwhile
                super().handle_error(*request)

    try:
        return Server(("127.0.0.1", port), Handler)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"nothing can listen at port {port} ({error}); choose another --port") from None
