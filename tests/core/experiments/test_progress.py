"""Messages of a sweep while it runs."""

import time
from dataclasses import replace

from command_line import in_terminal
from contextwise.base.estimates import duration
from contextwise.experiments.folder import Failure, PlannedRun, RunState
from contextwise.experiments.scheduling import LiveTable, state_table

RUN = PlannedRun("nano-c1024-201k-s0-eb1a675c", "nano", 1_328_256, 1024, 200_704, 98, 0, 2e-3, 2.86e12)
STATES = [
    RunState(RUN, "finished", 98, 3500.4, 6.04269),
    RunState(replace(RUN, id="pico-c64-201k-s0-4d4f26b4"), "failed", 20, 9000.0, None, Failure("nan", 2)),
    RunState(replace(RUN, id="pico-c256-201k-s0-395ecf83"), "missing"),
    RunState(replace(RUN, id="pico-c1024-201k-s0-0c401536"), "unfinished", 49, 12_345.6, 7.5),
]


def test_tables_fit_a_terminal_and_show_a_dash_for_a_missing_loss():
    lines = in_terminal(state_table(STATES, {RUN.id: None, STATES[3].run.id: 4000.0})).splitlines()
    assert lines[1].split() == [RUN.id, "finished", "98/98", "3,500", "6.0427", "–"]
    assert lines[2].split() == [STATES[1].run.id, "failed", "20/98", "9,000", "–", "–"]
    assert lines[3].split() == [STATES[2].run.id, "missing", "0/98", "–", "–", "–"]
    assert lines[4].split() == [STATES[3].run.id, "running", "49/98", "12,346", "7.5000", "66.7", "min"]
    assert len(lines) == 5 and max(map(len, lines)) <= 80


def test_the_time_left_counts_start_up_and_curves_of_the_runs_left(claimed, monkeypatch):
    """One run of eleven seconds, of which one is training; the other three cost ten seconds each beside their steps."""
    sweep = claimed(grid={"data.context": [16, 32], "training.steps": [12], "seed": [0, 1]})
    table, (run, *_), clock = LiveTable(sweep), sweep.plan, [0.0]
    table.begin, state = 0.0, RunState(run, "finished", run.steps, run.tokens)
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    table.started(run)
    monkeypatch.setattr(sweep, "state", lambda run: state)
    clock[0] = 11.0
    table.finished(run)
    left = sweep.flops / run.flops - 1
    assert table.summary(set()).endswith(f"of the FLOPs done, about {duration(30 + left)} left")


def test_the_summary_counts_every_run_once(claimed, monkeypatch):
    sweep = claimed(grid={"data.context": [16, 32], "training.steps": [12], "seed": [0, 1]})
    first, second, third, _ = sweep.plan
    table = LiveTable(sweep)
    assert table.summary(set()) == "4 runs: 4 waiting; 0% of the FLOPs done"
    done = {first.id: "finished", second.id: "finished", third.id: "failed"}
    for name, state in done.items():
        table.states[name] = replace(table.states[name], state=state)
    begin = table.begin
    monkeypatch.setattr(time, "monotonic", lambda: begin + 600)
    share = (first.flops + second.flops) / sweep.flops
    left = duration(600 * (1 - share) / share)
    expected = f"4 runs: 2 finished, 1 failed, 1 waiting; {share:.0%} of the FLOPs done, about {left} left"
    assert table.summary({second.id}) == expected  # finished, though its process has not ended yet
    assert "2 finished, 1 running, 1 waiting" in table.summary({third.id})
