"""The plan: what it recommends for a known law, what it says of itself, and what it refuses."""

import dataclasses
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from contextwise.base.errors import CheckpointError, DataError
from contextwise_plan.scaling.analysis import Analysis, compare_forms, not_significantly_worse
from contextwise_plan.scaling.observations import check_enough, observations, read_observations, read_table
from contextwise_plan.scaling.optimum import Optimum
from contextwise_plan.scaling.planning import Budget, _bound_notes, context_bounds, floor_notes, make_plan
from contextwise_plan.scaling.trend import METHOD, fit_trend
from contextwise_plan.tables import plan_tables
from laws import CONTEXTS, SIZES, drawn_points, flops_per_token, one_size_loss, true_loss, write_sweep


def flops(amount):
    return Budget("flops", amount, f"{amount:.3g} FLOPs")


@pytest.fixture(scope="module")
def exact():
    return Analysis(observations(drawn_points(count=5)), resamples=20)


@pytest.fixture(scope="module")
def noisy():
    return Analysis(observations(drawn_points(run_noise=0.004, point_noise=0.002, count=6)), resamples=100)


@pytest.fixture(scope="module")
def planned(exact, noisy):
    """Plans for a multiple of the largest budget, made once: ``planned("exact", 6)``."""

    @cache
    def plan(which, factor):
        analysis = {"exact": exact, "noisy": noisy}[which]
        return make_plan(analysis, flops(factor * analysis.observed.flops.max()), far=factor > 30)

    return plan


def test_a_law_without_noise_is_followed_beyond_the_sweep(exact, planned):
    budget = 6 * exact.observed.flops.max()
    plan = planned("exact", 6)
    sizes, contexts = np.geomspace(1e5, 1e8, 601)[:, None], np.geomspace(32, 16384, 601)[None]
    losses = true_loss(contexts, sizes, budget / flops_per_token(sizes, contexts))
    row, column = np.unravel_index(losses.argmin(), losses.shape)
    assert plan.best.loss.value == pytest.approx(losses.min(), abs=1e-3)
    assert plan.best.parameters.value == pytest.approx(sizes[row, 0], rel=0.04)
    assert plan.best.context.value == pytest.approx(contexts[0, column], rel=0.25)
    assert plan.flops == pytest.approx(budget) and plan.extrapolation["flops"] == pytest.approx(6)
    assert plan.extrapolation["parameters"] == pytest.approx(plan.best.parameters.value / SIZES["micro"])
    # 10^10 FLOPs a second on the machine of these runs
    assert plan.seconds == pytest.approx(budget / 1e10)


def test_the_context_is_that_of_the_trend(noisy, planned):
    budget = 4 * noisy.observed.flops.max()
    plan, trend = planned("noisy", 4), fit_trend(noisy.observed)
    for row in (plan.best, *plan.each_size):
        assert row.context.value == pytest.approx(float(trend.context(budget, row.parameters.value)))
        assert row.context.method == METHOD != row.loss.method
    assert plan.growth == trend.growth(noisy.confidence) and plan.prior_weight == trend.prior_weight(1)
    assert plan.trend == trend.sentence("flops", "micro", plan.growth)


@pytest.mark.long
def test_a_budget_of_seconds_buys_what_the_machine_of_the_sweep_can_do(exact):
    spent = float(exact.observed.seconds.max())
    by_time, by_flops = make_plan(exact, Budget("seconds", spent, "")), make_plan(exact, flops(spent * 1e10))
    assert by_time.best.context.value == pytest.approx(by_flops.best.context.value, rel=1e-4)
    assert by_time.best.tokens.value == pytest.approx(by_flops.best.tokens.value, rel=1e-4)


def test_every_number_has_an_interval_around_it(planned):
    plan = planned("noisy", 4)
    for row in (plan.best, *plan.each_size):
        for name in ("context", "tokens", "loss", "parameters"):
            value = getattr(row, name)
            assert value.low <= value.value <= value.high
    assert plan.best.loss.high - plan.best.loss.low > 0.01
    assert [row.size for row in plan.each_size] == ["pico", "nano", "micro"]
    assert plan.best.loss.value <= min(row.loss.value for row in plan.each_size)


def test_the_intervals_grow_with_the_distance(planned):
    near, far = (planned("noisy", factor).best.loss for factor in (4, 20))
    assert far.high - far.low > 1.3 * (near.high - near.low)


def test_the_power_of_two_costs_what_it_says(exact, planned):
    budget, plan = exact.observed.flops.max(), planned("exact", 1)
    context, lost = plan.rounded
    size = plan.best.parameters.value
    loss = true_loss(context, size, budget / flops_per_token(size, context))
    assert lost == pytest.approx(loss - plan.best.loss.value, abs=1e-6) and lost >= 0


