"""Answers of trials of the same arms on several corpora, in one file and one table: whether predicting the context helps.

``python -m benchmarks.answers NAME trials/code trials/books`` reads the results of finished trials, such as those of
``contextwise trial ways-nano --corpus corpora/code --out trials/code``, keeps them by corpus and budgets under ``NAME``, with
the machine that trained, and prints the difference of each arm from the reference on each corpus, with the interval that the
trial ended with. With ``--against ARM`` also the differences from that arm, with 95% intervals of each by Student's t: for
seeds whose number was set beforehand.
"""

import argparse
import itertools
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import publish
from contextwise.base.files import read_sealed_json, without_folders
from contextwise.base.intervals import mean_estimate


def table(results: dict[str, dict[str, Any]]) -> list[str]:
    """The answers in Markdown: a row for each arm and budget, a column for each trial; ** is better, * is worse.

    Shown is the newest look; where that alone no longer excludes zero, the look that decided.
    """
    lines = ["| arm | " + " | ".join(results) + " |", "|---|" + "---:|" * len(results)]
    rows: dict[str, dict[str, str]] = {}
    for trial, result in results.items():
        for each in result["comparisons"]:
            last = each["looks"][-1]
            difference, seeds = last[each["documents"]], last["seeds"]
            if each["decision"] in ("better", "worse") and difference["low"] <= 0 <= difference["high"]:
                difference, seeds = each["difference"], each["decided_after"]
            ends = (f"{difference[end]:+.3f}" if difference[end] is not None else "?" for end in ("low", "high"))
            shown = f"{difference['value']:+.3f} [{', '.join(ends)}]".replace("-", "−")
            mark = {"better": "**", "worse": "*"}.get(each["decision"], "")
            rows.setdefault(f"{each['arm']}, {each['budget']:,}", {})[trial] = f"{mark}{shown}{mark} {seeds}"
    return lines + [
        f"| {name} | " + " | ".join(row.get(trial, "") for trial in results) + " |" for name, row in rows.items()
    ]


def against(arm: str, results: dict[str, dict[str, Any]]) -> list[str]:
    """The same table with differences from an arm, paired by seed: an interval of Student's t each, which share no error.

    Behind each is the number of seeds that both arms have.
    """
    names = [name for name in next(iter(results.values()))["losses"] if name != arm]
    budgets = sorted({int(budget) for result in results.values() for budget in result["losses"][arm]})
    lines = [f"| minus {arm} | " + " | ".join(results) + " |", "|---|" + "---:|" * len(results)]
    for name, budget in itertools.product(names, map(str, budgets)):
        cells = []
        for result in results.values():
            first, second = (np.array(result["losses"].get(each, {}).get(budget, [])) for each in (name, arm))
            seeds = min(len(first), len(second))  # an arm that is decided is trained no further
            shown = f"{mean_estimate(first[:seeds] - second[:seeds]):+.3f} {seeds}" if seeds else ""
            cells.append(shown.replace("-", "−"))
        lines.append(f"| {name}, {int(budget):,} | " + " | ".join(cells) + " |")
    return lines


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="of the result file")
    parser.add_argument("trials", type=Path, nargs="+", help="folders of finished trials")
    parser.add_argument("--against", metavar="ARM", help="also the differences from this arm")
    options = parser.parse_args(arguments)
    results: dict[str, dict[str, Any]] = {}
    for folder in options.trials:
        trained = next(iter(sorted(folder.glob("runs/*/environment.json"))), None)
        looked = folder / "result.json"
        result: dict[str, Any] = read_sealed_json(looked, "the result") if looked.exists() else {"stopped": None}
        if trained is None or not result["stopped"]:
            parser.error(f"the trial {folder} is not finished; run it again")
        environment = read_sealed_json(trained, "the environment")
        if options.against not in {None, *result["losses"]}:
            parser.error(f"the trial {folder} has no arm {options.against!r}, but {', '.join(result['losses'])}")
        results[folder.name] = without_folders(result) | {"environment": environment}
    print("\n".join(table(results)))
    if options.against:
        print("\n".join(against(options.against, results)))
    print(publish(options.name, {"trials": results}, records="trials", environment=environment))


if __name__ == "__main__":
    main()
