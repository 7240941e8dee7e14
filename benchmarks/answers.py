"""Does predicting the context help? The answers of trials of the same arms on several corpora, in one file and one table.

``python -m benchmarks.answers NAME trials/code trials/books`` reads finished trials, such as those of ``contextwise trial
ways-nano --corpus corpora/code --out trials/code``, keeps their results by corpus and budgets under ``NAME``, and prints the
difference of each arm from the reference on each corpus, with the interval that the trial ended with.
"""

import argparse
from pathlib import Path
from typing import Any

from benchmarks.harness import publish
from contextwise.base.files import without_folders
from contextwise.experiments.trial import load_trial, run_trial


def table(results: dict[str, dict[str, Any]]) -> list[str]:
    """The answers in Markdown: a row for each arm and budget, a column for each trial; ** is better, * is worse."""
    lines = ["| arm | " + " | ".join(results) + " |", "|---|" + "---:|" * len(results)]
    rows: dict[str, dict[str, str]] = {}
    for trial, result in results.items():
        for each in result["comparisons"]:
            last = each["looks"][-1]
            difference = last[each["documents"]]
            ends = (f"{difference[end]:+.3f}" if difference[end] is not None else "?" for end in ("low", "high"))
            shown = f"{difference['value']:+.3f} [{', '.join(ends)}]".replace("-", "−")
            mark = {"better": "**", "worse": "*"}.get(each["decision"], "")
            rows.setdefault(f"{each['arm']}, {each['budget']:,}", {})[trial] = f"{mark}{shown}{mark} {last['seeds']}"
    return lines + [
        f"| {name} | " + " | ".join(row.get(trial, "") for trial in results) + " |" for name, row in rows.items()
    ]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="of the result file")
    parser.add_argument("trials", type=Path, nargs="+", help="folders of finished trials")
    options = parser.parse_args(arguments)
    results: dict[str, dict[str, Any]] = {}
    for folder in options.trials:
        result = run_trial(load_trial(folder / "trial.yaml", {}))
        if not result.stopped:
            parser.error(f"the trial {folder} is not finished; run it again")
        results[folder.name] = without_folders(result.to_dict())
    print("\n".join(table(results)))
    print(publish(options.name, {"trials": results}, records="trials"))


if __name__ == "__main__":
    main()
