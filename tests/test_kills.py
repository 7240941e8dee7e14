"""Runs and commands that are killed at any moment end, started again, as if nothing had been: a drawn part of the cases.

``python tests/killed.py --cases 1000`` runs as many as one likes.
"""

import json
from pathlib import Path

import pytest

import killed
from golden import recipes
from processes import forked

KINDS = "^(causal muon|workers adamw)$"
"""Kinds of training that start from no other run."""
EACH = f"^(({'|'.join([*recipes(Path('inputs')), 'patience'])}) adamw|mup muon)$"
"""Each kind of training once."""
COMMANDS = "^(evaluate|report again)$"


@pytest.mark.parametrize(
    ("pattern", "count", "seed", "commands"),
    [
        (KINDS, 9, 0, False),
        pytest.param(COMMANDS, 4, 0, True, marks=pytest.mark.long),
        pytest.param(EACH, 32, 1, False, marks=pytest.mark.long),
        pytest.param("^(prepare|tasks|entropy|decide|export)", 18, 1, True, marks=pytest.mark.long),
        pytest.param("", 800, 2, False, marks=pytest.mark.slow),
        pytest.param("", 200, 2, True, marks=pytest.mark.slow),
    ],
)
def test_whatever_is_killed_loses_nothing(tmp_path, pattern, count, seed, commands):
    report = tmp_path / "report.json"
    process = forked(killed.hold_into, report, tmp_path / "bench", pattern, count, seed, commands)
    process.join()
    assert process.exitcode == 0, report.with_suffix(".log").read_text()
    held, problems, empty = json.loads(report.read_text())
    assert not problems
    assert held + empty == count and held > count * 0.8


@pytest.mark.long
def test_a_kind_has_all_phases_and_what_is_left_over_is_found(tmp_path):
    """The cases can fail: a run that does not remove what a killed one left is not the same."""
    report = tmp_path / "report.json"
    process = forked(hold_without_pruning, report, tmp_path / "bench")
    process.join()
    problems = json.loads(report.read_text())
    assert len(problems) == 1 and ".removed-step-" in problems[0] and "is left over" in problems[0]


def hold_without_pruning(report, folder):
    """Kill a run while it prunes; the next one leaves what it finds half removed."""
    import signal
    from unittest import mock

    from contextwise.training import checkpoints

    bench = killed.training_bench(folder, "^causal adamw$")
    seen = bench.whole("causal adamw").events
    missing = [phase for phase in killed.PHASES if not seen.get(phase)]
    case, prune = killed.Case("causal adamw", signal.SIGKILL, "pruning", 0.5), checkpoints.prune_run
    faulty = lambda run, *rest: None if [*run.checkpoints.glob(".removed-*")] else prune(run, *rest)  # noqa: E731
    with mock.patch.object(checkpoints, "prune_run", faulty):
        report.write_text(json.dumps([*missing, bench.problem(case)]))