@pytest.mark.parametrize(
    ("lost", "words"),
    [
        (0.0008, "two, 512, costs 0.0008 nats more."),
        (-0.0005, "two, 512, costs nothing by the law (0.0005 nats less)."),
    ],
)
def test_a_power_of_two_that_the_law_calls_better_is_said_to_be(lost, words, exact, planned):
    plan, console = dataclasses.replace(planned("exact", 1), rounded=(512, lost)), Console(width=200)
    with console.capture() as printed:
        console.print(plan_tables(plan, exact))
    assert words in printed.get()


def test_a_law_with_another_optimum_is_named_and_rounds_no_context(exact, planned):
    """A real sweep whose law has a shorter best context than was measured at any large budget."""
    table = Path(__file__).parents[3] / "benchmarks" / "results" / "sweeps" / "gpt2-books.json"
    analysis = Analysis(read_table(table), resamples=20)
    plan = make_plan(analysis, Budget("flops", 2e13, "2e13 FLOPs"))
    (note,) = [each for each in plan.notes if each.startswith("By the law alone")]
    assert plan.rounded is None and float(note.split()[4]) < plan.best.context.low
    with (console := Console(width=200)).capture() as printed:
        console.print(plan_tables(plan, analysis))
    assert "power of two" not in printed.get() and "By the law alone" in " ".join(printed.get().split())
    assert planned("exact", 1).rounded is not None


def test_one_size_gives_a_context_and_no_size():
    analysis = Analysis(observations(drawn_points(one_size_loss, {"nano": 900e3}, count=5)), resamples=20)
    plan = make_plan(analysis, flops(2 * analysis.observed.flops.max()))
    assert plan.best.parameters is None and plan.best.size == "nano" and "parameters" not in plan.extrapolation
    assert any("no size" in note for note in plan.notes)


def test_two_sizes_are_chosen_from():
    sizes = {"pico": 150e3, "nano": 900e3}
    analysis = Analysis(observations(drawn_points(sizes=sizes, count=5)), resamples=20)
    plan = make_plan(analysis, flops(2 * analysis.observed.flops.max()))
    assert plan.best.size == "nano" and plan.best.parameters.value == pytest.approx(900e3)
    assert any(
        "2 model sizes" in note and "the largest of them: a larger one may be better" in note for note in plan.notes
    )
    assert not plan.best.parameters.has_interval  # chosen, not estimated


# What is refused.


def without_a_law():
    draw = np.random.default_rng(0)
    return [dataclasses.replace(point, loss=3 + draw.normal()) for point in drawn_points(count=5)]


def few_runs():
    points = drawn_points(count=8)
    few = [point for point in points if point.size == "pico" and point.context <= 512]
    return few + [point for point in points if point.size == "nano" and point.context == 64]


def budgets_apart():
    points = drawn_points(contexts=(1, 3, 5, 9))
    return [dataclasses.replace(point, flops=point.flops * 50.0**point.context) for point in points]


def analysed(points):
    return Analysis(observations(points), resamples=20)


def blind(context, parameters, tokens):
    return 2 + 60 / tokens**0.3


REFUSED = {
    "three contexts": (
        lambda: check_enough(observations(drawn_points(contexts=(64, 256, 1024)))),
        r"has 3 training contexts \(64, 256, 1024\), and the law .* needs 4 at least",
    ),
    "one budget for each run": (
        lambda: check_enough(observations([point for point in drawn_points() if point.step == 2000])),
        "is 1 .* measure more often",
    ),
    "sizes without a budget in common": (
        lambda: fit_trend(observations(budgets_apart())),
        "for about the same flops, and add contexts beyond its best one$",
    ),
    "a loss that does not know the context": (
        lambda: analysed(drawn_points(blind, {"nano": 900e3}, run_noise=0.01, seed=3)),
        "does not show what a longer training context is worth",
    ),
    "losses without a law": (
        lambda: analysed(without_a_law()),
        "no law predicts held-out runs better than a constant|does not show what",
    ),
    "few runs for a law of size and context": (
        lambda: analysed(few_runs()),
        "the sweep has 5 runs of different size, context and seed, but .* needs at least 6",
    ),
}


@pytest.mark.parametrize(("call", "message"), REFUSED.values(), ids=REFUSED)
def test_points_without_a_plan_are_refused(call, message):
    with pytest.raises(DataError, match=message):
        call()


def test_a_budget_too_far_from_the_sweep_is_refused_unless_asked_for(exact, planned):
    spent = exact.observed.flops
    for amount, message in (
        (60 * spent.max(), "60 times the largest run of the sweep .* --far"),
        (1e40, r"is \d\.\d+e\+\d\d times the largest run"),
        (spent.min() / 2, "below the smallest that the sweep measured"),
    ):
        with pytest.raises(DataError, match=message):
            make_plan(exact, flops(amount))
    assert planned("exact", 60).extrapolation["flops"] == pytest.approx(60)


