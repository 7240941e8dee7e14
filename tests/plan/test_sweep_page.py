"""The page of a sweep: its numbers, and what it says of what is missing."""

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contextwise.base.errors import CheckpointError, ConfigError, DataError
from contextwise.base.tables import Row, spread
from contextwise_plan.scaling.observations import read_observations, write_table
from contextwise_plan.sweeps.page import SweepData, optima_table, sweep_verdict, write_sweep_page
from contextwise_plan.tracks import budget_words
from html_pages import Page
from synthetic_sweep import write_sweep

pytestmark = pytest.mark.long


def text_of(sweep: Path, tmp_path: Path) -> str:
    write_sweep_page(sweep, tmp_path / "page.html")
    return " ".join(Page(tmp_path / "page.html").text.split())


def data_of(page: Path) -> dict[str, Any]:
    scripts = [json.loads(script) for script in Page(page).scripts if script.lstrip().startswith("{")]
    return next(script for script in scripts if "landscapes" in script)


def test_losses_between_two_points_are_interpolated(sweep: Path) -> None:
    data = SweepData(sweep)
    assert len(data.points) == 3 * 5 * 2 * 12
    for landscape in data.landscapes:
        for budget, cells in [*zip(landscape.budgets, landscape.cells, strict=True)][::13]:
            for cell in cells[::3]:
                wanted = []
                for seed in (0, 1):
                    mine = [point for point in data.points if point.cell == (cell.size, cell.context, seed)]
                    budgets = [getattr(point, landscape.unit) for point in mine]
                    wanted.append(np.interp(math.log(budget), np.log(budgets), [point.loss for point in mine]))
                assert cell.loss == pytest.approx(np.mean(wanted), rel=1e-12) and cell.runs == 2


def test_the_page_is_whole(page: Path) -> None:
    words = " ".join(Page(page).text.split())
    assert "3 model sizes, 5 training contexts (64 to 1,024 tokens)" in words
    assert "The lowest loss of all sizes is that of" in words
    assert "What is missing" not in words


def test_an_unfinished_sweep_says_what_is_missing(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "sweep", sizes=("pico", "nano"))
    for run in ("nano-c1024-s0", "pico-c64-s0", "pico-c512-s0"):
        sweep.run_folder(run).summary_file.unlink()
    shutil.rmtree(sweep.run_folder("nano-c1024-s0").path)
    half = sweep.run_folder("pico-c512-s0").metrics_file
    half.write_text("".join(line + "\n" for line in half.read_text().splitlines()[:5]))
    sweep.note_failure("pico-c64-s0", "it broke")
    text = text_of(sweep.path, tmp_path)
    assert "1 of 10 runs failed: pico-c64-s0." in text and "it broke" in text
    assert "1 of 10 runs unfinished, drawn as far as measured: pico-c512-s0." in text
    assert "1 of 10 runs not begun: nano-c1024-s0." in text
    landscapes = {one["unit"]: one for one in data_of(tmp_path / "page.html")["landscapes"]}
    said = " ".join(landscapes["tokens"]["sentences"][-1])
    assert "Not measured at this budget, and not drawn: pico with 512; nano with 1,024." in said
    data = SweepData(sweep.path)
    landscape = next(one for one in data.landscapes if one.unit == "tokens")
    steps, table = len(landscape.budgets), optima_table(data, landscape)
    some = [
        (row[1 + i], landscape.optima[step].get(size))
        for row, step in zip(table.rows, spread(range(steps), len(table.rows)), strict=True)
        for i, size in enumerate(("pico", "nano"))
        if isinstance(row, list)
    ]
    assert {(cell is None, best is not None and best.decided) for cell, best in some} == {(True, False), (False, True)}


def test_measurements_that_are_no_numbers_are_left_out(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "sweep", sizes=("pico",), contexts=(64, 128))
    file = sweep.run_folder("pico-c64-s0").metrics_file
    broken = re.sub(r'"best_context_loss": [0-9.]+', '"best_context_loss": NaN', file.read_text(), count=2)
    file.write_text(broken)
    assert "2 measurements left out: the loss is no number." in text_of(sweep.path, tmp_path)


