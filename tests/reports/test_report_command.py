"""``contextwise report``, as it is typed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contextwise.cli import main
from synthetic_sweep import write_sweep

Typed = Callable[..., tuple[int, str, str]]


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Typed:
    """Type ``contextwise report …`` in the test's folder; gives (exit status, output, errors)."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("sys.argv", ["contextwise", "report", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_status:
            main()
        return int(exit_status.value.code or 0), *capsys.readouterr()

    return run


def test_one_run_gets_its_page_in_its_folder(make_run: Callable[..., Any], typed: Typed) -> None:
    run = make_run("A")
    assert typed(run.path) == (0, f"{run.path}/report.html\n", "")
    assert "corpus-validation" in (run.path / "report.html").read_text()


def test_several_runs_are_compared(make_run: Callable[..., Any], typed: Typed, tmp_path: Path) -> None:
    runs = [make_run("A"), make_run("BB", shift=-0.2), make_run("CCC", shift=-0.4)]
    status, output, errors = typed(*(run.path for run in runs), "--out", "pages/all.html")
    assert (status, output, errors) == (0, "pages/all.html\n", "")
    text = (tmp_path / "pages" / "all.html").read_text()
    assert "CCC has the lowest held-out loss" in text and "CCC − BB" in text


def test_runs_without_an_evaluation_are_not_compared(
    make_run: Callable[..., Any], typed: Typed, tmp_path: Path
) -> None:
    runs = [make_run("A"), make_run("BB", evaluated=False)]
    status, output, errors = typed(*(run.path for run in runs))
    assert (status, output) == (0, "report.html\n")
    assert (
        "note: The runs are not compared on held-out documents" in errors and "contextwise evaluate" in errors
    )
    assert "The runs are not compared on held-out documents" in (tmp_path / "report.html").read_text()


def test_what_is_no_run_is_refused(typed: Typed, tmp_path: Path) -> None:
    assert typed(tmp_path) == (
        2,
        "",
        f"error: {tmp_path} is neither a run (it has no recipe.yaml) nor a sweep (it has no sweep.yaml); "
        "give the folder of one\n",
    )


def test_a_run_given_twice_is_refused(make_run: Callable[..., Any], typed: Typed) -> None:
    run = make_run("A")
    status, _, errors = typed(run.path, run.path)
    assert status == 2 and "is given twice" in errors


def test_a_folder_is_no_place_for_a_page(make_run: Callable[..., Any], typed: Typed, tmp_path: Path) -> None:
    status, _, errors = typed(make_run("A").path, "--out", tmp_path)
    assert status == 2 and errors == f"error: {tmp_path} is a folder; give the name of a file for the page\n"


def test_a_sweep_gets_its_page_and_its_tables(typed: Typed, tmp_path: Path) -> None:
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
    assert status == 2 and "there.html is a file; give a folder for the CSV files with --csv" in errors