UNREADABLE = {
    "no sweep": (None, {}, "is not a sweep"),
    "unfinished": (
        drawn_points(count=5),
        {"unfinished": ("nano-context64-seed0", "nano-context512-seed0")},
        r"2 of its 18 runs are missing \(.*nano-context512-seed0: unfinished.*--partial",
    ),
    "one missing": (
        drawn_points(count=5),
        {"unfinished": ("nano-context64-seed0",)},
        r"1 of its 18 runs is missing \(",
    ),
    "diverged": (
        [dataclasses.replace(p, loss=np.nan if i == 7 else p.loss) for i, p in enumerate(drawn_points(count=5))],
        {},
        r"pico-context128-seed0 has a loss that is no positive number \(nan\) at step",
    ),
    "early alone": (
        drawn_points(contexts=(64, 128)),
        {"warmup": 5000},
        "all 96 measurements of .* are before 2 times the warm-up",
    ),
}


@pytest.mark.parametrize(("points", "about", "message"), UNREADABLE.values(), ids=UNREADABLE)
def test_a_sweep_that_cannot_be_planned_from_is_refused(tmp_path, points, about, message):
    if points is not None:
        write_sweep(tmp_path, points, **about)
    with pytest.raises((CheckpointError, DataError), match=message):
        read_observations(tmp_path)


def test_an_unfinished_sweep_is_planned_from_if_asked_for(tmp_path):
    write_sweep(tmp_path, drawn_points(count=5), unfinished=("nano-context64-seed0",))
    assert len(read_observations(tmp_path, partial=True).runs) == 18


@pytest.mark.long
def test_a_plan_far_out_says_so(planned):
    plan = planned("exact", 60)
    (said,) = [note for note in plan.notes if "of any run of the sweep" in note]
    for name in ("parameters", "tokens", "context"):
        factor = plan.extrapolation[name]
        assert (f"{factor:.0f} times the {name}" in said) is (factor > 10)
    assert not [note for note in planned("exact", 1).notes if "of any run of the sweep" in note]


@pytest.mark.long
def test_a_law_without_a_floor_warns_of_its_losses(exact):
    """A pure power law in the data has E at its lower bound; the law of the other sweeps has 1.5."""
    points = drawn_points(
        lambda context, _, tokens: (2 / context**0.7 + 3e-3 * context**0.4) * (1e7 / tokens) ** 0.2, count=6
    )
    analysis = Analysis(observations(points), resamples=20)
    assert "E" in analysis.at_bounds
    (said,) = floor_notes(analysis)
    assert "hardly shows a floor" in said and "the predicted loss may be too low" in said
    assert floor_notes(exact) == []


@pytest.mark.long
@pytest.mark.parametrize("error", [0.01, 3.0])
def test_a_size_whose_best_context_is_within_the_noise_is_named(error):
    points = [dataclasses.replace(point, standard_error=error) for point in drawn_points(count=5)]
    observed = observations(points)
    plan = make_plan(Analysis(observed, resamples=20), flops(2 * observed.flops.max()))
    noted = plan.doubt.startswith(
        "The sweep does not show which context is best for micro: from the best that was measured, this one "
    )
    (said,) = [finding for finding in plan.measured if " micro: " in finding]
    assert noted == ("does not show which context is best" in said) == (error > 1)


@pytest.mark.long
def test_a_best_context_at_an_end_of_the_largest_budget_is_named():
    """Smaller budgets locate one, and published sweeps let it grow, which these runs speak against."""

    def shrinking(context, parameters, tokens):
        best = 256 * (tokens * flops_per_token(parameters, context) / 1e13) ** -0.6
        return 3 + 0.02 * np.log2(context / best) ** 2 + 60 / tokens**0.4

    observed = observations(drawn_points(shrinking, {"nano": 900e3}, count=8))
    plan = make_plan(Analysis(observed, resamples=20), flops(2 * observed.flops.max()))
    assert plan.doubt.startswith(
        "At 1.4 × 10¹⁴ FLOPs the lowest loss of nano is at 64 tokens, the shortest that was tried: "
    )


def test_a_bound_of_the_search_is_noted_from_one_percent_of_the_resamples_on(exact):
    low, high = context_bounds(exact)
    for count, noted in ((0, False), (1, False), (2, True), (200, True)):
        contexts = np.full(200, np.sqrt(low * high))
        contexts[:count] = high
        samples = Optimum(np.full(200, 1e6), contexts, np.full(200, 1e6), np.full(200, 3.0))
        notes = _bound_notes(exact, samples, free=False)
        assert bool(notes) == noted and all(f"In {count / 200:.0%} of the resamples" in note for note in notes)