def test_a_sweep_whose_every_loss_is_no_number(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "sweep", sizes=("pico",), contexts=(64,))
    file = sweep.run_folder("pico-c64-s0").metrics_file
    file.write_text(re.sub(r'"best_context_loss": [0-9.]+', '"best_context_loss": NaN', file.read_text()))
    with pytest.raises(DataError, match=r"no loss that the sweep .* measured is a number"):
        write_sweep_page(sweep.path, tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_one_context_and_one_size(tmp_path: Path) -> None:
    one = write_sweep(tmp_path / "one", contexts=(128,))
    text = text_of(one.path, tmp_path)
    assert "This sweep has one training context, so others were not compared." in text
    other = write_sweep(tmp_path / "other", sizes=("nano",))
    text = text_of(other.path, tmp_path)
    assert "This sweep has one model size, so others were not compared." in text
    single = write_sweep(tmp_path / "single", sizes=("nano",), contexts=(128,), measurements=1)
    assert "one training context, so others were not compared" in text_of(single.path, tmp_path)


def test_page_and_plan_say_the_same_of_what_was_measured(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "sweep", sizes=("pico", "nano"), seeds=(0, 1), noise=0.01)
    findings = read_observations(sweep.path).landscape().findings()
    assert [finding.split(", ")[1].split(":")[0] for finding in findings] == ["pico", "nano"]
    assert any("within its noise" in finding for finding in findings)
    text = text_of(sweep.path, tmp_path)
    assert all(finding in text for finding in findings)


def test_the_table_of_a_sweep_has_the_page_of_its_folder(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "sweep", sizes=("pico", "nano"), seeds=(0, 1), noise=0.01)
    write_table(read_observations(sweep.path, early=0), tmp_path / "table.json", sweep.path)
    sources = {"folder": sweep.path, "table": tmp_path / "table.json"}
    for name, source in sources.items():
        write_sweep_page(source, tmp_path / f"{name}.html")
    folder, table = (data_of(tmp_path / f"{name}.html") for name in sources)
    assert folder["landscapes"][0]["cells"] and folder == table
    assert "The runs" not in Page(tmp_path / "table.html").text


def test_what_the_sweep_does_not_show_is_neither_circled_nor_called_an_optimum(tmp_path: Path) -> None:
    """Figure, table, summary and sentences say the same of each budget, whether the noise hides the best context or not."""
    sizes, shown = ("pico", "nano"), []
    for noise in (0.0, 3.0):
        sweep = write_sweep(tmp_path / f"sweep-{noise}", sizes=sizes, seeds=(0, 1), noise=noise)
        text, landscape = text_of(sweep.path, tmp_path), data_of(tmp_path / "page.html")["landscapes"][0]
        for said, circles in zip(landscape["sentences"], landscape["circles"], strict=True):
            circled = {sizes[series] for series, _, _ in circles}
            doubted = {size for size in sizes for each in said if f"{size}: the sweep does not show which" in each}
            assert not circled & doubted
            shown += [(noise, bool(circled), bool(doubted))]
        data = SweepData(sweep.path)
        table = optima_table(data, data.landscapes[0])
        for row, step in zip(table.rows, spread(range(len(landscape["budgets"])), len(table.rows)), strict=True):
            cells = row.cells if isinstance(row, Row) else row
            marked = {size for size, cell in zip(sizes, cells[1:], strict=False) if cell and cell[0][0] != "("}
            assert marked == {sizes[series] for series, _, _ in landscape["circles"][step]}
            assert (cells[-1] is None) == (landscape["overall"][step] is None)
        paragraphs = sweep_verdict(data)
        assert [paragraph.split(":")[0].split(", ")[-1] for paragraph in paragraphs[1:3]] == list(sizes)
        assert "so the intervals leave out" not in text  # two seeds
    assert {(0.0, True, False), (3.0, False, True)} <= set(shown)


def test_the_sentences_below_the_figure_do_not_repeat_the_summary(tmp_path: Path) -> None:
    data = SweepData(write_sweep(tmp_path / "sweep", sizes=("pico", "nano"), noise=0.01).path)
    summary = " ".join(sweep_verdict(data))
    assert summary.count("one seed, so") == 1
    write_sweep_page(data.path, tmp_path / "page.html")
    landscapes = data_of(tmp_path / "page.html")["landscapes"]
    assert "one seed, so" not in str(landscapes)  # below the figure, at every budget
    below = landscapes[0]["sentences"][landscapes[0]["start"]]
    assert below and not any(each in summary for each in below)


def test_a_size_that_lacks_its_neighbour_is_no_overall_optimum(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "sweep", sizes=("pico", "nano"))
    for run in sweep.plan:
        if run.size == "pico":
            shutil.rmtree(sweep.run_folder(run.id).path)
    text = text_of(sweep.path, tmp_path)
    assert "no overall optimum is drawn: not all that is next to it was measured at this budget." in text
    landscapes = data_of(tmp_path / "page.html")["landscapes"]
    assert all(overall is None for one in landscapes for overall in one["overall"])
    assert any(circles for one in landscapes for circles in one["circles"])


def test_the_shortest_or_longest_context_is_no_optimum(tmp_path: Path) -> None:
    text = text_of(write_sweep(tmp_path / "sweep", sizes=("pico", "nano"), contexts=(512, 1024)).path, tmp_path)
    assert "no overall optimum is drawn: 512 is the shortest context that was tried." in text and "(512 tokens)" in text
    for landscape in data_of(tmp_path / "page.html")["landscapes"]:
        assert not any(landscape["circles"]) and not any(landscape["overall"])
        said = [sentences[0] for sentences in landscape["sentences"]]
        assert any("no overall optimum is drawn: 512 is the shortest context that was tried." in each for each in said)
        assert not any("The lowest loss of all sizes" in each for each in said)


def test_nothing_measured_yet(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "sweep", sizes=("pico",), contexts=(64,))
    shutil.rmtree(sweep.run_folder("pico-c64-s0").path)
    with pytest.raises(ConfigError, match=r"no run of the sweep .* has measured a context curve yet \(1 missing\)"):
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


def test_budgets_in_words() -> None:
    assert budget_words("flops", 1.26e15) == "1.3 × 10¹⁵ FLOPs"
    assert budget_words("flops", 9.99e9) == "1.0 × 10¹⁰ FLOPs"
    assert budget_words("seconds", 300) == "5.0 min of training"
    assert budget_words("tokens", 8_192_000) == "8.19M tokens"
