"""The list of the runs of a sweep."""

from dataclasses import replace

from command_line import in_terminal
from contextwise.experiments.folder import Failure, PlannedRun, RunState
from contextwise_plan.sweeps.listing import plan_table

RUN = PlannedRun("nano-c1024-201k-s0-eb1a675c", "nano", 1_328_256, 1024, 200_704, 98, 0, 2e-3, 2.86e12)


def test_a_run_has_its_cost_and_how_far_it_is():
    states = [
        RunState(RUN, "finished", 98, 3500.4, 6.04269),
        RunState(RUN, "failed", 20, 9000.0, None, Failure("nan", 2)),
        RunState(replace(RUN, id="pico"), "unfinished", 49, 12_345.6, 7.5),
    ]
    _, finished, failed, begun = (line.split() for line in in_terminal(plan_table(states)).splitlines())
    assert finished == [RUN.id, "1.33M", "0.002", "201k", "2.86e+12", "100%", "6.0427"]
    assert failed[-2:] == ["failed", "–"] and begun[-2:] == ["50%", "7.5000"]