@pytest.mark.parametrize(("power", "end"), [(0.5, "2,048 is the longest"), (-0.2, "64 is the shortest")])
def test_contexts_that_do_not_bracket_the_optimum_are_refused(power, end):
    def one_way(context, parameters, tokens):
        return 2 + (10 * context**-power if power > 0 else context**-power) + 60 / tokens**0.3

    def cheap(point):
        return dataclasses.replace(point, flops=float(point.tokens), standard_error=0.001)

    points = [cheap(point) for point in drawn_points(one_way, {"nano": 900e3})]
    with pytest.raises(DataError, match=f"at no budget .* add contexts beyond its best one.*{end} that was tried"):
        fit_trend(observations(points))


def test_an_optimum_may_be_seen_in_seconds_only():
    """Each context costs the same FLOPs a token, and the long ones take more time."""
    points = [
        dataclasses.replace(point, flops=float(point.tokens))
        for point in drawn_points(lambda l, n, d: 2 + 10 / l**0.5 + 60 / d**0.3, {"nano": 900e3})  # noqa: E741
    ]
    fit_trend(observations(points), "seconds")
    with pytest.raises(DataError, match=r"at no budget \(flops\)"):
        fit_trend(observations(points))


def one_sided(size, **options):
    """A sweep of pico and nano in which the contexts of one size are longer than its best ones."""
    points = drawn_points(sizes={"pico": 150e3, "nano": 900e3}, contexts=(16, *CONTEXTS), count=5, **options)
    return Analysis(observations([p for p in points if p.context >= (512 if p.size == size else 16)]), resamples=20)


@pytest.mark.long
def test_a_size_whose_best_context_is_not_bracketed_is_not_planned_for():
    analysis = one_sided("pico")
    plan = make_plan(analysis, flops(2 * analysis.observed.flops.max()))
    assert plan.best.size == "nano" and [row.size for row in plan.each_size] == ["nano"]
    assert any("No context is planned for pico, whose best one" in note for note in plan.notes)
    analysis = one_sided("nano")
    with pytest.raises(DataError, match="nearest to nano, whose best context no budget .* none can be planned"):
        make_plan(analysis, flops(2 * analysis.observed.flops.max()), far=True)


@pytest.mark.long
@pytest.mark.parametrize(("least", "extrapolated"), [(3e12, False), (1e11, True)])
def test_a_size_that_no_budget_brackets_is_the_laws(least, extrapolated):
    """At the small budgets the smallest size is the best at all of them."""
    points = [
        dataclasses.replace(
            p, tokens=int(spent / each), flops=spent, loss=float(true_loss(p.context, p.parameters, spent / each))
        )
        for p in drawn_points(contexts=(16, *CONTEXTS), count=1)
        for each in [flops_per_token(p.parameters, p.context)]
        for spent in (least * np.geomspace(1, 30, 5)).tolist()
    ]
    analysis = Analysis(observations(points), resamples=20)
    plan = make_plan(analysis, flops(2 * analysis.observed.flops.max()))
    assert any("At no budget does the sweep show that a size between" in note for note in plan.notes) is extrapolated


def test_early_points_are_left_out(tmp_path):
    """Steps 100 to 2000, a warm-up of 20 steps: before 5% of 2000 or twice the warm-up nothing lies; before 10% some do."""
    points = drawn_points(count=8)
    write_sweep(tmp_path, points)
    assert read_observations(tmp_path).left_out == 0
    observed = read_observations(tmp_path, early=0.1)
    assert observed.left_out == sum(point.step < 200 for point in points) > 0
    assert len(observed) == len(points) - observed.left_out


def test_the_warm_up_is_left_out(tmp_path):
    points = drawn_points(count=8)
    write_sweep(tmp_path, points, warmup=150)
    kept = [point for point in points if point.step >= 300]
    assert len(read_observations(tmp_path, early=0.0)) == len(kept) < len(points)


def test_a_size_has_the_parameters_without_learned_positions():
    points = [
        dataclasses.replace(point, parameters=point.parameters + 128 * point.context) for point in drawn_points(count=3)
    ]
    assert observations(points).size_parameters.tolist() == [size + 128 * CONTEXTS[0] for size in SIZES.values()]


def test_a_law_whose_context_has_vanished_is_not_chosen():
    """Longer contexts only hurt at equal data: without an interaction the fit does not see the context."""

    def law(context, parameters, tokens):
        return 2.0 + 60.0 * context**0.2 / tokens**0.4

    points = drawn_points(law, {"nano": 900e3}, run_noise=0.003, point_noise=0.001, count=6)
    scores = {score.form.name: score for score in compare_forms(observations(points))}
    assert not scores["separate"].sees_context and not scores["data alone"].sees_context
    assert scores["harder"].sees_context and scores["slower"].sees_context
    tied = [score.form.name for score in not_significantly_worse(list(scores.values()))]
    assert "harder" in tied and "separate" not in tied
