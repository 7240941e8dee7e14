"""The page: complete, and without a word to the network; that it is escaped: tests/test_hostile_titles.py."""

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contextwise.base.estimates import count, written
from contextwise.comparison.comparison import compare
from contextwise.reports.runs import report_page
from html_pages import Page


@pytest.fixture
def three(make_run: Callable[..., Any]) -> list[Any]:
    return [
        make_run("GPT-2"),
        make_run("GPT-2 +2 layers (PM)", shift=-0.1, speed=6000.0),
        make_run("ContextLM", shift=-0.2, speed=8000.0),
    ]


def test_everything_is_there_without_javascript(three: list[Any], tmp_path: Path) -> None:
    comparison = compare([str(run.path) for run in three], all_pairs=True)
    report_page(three, comparison).write(tmp_path / "page.html")
    page = Page(tmp_path / "page.html")
    for group in comparison.groups:
        assert f"{group.loss.value:.4f}" in page.text
        assert count(group.parameters) in page.text
    for found in comparison.differences:
        assert written(found.difference.value, "+.4f") in page.text
    assert "the loss of ContextLM is lower than that of GPT-2 by" in page.text
    assert "One seed of" in page.text
    assert "c0ffee" in page.text and "2.13.0" in page.text  # the data and the versions
    assert set(page.figures()) == {"training", "differences"}


@pytest.mark.parametrize("unit", ["token", "byte"])
def test_losses_of_tokens_are_not_compared_where_the_unit_is_a_byte(
    make_run: Callable[..., Any], tmp_path: Path, unit: str
) -> None:
    runs = [make_run("A"), make_run("B", shift=-0.1)]
    report_page(runs, compare([str(run.path) for run in runs], unit=unit)).write(tmp_path / "page.html")
    said = "Losses per token of different tokenizers cannot be compared" in Page(tmp_path / "page.html").text
    assert said is (unit == "byte")


def test_an_unfinished_run_has_a_page(make_run: Callable[..., Any], tmp_path: Path) -> None:
    run = make_run("A", evaluated=False, finished=False)
    report_page([run]).write(tmp_path / "page.html")
    page = Page(tmp_path / "page.html")
    assert "not finished" in page.text
    assert "The models" not in page.text and "Differences" not in page.text


def test_one_run_shows_its_evaluation(make_run: Callable[..., Any], tmp_path: Path) -> None:
    report_page([make_run("A")]).write(tmp_path / "page.html")
    text = Page(tmp_path / "page.html").text
    assert "corpus-validation: 40 documents" in text
    assert "bits per byte" in text


def test_runs_of_one_name_are_told_apart(make_run: Callable[..., Any], tmp_path: Path) -> None:
    runs = [make_run("A", seed=seed) for seed in (0, 1)]
    report_page(runs).write(tmp_path / "page.html")
    data = Page(tmp_path / "page.html").figures()["training"]["data"]
    assert {trace["name"] for trace in data} == {"A (A-0)", "A (A-1)"}
    assert {trace["name"]: trace["meta"]["series"] for trace in data} == {"A (A-0)": 0, "A (A-1)": 1}
    report_page([*runs, make_run("B")]).write(tmp_path / "page.html")
    data = Page(tmp_path / "page.html").figures()["training"]["data"]
    colours = {trace["name"]: trace["meta"]["series"] for trace in data}
    assert colours == {"A (A-0)": 0, "A (A-1)": 0, "B": 1}  # a colour for each model


def test_a_comparison_page_finds_the_runs_of_evaluation_folders(three: list[Any], tmp_path: Path) -> None:
    folders = [str(run.evaluation / "corpus-validation") for run in three]
    report_page([], compare(folders)).write(tmp_path / "page.html")
    page = Page(tmp_path / "page.html")
    assert len(page.figures()["training"]["data"]) == 9
    assert "− GPT-2" in page.text


@pytest.mark.long
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs the chromium browser")
def test_a_browser_draws_the_figures(three: list[Any], tmp_path: Path) -> None:
    comparison = compare([str(run.path) for run in three], all_pairs=True)
    page = tmp_path / "page.html"
    report_page(three, comparison).write(page)
    text = page.read_text(encoding="utf-8")
    # The third button, and what the axis then says, are left in the document that the browser prints.
    page.write_text(
        text.replace("</body>", "<script>document.querySelectorAll('.axes button')[2].click()</script></body>")
    )
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=10000", "--dump-dom", page.as_uri()]
    drawn = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert drawn.count('class="main-svg"') >= 2
    assert "GPT-2 +2 layers (PM) − GPT-2</text>" in drawn
    assert re.search(r'aria-pressed="true"[^>]*>FLOPs', drawn)
    assert ">training FLOPs</text>" in drawn
