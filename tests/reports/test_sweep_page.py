"""The page of a sweep: its numbers, what it says of what is missing, and its controls in a real browser."""

import csv
import io
import json
import math
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import browser, needs_browser
from test_page import HOSTILE, Page

from contextwise.base.errors import CheckpointError, ConfigError, DataError
from contextwise.base.files import write_json
from contextwise.data import prepare_corpus
from contextwise.reports import write_sweep_page
from contextwise.reports.sweep_folder import CurveLine, per_byte_where_needed, read_sweep
from contextwise.reports.sweep_tables import sweep_tables
from contextwise.reports.sweep_words import budget_words
from small import write_documents
from synthetic_sweep import write_sweep


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def write_curve(folder: Path, tokenizer: str, low: float = 2.5, **corpus: Any) -> Path:
    """A folder as ``contextwise evaluate --contextwise`` writes it, as far as the page reads it."""
    folder.mkdir(parents=True)
    edges = [(1, 1), (2, 3), (4, 15), (16, 128)]
    bins = [
        {"visible_from": a, "visible_to": b, "loss": low + 1 / b, "low": low, "high": low + 2 / b}
        for a, b in edges
    ]
    about = {"path": "nowhere", "split": "validation", "tokenizer_hash": tokenizer, **corpus}
    summary = {
        "corpus": about,
        "settings": {"mode": "running", "trained_context": 128},
        "bins": bins,
        "measures": {},
    }
    write_json(folder / "summary.json", summary)
    for name in ("documents.parquet", "curve.parquet"):
        (folder / name).write_bytes(b"")
    return folder


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three sizes, five contexts, two seeds, noise; the corpus is there; one run was measured afterwards too."""
    from contextwise.data import Corpus

    folder = tmp_path_factory.mktemp("sweep")
    prepare_corpus(write_documents(folder / "text.jsonl"), "bytes", folder / "corpus", validation=0.1)
    fingerprint = Corpus.open(folder / "corpus").fingerprint
    found = write_sweep(
        folder / "sweep",
        seeds=(0, 1),
        measurements=12,
        noise=0.01,
        corpus=str(folder / "corpus"),
        fingerprint=fingerprint,
        gpus=["a GPU", "a GPU"],
    )
    write_curve(found.run_folder("nano-c128-s0").evaluation / "corpus-validation-contextwise", "own")
    return found.path


@pytest.fixture(scope="module")
def page(sweep: Path) -> Path:
    write_sweep_page(sweep, sweep.parent / "page.html", tables=sweep.parent / "tables")
    return sweep.parent / "page.html"


def text_of(sweep: Path, tmp_path: Path) -> str:
    write_sweep_page(sweep, tmp_path / "page.html")
    return " ".join(Page(tmp_path / "page.html").text.split())


def data_of(page: Path) -> dict[str, Any]:
    scripts = [json.loads(script) for script in Page(page).scripts if script.lstrip().startswith("{")]
    return next(script for script in scripts if "landscapes" in script)


def test_every_table_is_written(page: Path, sweep: Path) -> None:
    tables = {path.stem: rows(path.read_text()) for path in (page.parent / "tables").glob("*.csv")}
    assert set(tables) == {
        "points",
        "best-context-loss",
        "optimal-context",
        "optimal-pair",
        "curves",
        "document-lengths",
    }
    assert len(tables["points"]) == 3 * 5 * 2 * 12
    assert {row["unit"] for row in tables["best-context-loss"]} == {"flops", "seconds", "gpu_hours", "tokens"}
    assert {row["told"] for row in tables["optimal-context"]} == {"yes", "no"}
    assert tables["document-lengths"][0]["share_of_tokens_with_length_from_before"].startswith("0.9")
    hours = [float(row["budget"]) for row in tables["best-context-loss"] if row["unit"] == "gpu_hours"]
    seconds = [float(row["seconds"]) for row in tables["points"]]
    assert max(hours) == pytest.approx(2 * max(seconds) / 3600)


def test_losses_of_the_table_are_interpolated_from_the_points(page: Path) -> None:
    folder = page.parent / "tables"
    points = rows((folder / "points.csv").read_text())
    for row in rows((folder / "best-context-loss.csv").read_text())[::37]:
        if row["unit"] == "gpu_hours":
            continue
        wanted = []
        for seed in ("0", "1"):
            mine = [
                p
                for p in points
                if (p["size"], p["context"], p["seed"]) == (row["size"], row["context"], seed)
            ]
            budgets = [float(p[row["unit"]]) for p in mine]
            losses = [float(p["loss"]) for p in mine]
            wanted.append(np.interp(math.log(float(row["budget"])), np.log(budgets), losses))
        assert float(row["loss"]) == pytest.approx(np.mean(wanted), rel=1e-12)
        assert row["runs"] == "2"


def test_the_page_is_whole_and_loads_nothing(page: Path) -> None:
    read = Page(page)
    loading = [
        tag
        for tag, attributes in read.elements
        if attributes.keys() & {"src", "href", "action"} or tag in ("link", "iframe", "object", "base")
    ]
    policy = next(a["content"] for _, a in read.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert (
        loading == []
        and policy is not None
        and "default-src 'none'" in policy
        and "connect-src" not in policy
    )
    words = " ".join(read.text.split())
    assert "3 model sizes, 5 training contexts (64 to 1 KiT tokens)" in words
    assert "the largest budget at which the optimum and its neighbours were all measured" in words
    assert "micro is the largest size that was tried" in words
    assert "What is missing" not in words
    assert (
        "The corpus rewards training contexts up to" in words
        and "Longer than this corpus can reward" in words
    )


def test_an_unfinished_sweep_says_what_is_missing(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "sweep", sizes=("pico", "nano"))
    for run in ("nano-c1024-s0", "pico-c64-s0", "pico-c512-s0"):
        sweep.run_folder(run).summary_file.unlink()
    shutil.rmtree(sweep.run_folder("nano-c1024-s0").path)
    half = sweep.run_folder("pico-c512-s0").metrics_file
    half.write_text("".join(line + "\n" for line in half.read_text().splitlines()[:5]))
    sweep.note_failure("pico-c64-s0", f"it broke: {HOSTILE}")
    text = text_of(sweep.path, tmp_path)
    assert "1 of 10 runs failed: pico-c64-s0." in text and f"it broke: {HOSTILE}" in text
    assert "1 of 10 runs are unfinished, and are drawn as far as they got: pico-c512-s0." in text
    assert "1 of 10 runs have not begun: nano-c1024-s0." in text
    assert "The corpus could not be read" in text and "there is no corpus at nowhere" in text
    landscapes = {one["unit"]: one for one in data_of(tmp_path / "page.html")["landscapes"]}
    said = " ".join(landscapes["tokens"]["said"][-1])
    assert "Not measured at this budget, and not drawn: pico with 512; nano with 1 KiT." in said


def test_measurements_that_are_no_numbers_are_left_out(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "sweep", sizes=("pico",), contexts=(64, 128))
    file = sweep.run_folder("pico-c64-s0").metrics_file
    broken = re.sub(r'"best_context_loss": [0-9.]+', '"best_context_loss": NaN', file.read_text(), count=2)
    file.write_text(broken)
    assert "2 measurements had a loss that is no number, and are left out." in text_of(sweep.path, tmp_path)


def test_a_sweep_whose_every_loss_is_no_number(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "sweep", sizes=("pico",), contexts=(64,))
    file = sweep.run_folder("pico-c64-s0").metrics_file
    file.write_text(re.sub(r'"best_context_loss": [0-9.]+', '"best_context_loss": NaN', file.read_text()))
    with pytest.raises(DataError, match=r"none of the \d+ losses that the sweep .* measured is a number"):
        write_sweep_page(sweep.path, tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_one_context_and_one_size(tmp_path: Path) -> None:
    one = write_sweep(tmp_path / "one", contexts=(128,))
    text = text_of(one.path, tmp_path)
    assert "This sweep has one training context (128 tokens), so there is no optimum to look for" in text
    other = write_sweep(tmp_path / "other", sizes=("nano",))
    text = text_of(other.path, tmp_path)
    assert "one model size (nano), so it says nothing of larger ones" in text
    assert "The optimal context of nano goes from 64 tokens" in text
    single = write_sweep(tmp_path / "single", sizes=("nano",), contexts=(128,), measurements=1)
    assert "so there is no optimum to look for" in text_of(single.path, tmp_path)


def test_a_size_that_lacks_its_neighbour_is_no_overall_optimum(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "sweep", sizes=("pico", "nano"))
    for run in sweep.plan:
        if run.size == "pico":
            shutil.rmtree(sweep.run_folder(run.id).path)
    text = text_of(sweep.path, tmp_path)
    assert "At no budget were the overall optimum and all its neighbours measured." in text
    assert "The optimal context of nano goes from 64 tokens" in text
    landscapes = data_of(tmp_path / "page.html")["landscapes"]
    assert all(overall is None for one in landscapes for overall in one["overall"])
    assert any(circles for one in landscapes for circles in one["circles"])


def test_nothing_measured_yet(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "sweep", sizes=("pico",), contexts=(64,))
    shutil.rmtree(sweep.run_folder("pico-c64-s0").path)
    with pytest.raises(
        ConfigError, match=r"no run of the sweep .* has measured a contextwise curve yet \(1 missing\)"
    ):
        write_sweep_page(sweep.path, tmp_path / "page.html")
    with pytest.raises(CheckpointError, match=r"is not a sweep: it has no plan\.json"):
        write_sweep_page(tmp_path, tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()
    with pytest.raises(ConfigError, match="is a folder; give the name of a file for the page"):
        write_sweep_page(sweep.path, tmp_path)


def test_names_of_users_are_text(tmp_path: Path) -> None:
    name = "<b>x</b>&amp;"
    sweep = write_sweep(tmp_path / "sweep", sizes=(name.replace("/", ""),), contexts=(64, 128))
    write_sweep_page(sweep.path, tmp_path / "page.html")
    page = Page(tmp_path / "page.html")
    assert "b" not in page.tags() and name.replace("/", "") in page.text
    traces = data_of(tmp_path / "page.html")["landscapes"][0]["context"]["data"]
    assert {trace["name"] for trace in traces} == {"&lt;b&gt;x&lt;b&gt;&amp;amp;"}


def curve(tokenizer: str | None, bytes_per_token: float | None, group: str = "nano") -> CurveLine:
    return CurveLine(
        label=str(tokenizer),
        group=group,
        series=0,
        context=64,
        ends=[(1, 1), (2, 64)],
        losses=[[4.0, 2.0]],
        intervals=[(3.9, 4.1), (None, None)],
        tokenizer=tokenizer,
        bytes_per_token=bytes_per_token,
    )


def test_a_last_bin_that_is_cut_short_joins_the_one_before(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "sweep", sizes=("pico",), contexts=(64,), measurements=1)
    (row,) = sweep.run_folder("pico-c64-s0").metrics("contextwise")
    assert row["visible"][-3:] == [32, 45, 64]  # the last bin is one position, the one before it 19
    (found,) = read_sweep(sweep.path).curves
    assert found.ends[-2:] == [(32, 44), (45, 64)]
    assert found.losses[0][-1] == pytest.approx((19 * row["loss"][-2] + row["loss"][-1]) / 20)
    assert found.losses[0][:-1] == row["loss"][:-2]


def test_curves_of_different_tokenizers_are_shown_per_byte_or_not_at_all() -> None:
    assert per_byte_where_needed([curve("a", None), curve("a", None, "other runs")])[1] == "nats per token"
    both, unit = per_byte_where_needed([curve("a", 4.0), curve("b", 2.0, "other runs")])
    assert unit == "bits per byte"
    assert both[0].losses == [[pytest.approx(4 / math.log(2) / 4), pytest.approx(2 / math.log(2) / 4)]]
    assert both[1].losses[0][0] == pytest.approx(4 / math.log(2) / 2)
    assert both[1].intervals == [
        (pytest.approx(3.9 / math.log(2) / 2), pytest.approx(4.1 / math.log(2) / 2)),
        (None, None),
    ]
    with pytest.raises(ConfigError, match="different tokenizers, whose nats per token are not comparable"):
        per_byte_where_needed([curve("a", 4.0), curve("b", None, "other runs")])


def test_other_runs_beside_the_sweep(sweep: Path, tmp_path: Path) -> None:
    corpus = {"path": str(sweep.parent / "corpus")}
    folder = write_curve(tmp_path / "other" / "evaluation" / "x-contextwise", "another", **corpus)
    for given in (tmp_path / "other", folder):
        data = read_sweep(sweep, [given])
        assert data.loss_unit == "bits per byte"  # a token of that corpus is a byte
        assert data.curves[-1].group == "other runs" and data.curves[-1].label.startswith(
            "other, measured on x"
        )
        assert data.curves[-1].losses[0][-1] == pytest.approx((2.5 + 1 / 128) / math.log(2))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="empty has no contextwise curve to show beside the sweep"):
        read_sweep(sweep, [tmp_path / "empty"])
    with pytest.raises(ConfigError, match="there is no folder .*nowhere; give a run"):
        read_sweep(sweep, [tmp_path / "nowhere"])


def test_budgets_in_words() -> None:
    assert budget_words("flops", 1.26e15) == "1.3 × 10¹⁵ FLOPs"
    assert budget_words("flops", 9.99e9) == "1.0 × 10¹⁰ FLOPs"
    assert budget_words("seconds", 300) == "5.0 min of training"
    assert budget_words("gpu_hours", 160) == "160 GPU-hours"
    assert budget_words("tokens", 8_192_000) == "8.19M tokens"


class Opened:
    """The page in the browser."""

    def __init__(self, driver: Any, page: Path, downloads: Path) -> None:
        self.driver, self.downloads = driver, downloads
        driver.get(page.as_uri())

    def do(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def figure(self, name: str) -> list[dict[str, Any]]:
        """The traces that Plotly has drawn."""
        return self.do(
            "return document.getElementById(arguments[0]).data.map((t) => "
            "({name: t.name, mode: t.mode, x: t.x, y: t.y, meta: t.meta, error: t.error_y && t.error_y.array}))",
            name,
        )

    def slide(self, step: int) -> None:
        """Move the slider by its keys, as a reader does."""
        from selenium.webdriver.common.keys import Keys

        slider = self.driver.find_element("id", "budget")
        last = int(slider.get_attribute("max"))
        keys = (
            Keys.HOME + Keys.ARROW_RIGHT * step
            if step <= last / 2
            else Keys.END + Keys.ARROW_LEFT * (last - step)
        )
        slider.send_keys(keys)
        assert slider.get_attribute("value") == str(step)

    def click(self, selector: str, place: int = 0) -> None:
        found = self.driver.find_elements("css selector", selector)[place]
        self.do("arguments[0].scrollIntoView({block: 'center'})", found)
        found.click()

    def download(self, table: str) -> list[dict[str, str]]:
        target = self.downloads / f"{table}.csv"
        target.unlink(missing_ok=True)
        self.click(f".csv[data-table='{table}']")
        for _ in range(100):
            if target.exists() and target.stat().st_size:
                return rows(target.read_text())
            time.sleep(0.05)
        raise AssertionError(f"{target} did not come")


@pytest.fixture(scope="module")
def opened(page: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    downloads = tmp_path_factory.mktemp("downloads")
    with browser(downloads) as driver:
        yield Opened(driver, page, downloads)


@pytest.fixture(scope="module")
def tables(sweep: Path) -> dict[str, list[dict[str, str]]]:
    return {name: rows(text) for name, text in sweep_tables(read_sweep(sweep)).items()}


def at(table: list[dict[str, str]], unit: str, step: int) -> list[dict[str, str]]:
    """Rows of a table at a step of the slider."""
    budgets = sorted({float(row["budget"]) for row in table if row["unit"] == unit})
    return [row for row in table if row["unit"] == unit and float(row["budget"]) == budgets[step]]


def drawn(opened: Opened) -> dict[tuple[str, int], tuple[float, float]]:
    """Size and context -> loss and standard error, as they stand in the figure."""
    return {
        (trace["name"], context): (loss, error)
        for trace in opened.figure("loss")
        if "lines" in trace["mode"]
        for context, loss, error in zip(trace["x"], trace["y"], trace["error"], strict=True)
    }


@needs_browser()
@pytest.mark.parametrize(("place", "unit"), [(0, "flops"), (1, "seconds"), (2, "gpu_hours"), (3, "tokens")])
def test_the_slider_draws_the_table(opened: Opened, tables: dict[str, Any], place: int, unit: str) -> None:
    opened.click("#units button", place)
    for step in (0, 12, 85, 96):
        opened.slide(step)
        wanted = at(tables["best-context-loss"], unit, step)
        assert drawn(opened) == {
            (row["size"], int(row["context"])): (float(row["loss"]), float(row["standard_error"]))
            for row in wanted
        }
        best = [row for row in tables["optimal-context"] if row["unit"] == unit and row["told"] == "yes"]
        here = [row for row in best if row["budget"] == wanted[0]["budget"]]
        circles = [trace for trace in opened.figure("loss") if trace["name"] == "optimum"]
        assert sorted((t["x"][0], t["y"][0]) for t in circles) == sorted(
            (int(row["context"]), float(row["loss"])) for row in here
        )
        pairs = [row for row in tables["optimal-pair"] if row["unit"] == unit and row["told"] == "yes"]
        told = [row for row in pairs if row["budget"] == wanted[0]["budget"]]
        shapes = opened.do(
            "return document.getElementById('loss').layout.shapes.map((s) => [s.x0, s.line.dash])"
        )
        assert shapes == [[int(row["context"]), "dash"] for row in told]
        words = opened.do("return document.getElementById('budget-words').textContent")
        assert words == budget_words(unit, float(wanted[0]["budget"]))


@needs_browser()
def test_the_lines_over_the_budget_are_those_of_the_table(opened: Opened, tables: dict[str, Any]) -> None:
    for place, unit in ((3, "tokens"), (0, "flops")):
        opened.click("#units button", place)
        for size in ("pico", "nano", "micro"):
            wanted = {
                float(row["budget"]): int(row["smoothed_context"])
                for row in tables["optimal-context"]
                if (row["unit"], row["size"]) == (unit, size) and row["smoothed_context"]
            }
            line = next(t for t in opened.figure("context") if t["name"] == size and t["mode"] == "lines")
            # Lines are drawn less than a fifth of a doubling from where they lie, so that none hides another.
            assert {
                x: 2 ** round(math.log2(y)) for x, y in zip(line["x"], line["y"], strict=True) if y
            } == wanted
        wanted_pairs = {
            float(row["budget"]): (row["smoothed_size"], int(row["smoothed_context"]))
            for row in tables["optimal-pair"]
            if row["unit"] == unit and row["smoothed_size"]
        }
        pairs = {
            x: (trace["name"], y)
            for trace in opened.figure("pair")
            if trace["name"]
            for x, y in zip(trace["x"], trace["y"], strict=True)
            if y is not None
        }
        assert pairs == wanted_pairs and pairs


@needs_browser()
def test_curves_are_switched_on_and_off(opened: Opened, tables: dict[str, Any]) -> None:
    opened.click("#units button", 3)
    names = {trace["name"] for trace in opened.figure("curves")}
    place = opened.do(
        "return [...document.querySelectorAll('#switches label')].findIndex((l) => l.textContent === '256, seed 1')"
    )
    assert "pico, 256, seed 1" not in names
    opened.click("#switches input", place)
    trace = next(t for t in opened.figure("curves") if t["name"] == "pico, 256, seed 1")
    mine = [row for row in tables["curves"] if (row["group"], row["run"]) == ("pico", "256, seed 1")]
    last = [row for row in mine if row["spent_tokens"] == mine[-1]["spent_tokens"]]
    assert trace["y"] == [float(row["loss"]) for row in last]
    assert trace["x"] == pytest.approx(
        [math.sqrt(int(r["visible_from"]) * int(r["visible_to"])) for r in last]
    )
    opened.slide(20)
    opened.click("#moment button", 1)  # the newest measurement within the slider's budget
    budget = at(tables["best-context-loss"], "tokens", 20)[0]["budget"]
    within = [row for row in mine if float(row["spent_tokens"]) <= float(budget)]
    then = [float(row["loss"]) for row in within if row["spent_tokens"] == within[-1]["spent_tokens"]]
    trace = next(t for t in opened.figure("curves") if t["name"] == "pico, 256, seed 1")
    assert trace["y"] == then != [float(row["loss"]) for row in last]
    opened.click("#moment button", 0)
    opened.click("#switches input", place)
    assert {trace["name"] for trace in opened.figure("curves")} == names
    measured = "nano, 128, seed 0, measured on corpus-validation"
    assert measured not in names
    place = opened.do(
        "return [...document.querySelectorAll('#switches label')].findIndex((l) => l.textContent.includes('measured'))"
    )
    opened.click("#switches input", place)
    trace = next(t for t in opened.figure("curves") if t["name"] == measured)
    assert trace["error"] == pytest.approx([1 / high for high in (1, 3, 15, 128)])
    opened.click("#switches input", place)
    opened.click("#switches button", 2)  # the size whose curves are on: all off, then all on
    assert opened.figure("curves") == []
    opened.click("#switches button", 2)
    assert {trace["name"] for trace in opened.figure("curves")} == names


@needs_browser()
def test_the_tables_are_downloaded(opened: Opened, tables: dict[str, Any]) -> None:
    for name in ("points", "optimal-context", "optimal-pair", "document-lengths"):
        assert opened.download(name) == tables[name]
    opened.click("#units button", 0)
    opened.slide(80)
    found = opened.download("best-context-loss")
    wanted = at(tables["best-context-loss"], "flops", 80)
    assert len(found) == len(wanted) > 3

    def typed(row: dict[str, str]) -> tuple[Any, ...]:
        return tuple(value if key in ("unit", "size") else float(value) for key, value in row.items())

    assert sorted(map(typed, found)) == sorted(map(typed, wanted))
    assert list(found[0]) == list(wanted[0])
    curves = opened.download("curves")
    shown = {trace["name"] for trace in opened.figure("curves")}
    assert {f"{row['group']}, {row['run']}" for row in curves} == shown
    one = [row for row in curves if row["run"] == curves[0]["run"]]
    mine = [row for row in tables["curves"] if (row["group"], row["run"]) == (one[0]["group"], one[0]["run"])]
    assert [float(row["loss"]) for row in one] == [float(row["loss"]) for row in mine[-len(one) :]]


@needs_browser()
def test_the_browser_complains_of_nothing(opened: Opened) -> None:
    assert opened.driver.get_log("browser") == []
    for width in (1280, 400):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        opened.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        deadline = time.monotonic() + 10  # figures follow the window a moment later
        while opened.do("return document.documentElement.scrollWidth") > width:
            assert time.monotonic() < deadline, f"the page is wider than {width}"
            time.sleep(0.1)


Typed = Callable[..., tuple[int, str, str]]


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Typed:
    from contextwise.cli import main

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("sys.argv", ["contextwise", "report", *map(str, arguments)])
        with pytest.raises(SystemExit) as status:
            main()
        return int(status.value.code or 0), *capsys.readouterr()

    return run


def test_the_command(typed: Typed, tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "sweep", sizes=("pico",), contexts=(64, 128), measurements=3)
    assert typed(sweep.path) == (0, f"{sweep.path}/report.html\n", "")
    status, output, _ = typed(sweep.path, "--out", "there.html", "--csv", "tables")
    assert status == 0 and output.splitlines()[:2] == ["there.html", "tables/points.csv"]
    assert (tmp_path / "tables" / "optimal-context.csv").exists()
    status, _, errors = typed(sweep.path, "--label", "x")
    assert status == 2 and "--label chooses an evaluation of runs, and a sweep has none" in errors
    status, _, errors = typed(sweep.run_folder("pico-c64-s0").path, "--csv", "tables")
    assert status == 2 and "--csv writes the tables of a sweep" in errors
    status, _, errors = typed(sweep.path, "--csv", "there.html")
    assert status == 2 and "there.html is a file; give a folder for the tables with --csv" in errors
