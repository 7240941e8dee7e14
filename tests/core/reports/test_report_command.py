"""``contextwise report``, as it is typed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from command_line import Contextwise
from small import write_rows
from synthetic_sweep import write_sweep


def test_one_run_gets_its_page_in_its_folder(make_run: Callable[..., Any], contextwise: Contextwise) -> None:
    run = make_run("A")
    assert contextwise("report", run.path) == (0, f"{run.path}/report.html\n", "")
    page = (run.path / "report.html").read_text()
    assert "corpus-validation" in page
    assert json.loads(contextwise("report --json", run.path)[1]) == {"files": [f"{run.path}/report.html"]}
    assert str(contextwise.folder) not in page  # nothing of this machine in what may be shared


def test_several_runs_are_compared(make_run: Callable[..., Any], contextwise: Contextwise, tmp_path: Path) -> None:
    runs = [make_run("A"), make_run("BB", shift=-0.2), make_run("CCC", shift=-0.4)]
    result = contextwise("report --out pages/all.html", *(run.path for run in runs))
    assert result == (0, "pages/all.html\n", "")
    text = (tmp_path / "pages" / "all.html").read_text()
    assert "the loss of CCC is lower than that of BB by" in text and "CCC − BB" in text


def test_runs_without_an_evaluation_are_not_compared(
    make_run: Callable[..., Any], contextwise: Contextwise, tmp_path: Path
) -> None:
    runs = [make_run("A"), make_run("BB", evaluated=False)]
    status, output, errors = contextwise("report", *(run.path for run in runs))
    note = "The runs are not compared on held-out documents"
    assert (status, output) == (0, "report.html\n")
    assert f"note: {note}" in errors and "contextwise evaluate" in errors
    assert note in (tmp_path / "report.html").read_text()


def test_a_run_of_another_trainer_with_one_row_gets_a_page(
    make_run: Callable[..., Any], contextwise: Contextwise
) -> None:
    run = make_run("A", finished=False)
    row = {"kind": "train", "step": 1, "tokens": 1, "seconds": 1, "loss": 2.0}
    run.metrics_file.write_text(json.dumps(row) + "\n")
    assert contextwise("report", run.path)[0] == 0
    page = (run.path / "report.html").read_text()
    assert "training tokens" in page and "training FLOPs" not in page
    write_rows(run.metrics_file, (row | {"loss": loss} for loss in (1e308, int("9" * 400))))
    contextwise.refused(f"report {run.path}", "line 1 of")


def test_bad_input_is_refused(make_run: Callable[..., Any], contextwise: Contextwise) -> None:
    message = ". is neither a run (it has no recipe.yaml) nor a sweep (it has no sweep.yaml); give the folder of one"
    contextwise.refused("report .", message)
    (contextwise.folder / "notes.json").write_text("{}")
    contextwise.refused("report notes.json", "notes.json is no table of a sweep (it has no name); give a file that")
    (contextwise.folder / "t").mkdir()
    (contextwise.folder / "t" / "trial.yaml").write_text("arms: {}")
    contextwise.refused(
        "report t", "t is a trial without its page, report.html; write it again with: contextwise trial t"
    )
    run = make_run("A").path
    contextwise.refused(
        f"report {run.parent}/{run.name}x", f"give the folder of one, or its table; did you mean {run}?"
    )
    contextwise.refused(f"report {run} {run}", "is given twice")
    contextwise.refused(f"report {run} --out .", ". is a folder; give the name of a file for the page")
    before = (run / "recipe.yaml").read_bytes()
    contextwise.refused(f"report {run} --out {run / 'recipe.yaml'}", "recipe.yaml is no page, and would be lost")
    assert (run / "recipe.yaml").read_bytes() == before


def test_a_sweep_gets_its_page(contextwise: Contextwise, tmp_path: Path) -> None:
    write_sweep(tmp_path / "sweep", sizes=("pico",), contexts=(64, 128), measurements=3)
    assert contextwise("report sweep") == (0, "sweep/report.html\n", "")
    assert contextwise("report sweep --out page.html") == (0, "page.html\n", "")
    contextwise.refused("report sweep --label x", "--label chooses an evaluation of runs, and a sweep has none")
    contextwise.refused("report sweep other", "sweep is a sweep, whose page is of it alone; leave other out")
