"""``contextwise plan budget``, as it is typed."""

import json

import pytest

from laws import SIZES, drawn_points, flops_per_token, write_sweep


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plans")
    points = drawn_points(run_noise=0.003, point_noise=0.001, count=5)
    write_sweep(folder / "sweep", points)
    write_sweep(folder / "half", points, unfinished=("nano-context64-seed0",))
    write_sweep(folder / "narrow", drawn_points(contexts=(64, 512)))
    return folder


@pytest.mark.long
def test_a_plan_and_its_check_fit_a_terminal(contextwise, workplace):
    details = ("Measured: ", "One more run", "90 points of 18 runs", "harder*", "Residuals")
    words = contextwise.words("plan budget sweep --budget 1e16 --check --details --resamples 20")
    assert all(expected in words for expected in ("Plan for 1e+16 FLOPs", "training context", "Check: ", *details))
    status, output, _ = contextwise("plan budget sweep --budget 1e16 --resamples 20")
    assert status == 0 and "Plan for 1e+16 FLOPs" in output and "--details shows more" in output
    assert not any(absent in output for absent in details)
    assert len(output.splitlines()) <= 25 and max(map(len, output.splitlines())) <= 80


@pytest.mark.long
def test_json_holds_everything(contextwise, workplace):
    status, output, _ = contextwise("plan budget sweep --budget 3e15 --check --resamples 20 --json")
    printed = json.loads(output)
    assert status == 0 and set(printed) == {"plan", "law", "check"}
    best = printed["plan"]["best"]
    for name in ("parameters", "context", "tokens", "loss"):
        assert best[name]["low"] <= best[name]["value"] <= best[name]["high"]
    assert len(printed["law"]["residuals"]) == 90 == printed["law"]["points"]
    assert printed["law"]["form"] in {form["form"] for form in printed["law"]["forms"]}
    assert printed["plan"]["flops"] == pytest.approx(3e15)
    assert printed["check"]["shown"] + printed["check"]["hidden"] == 90


@pytest.mark.long
def test_a_table_plans_as_its_folder_to_the_last_digit(contextwise, workplace):
    """Of intervals, too, which are drawn: a plan is reproducible."""
    for _ in range(2):  # a table may be replaced, another file may not
        assert contextwise("plan budget sweep --table table.json")[:2] == (0, "written to table.json\n")
    before = (workplace / "sweep" / "plan.json").read_bytes()
    contextwise.refused(
        "plan budget sweep --budget 3e15 --table sweep/plan.json",
        "sweep/plan.json is no table of a sweep, and would be lost",
    )
    assert (workplace / "sweep" / "plan.json").read_bytes() == before
    command = "--budget 3e15 --resamples 20 --json"
    assert contextwise(f"plan budget table.json {command}") == contextwise(f"plan budget sweep {command}")
    status, _, errors = contextwise("plan budget table.json --table again.json")
    assert status == 2 and "is a table already" in errors and not (workplace / "again.json").exists()
    for option in ("--early 0.5", "--partial"):
        contextwise.refused(
            f"plan budget table.json --budget 3e15 {option}",
            "table.json is a table, which holds the points that were chosen",
        )


@pytest.mark.long
def test_hours_at_a_speed_are_flops(contextwise, workplace):
    """2 hours at 1000 tokens a second, each of what a token of nano costs at 512."""
    speed = "--tokens-per-second 1e5 --measured-at nano:512"
    status, output, _ = contextwise(f"plan budget sweep --hours 2 {speed} --resamples 20 --json")
    plan = json.loads(output)["plan"]
    assert status == 0 and plan["budget"]["unit"] == "flops"
    assert plan["flops"] == pytest.approx(7200 * 1e5 * flops_per_token(SIZES["nano"], 512), rel=1e-6)


@pytest.mark.long
def test_hours_alone_are_those_of_the_sweeps_machine(contextwise, workplace):
    """Its runs took a second for 10^10 FLOPs."""
    status, output, _ = contextwise("plan budget sweep --hours 50 --resamples 20 --json")
    plan = json.loads(output)["plan"]
    assert status == 0 and plan["seconds"] == pytest.approx(180_000)
    assert plan["flops"] == pytest.approx(180_000 * 1e10, rel=1e-6)


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("sweep", "there is no budget; give --budget (FLOPs) or --hours"),
        ("sweep --budget 1e15 --hours 2", "--budget and --hours both say"),
        ("sweep --budget 1e15 --tokens-per-second 2", "how fast the --hours pass"),
        ("sweep --hours 1 --measured-at nano:64", "--measured-at belongs to --tokens-per-second"),
        ("sweep --budget -1", "--budget is -1, but must be a positive number"),
        ("sweep --budget nan", "--budget is nan, but must be a positive number"),
        ("sweep --hide-above -5", "--hide-above is -5, but must be a positive number"),
        ("sweep --hide-above nan", "--hide-above is nan, but must be a positive number"),
        ("sweep --budget 1e15 --seed -1", "--seed is '-1', but must be at least 0"),
        ("sweep --budget 1e15 --early 1", "--early is 1, but must be a share"),
        ("sweep --budget 1e15 --confidence 90", "--confidence is 90, but must be between"),
        ("sweep --budget 1e15 --resamples 3", "--resamples is 3, but intervals need 20"),
        ("sweep --budget 1e15 --confidence 0.999", "--resamples is 200, but an interval of 0.999 needs 2,000"),
        ("sweep --hours 1 --tokens-per-second 9 --measured-at nano", "must be SIZE:CONTEXT"),
        ("sweep --hours 1 --tokens-per-second 9 --measured-at xl:64", "the sweep's are pico, nano, micro"),
        ("sweep --budget 1e19", "beyond 30 times a law of these few runs is a guess"),
        ("narrow --budget 1e15", "has 2 training contexts (64, 512)"),
        ("nowhere --budget 1e15", "nowhere is not a sweep"),
    ],
)  # fmt: skip
def test_bad_input_is_refused(contextwise, arguments, message):
    contextwise.refused(f"plan budget {arguments}", message)
