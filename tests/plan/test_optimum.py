"""The best context for a budget: against slow computation, by hand, and on a law whose optimum is known."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from contextwise.base.estimates import joint_freedom
from contextwise.base.intervals import estimate, mean_estimate, plus_minus
from contextwise.data.windows import LastTenthWindows, last_tenth_length
from contextwise_plan.optimum import (
    ONE_SEED,
    Cell,
    Landscape,
    Optimum,
    cells,
    mode_smoothed,
    one_seed_note,
    overall_optimum,
    size_optima,
    window_reach,
)
from contextwise_plan.sweeps.points import SweepPoint
from contextwise_plan.tracks import Reading, Track, budget_steps, tracks
from synthetic_sweep import CONTEXTS, SIZES, flops, law


def point(context: int = 64, tokens: int = 1000, loss: float = 3.0, **changed: object) -> SweepPoint:
    size = str(changed.pop("size", "pico"))
    values = {
        "run": f"{size}-{context}",
        "parameters": SIZES.get(size, 1000),
        "seed": 0,
        "step": tokens // 100,
        "flops": float(tokens),
        "seconds": tokens / 10,
        "standard_error": 0.01,
    } | changed
    return SweepPoint(size=size, context=context, tokens=tokens, loss=loss, **values)  # type: ignore[arg-type]


def lawful(sizes=tuple(SIZES), contexts=CONTEXTS, budgets=tuple(range(1, 17))) -> list[SweepPoint]:
    """Points of the law at each 400,000 tokens."""
    return [
        point(
            context,
            n * 400_000,
            law(SIZES[size], context, n * 4e5),
            size=size,
            flops=flops(SIZES[size], context, n * 4e5),
        )
        for size in sizes
        for context in contexts
        for n in budgets
    ]


measured = st.lists(
    st.tuples(st.integers(1, 10**9), st.floats(1, 10)), min_size=1, max_size=8, unique_by=lambda pair: pair[0]
)


@given(measured, st.floats(0, 1))
def test_losses_are_interpolated_in_the_logarithm_of_the_budget(pairs, part: float) -> None:
    (track,) = tracks([point(tokens=tokens, loss=loss) for tokens, loss in pairs], "tokens")
    low, high = min(pairs)[0], max(pairs)[0]
    budget = min(max(low * (high / low) ** part, low), high)
    ordered = sorted(pairs)
    wanted = np.interp(np.log(budget), np.log([b for b, _ in ordered]), [loss for _, loss in ordered])
    found = track.at(budget)
    assert found is not None and found[:2] == pytest.approx((wanted, 0.01))
    assert track.at(low * 0.97) is None and track.at(high * 1.03) is None
    assert track.at(low * 0.99) is not None and track.at(high * 1.01) is not None
    for tokens, loss in pairs:
        assert track.at(tokens)[:2] == pytest.approx((loss, 0.01))


def test_half_way_by_hand() -> None:
    (track,) = tracks([point(tokens=100, loss=4.0), point(tokens=400, loss=3.0, standard_error=0.03)], "tokens")
    assert track.at(200)[:2] == pytest.approx((3.5, 0.02))


def test_a_line_is_continued_beyond_its_ends() -> None:
    """By hand: from 4 at 100 to 3 at 400, so half a nat for each doubling; 399 is too close to 400 for a slope."""
    spent = {"flops": 1.0}
    lines = tracks([point(tokens=100, loss=4.0, **spent), point(tokens=400, loss=3.0, **spent)], "tokens")
    close = tracks([point(tokens=t, loss=x, **spent) for t, x in ((100, 4.0), (399, 9.0), (400, 3.0))], "tokens")
    for (track,) in (lines, close):
        assert track.at(400 * 2**0.02).loss == pytest.approx(3 - 0.01)
    assert lines[0].at(100 / 2**0.02).loss == pytest.approx(4 + 0.01) and lines[0].at(406).shift == 0


def on_one_curve(*budgets: list[float]) -> list[SweepPoint]:
    """Points of contexts 64, 128, ... whose losses at equal FLOPs are about the same: 0.2 nats for a unit of ln C."""
    effects, targets = np.random.default_rng(0).normal(0, 0.5, 40), (50,) * 40
    noise = np.random.default_rng(1).normal(0, 1e-4, (len(budgets), 40))
    points = []
    for i, spent in enumerate(budgets):
        for budget in spent:
            means = 4 - 0.2 * np.log(budget) + effects + noise[i] - noise[i].mean()
            known = {"document_nats": tuple(50 * means), "document_targets": targets, "flops": budget}
            points.append(point(64 << i, int(budget), loss=float(means.mean()), **known))
    return points


@pytest.mark.parametrize("longer", [1.019, 1 / 1.019])
def test_a_run_that_is_a_little_longer_is_not_better(longer: float) -> None:
    """Two contexts of the same curve, the second of which has 1.9% more or less at every point."""
    lines = tracks(on_one_curve([1e4, 2e4], [1e4 * longer, 2e4 * longer]), "flops")
    for budget in (1e4, 1e4 * longer, 2e4, 2e4 * longer):
        optimum = size_optima(cells(lines, budget), {"pico": [64, 128]})["pico"]
        (found,) = optimum.differences.values()
        assert found.value == pytest.approx(0, abs=1e-9) and len(optimum.within_noise) == 1
        assert found.high < 1e-3


def test_a_single_point_has_the_steepest_slope_of_its_size_in_its_interval() -> None:
    points = on_one_curve([1e4, 2e4], [2e4 / 1.019])
    at = {c.context: c for c in cells(tracks(points, "flops"), 2e4)}
    exact = {c.context: c for c in cells(tracks(points, "flops"), 2e4 / 1.019)}
    shift = 0.2 * np.log(1.019)
    assert at[128].loss - at[64].loss == pytest.approx(shift)
    assert at[128].half_width == pytest.approx(exact[128].half_width + shift)
    (found,) = size_optima(list(at.values()), {"pico": [64, 128]})["pico"].differences.values()
    assert found.low == pytest.approx(0, abs=1e-3) and found.high == pytest.approx(2 * shift, abs=1e-3)


def test_single_points_at_unequal_budgets_have_no_interval() -> None:
    lines = tracks(on_one_curve([2e4], [2e4 / 1.019]), "flops")
    assert [c.half_width is None for c in cells(lines, 2e4)] == [False, True]
    (found,) = size_optima(cells(lines, 2e4), {"pico": [64, 128]})["pico"].differences.values()
    assert found.value == pytest.approx(0.2 * np.log(1.019)) and found.low is None


def test_what_is_no_number_or_cost_nothing_is_left_out() -> None:
    points = [point(tokens=n, loss=loss) for n, loss in ((0, 9.0), (100, float("nan")), (200, 3.0), (400, 2.0))]
    (track,) = tracks(points, "tokens")
    assert track.budgets.tolist() == [200, 400]
    assert tracks([point(loss=float("inf"))], "tokens") == []
    assert not len(Landscape([point(loss=float("nan"))], "tokens", {"pico": [64]}).budgets)


def test_seeds_are_averaged_and_their_spread_is_counted() -> None:
    points = [point(run=f"seed{seed}", seed=seed, loss=loss) for seed, loss in enumerate((3.0, 3.2))]
    (cell,) = cells(tracks(points, "tokens"), 1000)
    assert (cell.loss, cell.runs) == (pytest.approx(3.1), 2)
    # The documents are the same for both seeds: 0.01; of the seeds' mean: s² / 2 = 0.02 / 2, with one degree of freedom.
    assert cell.half_width == pytest.approx(np.hypot(1.959964 * 0.01, 12.706205 * np.sqrt(0.02 / 2)))
    alone = [point(standard_error=None)]
    assert cells(tracks(alone, "tokens"), 1000)[0].half_width is None


def with_documents(contexts: int, seeds: int, documents: int = 9, seed: int = 0) -> tuple[list[SweepPoint], np.ndarray]:
    """Points of contexts 64, 128, ... and seeds on the same documents, and their nats (contexts, seeds, documents)."""
    draw = np.random.default_rng(seed)
    targets = draw.integers(50, 200, documents)
    nats = targets * (3 + draw.normal(0, 1, documents) + draw.normal(0, 0.05, (contexts, seeds, documents)))
    nats += targets * draw.normal(0, 0.02, (contexts, seeds, 1))
    points = []
    for i, j in np.ndindex(contexts, seeds):
        known = {"document_nats": tuple(nats[i, j]), "document_targets": tuple(targets.tolist())}
        points.append(point(64 << i, loss=nats[i, j].sum() / targets.sum(), seed=j, **known))
    return points, nats


def test_two_contexts_are_compared_as_paired_estimates_are() -> None:
    points, nats = with_documents(2, 3)
    targets = np.array(points[0].document_targets)
    optimum = size_optima(cells(tracks(points, "tokens"), 1000), {"pico": [64, 128]})["pico"]
    best = [64, 128].index(optimum.cell.context)
    wanted = estimate([nats[1 - best] - nats[best]], targets)
    (found,) = optimum.differences.values()
    assert found.value == pytest.approx(wanted.value)
    # Here the squares of both parts' half-widths are added, which is wider.
    parts = [stats.t.ppf(0.975, freedom) * np.sqrt(variance) for variance, freedom in wanted.parts]
    assert found.high - found.value == pytest.approx(np.hypot(*parts)) and np.hypot(*parts) > wanted.high - wanted.value
    assert optimum.cell.documents == 9 and optimum.cell.runs == 3
    alone, nats = with_documents(1, 1)
    (cell,) = cells(tracks(alone, "tokens"), 1000)
    wanted = estimate([nats[0]], np.array(alone[0].document_targets))
    assert (cell.loss, cell.half_width) == pytest.approx((wanted.value, wanted.high - wanted.value))


def test_the_spread_between_seeds_is_that_of_all_contexts() -> None:
    """Two seeds: one degree of freedom for a pair of contexts, four for the differences among five."""
    points, nats = with_documents(5, 2)
    losses, targets = nats.sum(2) / sum(points[0].document_targets), np.array(points[0].document_targets)
    optimum = size_optima(cells(tracks(points, "tokens"), 1000), {"pico": [64 << i for i in range(5)]})["pico"]
    gaps = losses[:, 0] - losses[:, 1]
    of_seeds = gaps.var(ddof=1) / 2  # of a difference: var(gaps) / 2 seeds
    seeds = stats.t.ppf(0.975, 4) * np.sqrt(of_seeds)
    best = int(losses.mean(1).argmin())
    for context, difference in optimum.differences.items():
        paired = nats[(context // 64).bit_length() - 1].mean(0) - nats[best].mean(0)
        documents = estimate([paired[None]], targets)
        at_95 = np.hypot(documents.high - documents.value, seeds)
        variance = ((documents.high - documents.value) / stats.t.ppf(0.975, documents.freedom)) ** 2
        parts = (variance, documents.freedom), (of_seeds, 4)
        # The ten differences of five contexts hold together at 95%, with the degrees of freedom of both parts there.
        confidences = (0.95, 1 - 0.05 / 10)
        before, after = (stats.t.ppf((1 + each) / 2, joint_freedom(parts, each)) for each in confidences)
        assert difference.high - difference.value == pytest.approx(at_95 * after / before)
        assert difference.confidence == pytest.approx(confidences[1]) and np.allclose(difference.parts, parts)


def of_last_tenths(ids: range = range(40)) -> tuple[list[SweepPoint], np.ndarray]:
    """Points of contexts 64 to 512 in blocks of 512, whose last tenths have 48, 48, 50 and 51 targets; means (contexts, 40).

    The documents differ by much (0.5), the differences between two contexts in a document by little (0.01).
    """
    corpus = SimpleNamespace(lengths=np.full(40, 600), end_of_text=0, path="memory", split="validation")
    draw = np.random.default_rng(0)
    means = 3 + draw.normal(0, 0.5, 40) + draw.normal(0, 0.01, (4, 40)) + np.array([[0.1], [0.0], [0.05], [0.2]])
    points = []
    for i, context in enumerate((64, 128, 256, 512)):
        windows = LastTenthWindows(corpus, context, 512, tokens=10**9)
        targets = np.bincount(windows.documents) * last_tenth_length(context)
        known = {"document_nats": tuple(targets * means[i]), "document_targets": tuple(targets.tolist())}
        known["document_ids"] = tuple(ids) if context == 256 else tuple(range(40))
        points.append(point(context, loss=float(np.average(means[i], weights=targets)), **known))
    return points, means


def test_documents_are_paired_though_last_tenths_have_other_lengths() -> None:
    points, means = of_last_tenths()
    assert [each.document_targets[0] for each in points] == [48, 48, 50, 51]
    optimum = size_optima(cells(tracks(points, "tokens"), 1000), PLANNED)["pico"]
    for context, index in ((64, 0), (256, 2), (512, 3)):
        found, wanted = optimum.differences[context], mean_estimate(means[index] - means[1]).at(1 - 0.05 / 6)
        assert (found.value, *found.limits) == pytest.approx((wanted.value, *wanted.limits))
    assert optimum.cell.context == 128 and optimum.within_noise == () and optimum.differences[256].low > 0.04


def test_other_documents_are_not_paired() -> None:
    points, _ = of_last_tenths(range(1, 41))
    optimum = size_optima(cells(tracks(points, "tokens"), 1000), PLANNED)["pico"]
    errors = stats.norm.ppf(1 - 0.025 / 6) * np.hypot(0.01, 0.01)  # those of the points; six pairs together
    found = optimum.differences[256]
    assert found.limits == pytest.approx((found.value - errors, found.value + errors))


@pytest.mark.parametrize(
    ("losses", "words"),
    [
        ((3.2, 3.0, 3.0001, 3.3), "pico: 128 tokens is best, 256 is within its noise, 64 tokens is 0.2000 ± 0.0030 behind."),
        ((3.0, 3.0001, 3.2, 3.3), "256 tokens is 0.2000 ± 0.0030 behind; 64 is the shortest that was tried, the true optimum"),
        ((3.0001, 3.0, 3.2, 3.3), "256 tokens is 0.2000 ± 0.0030 behind; 64 is the shortest that was tried, the true optimum"),
        ((3.3, 3.2, 3.1, 3.0), "512 tokens is best, 256 tokens is 0.1000 ± 0.0030 behind; 512 is the longest that was tried"),
        ((3.001, 3.0, 3.001, 3.002), "not show which context is best here; 128 tokens has the lowest loss, but 64, 256, 512"),
        ((3.0, 3.001, 3.0015, 3.002), "64 tokens has the lowest loss, but 128, 256, 512 are within its noise."),
    ],
)  # fmt: skip
def test_what_is_within_the_noise_is_said(losses: tuple[float, ...], words: str) -> None:
    optimum = of_losses(losses, seeds=2)
    assert words in optimum.sentence()
    further = replace(optimum, edge="", ends=(32, 1024))  # which were not measured at this budget
    assert "was tried" not in further.sentence()
    assert ("does not show" in further.sentence()) == ("not show" in words or "128, 256, 512 are" in words)
    assert optimum.shown == (optimum.inside and "does not show" not in optimum.sentence())


def test_where_no_context_is_better_the_sweep_seldom_says_that_one_is() -> None:
    """100 sweeps of five equal contexts, 40 documents and one seed: with each interval alone at 95%, 16% named a best one."""
    draw, named = np.random.default_rng(0), 0
    for _ in range(100):
        means = 3 + draw.normal(0, 0.1, 40) + draw.normal(0, 0.02, (5, 40))
        known = {"document_targets": (100,) * 40, "document_ids": tuple(range(40))}
        points = [
            point(64 << i, loss=float(own.mean()), document_nats=tuple(100 * own), **known)
            for i, own in enumerate(means)
        ]
        planned = {"pico": [64 << i for i in range(5)]}
        named += not size_optima(cells(tracks(points, "tokens"), 1000), planned)["pico"].unclear
    assert named <= 8


def of_losses(losses: tuple[float, ...], **about: int) -> Optimum:
    """The optimum of contexts 64, 128, ..., with intervals of ± 0.003 of the differences."""
    found = [cell(64 << i, loss) for i, loss in enumerate(losses)]
    best = min(found, key=lambda cell: cell.loss)
    differences = {c.context: plus_minus(c.loss - best.loss, 0.003, **about) for c in found if c is not best}
    return Optimum(best, True, (), size_optima(found, PLANNED)["pico"].edge, differences, (64, 512))


def test_one_seed_and_few_documents_are_said() -> None:
    losses = (3.2, 3.0, 3.0001, 3.3)
    alone, several = of_losses(losses), of_losses(losses, seeds=2)
    assert alone.sentence() == several.sentence()
    assert one_seed_note([alone, several, alone]) == [ONE_SEED] and one_seed_note([several]) == []
    for documents, allow in ((5, "5 documents allow"), (1, "1 document allows")):
        few = of_losses(losses, documents=documents)
        assert few.within_noise == (64, 256, 512) and few.sentence() == (
            "pico: the sweep does not show which context is best here; 128 tokens has the lowest loss, but "
            f"{allow} no verdict, which takes 6 or more."
        )
    bare = replace(few, differences={context: plus_minus(0.2, np.nan) for context in (64, 256, 512)})
    assert "128 tokens has the lowest loss, but no interval is known" in bare.sentence()


@pytest.mark.parametrize(("seeds", "documents"), [(1, 9), (2, 9), (1, 5), (2, 1)])
def test_differences_say_what_their_interval_is_over(seeds: int, documents: int) -> None:
    points, _ = with_documents(3, seeds, documents)
    optimum = size_optima(cells(tracks(points, "tokens"), 1000), {"pico": [64, 128, 256]})["pico"]
    for difference in optimum.differences.values():
        assert (difference.documents, difference.seeds) == (documents, seeds if seeds > 1 else None)
    assert optimum.one_seed == (seeds == 1 and documents > 5)
    assert ("is best," in optimum.sentence()) <= (documents > 5)


def cell(context: int, loss: float, size: str = "pico") -> Cell:
    return Cell(size, SIZES[size], context, loss, 0.01, 1, readings={0: Reading(loss, 0.01)})


PLANNED = {"pico": [64, 128, 256, 512], "nano": [64, 128, 256, 512], "micro": [64, 128, 256, 512]}


def test_an_optimum_is_told_only_beside_measured_neighbours() -> None:
    u = [cell(64, 3.2), cell(128, 3.0), cell(256, 3.1)]
    assert size_optima(u, PLANNED)["pico"] == Optimum(u[1], True, (), "")
    without = [u[0], u[1]]
    assert size_optima(without, PLANNED)["pico"] == Optimum(u[1], False, (256,), "")
    falling = [cell(256, 3.1), cell(512, 3.0)]
    assert size_optima(falling, PLANNED)["pico"] == Optimum(falling[1], True, (), "longest")
    assert size_optima([cell(64, 3.0), cell(128, 3.1)], PLANNED)["pico"].edge == "shortest"
    assert size_optima([cell(64, 3.0)], PLANNED) == {}


def test_the_overall_optimum_is_told_only_beside_told_sizes() -> None:
    def optima(*sizes: str) -> dict[str, Optimum]:
        losses = {"pico": 3.2, "nano": 3.0, "micro": 3.1}
        return {size: Optimum(cell(128, losses[size], size), True, (), "") for size in sizes}

    sizes = list(PLANNED)
    best = overall_optimum(optima(*sizes), sizes)
    assert best is not None and (best.cell.size, best.decided) == ("nano", True)
    best = overall_optimum(optima("pico", "nano"), sizes)
    assert best is not None and (best.cell.size, best.decided, best.unmeasured) == ("nano", False, ("micro",))
    assert overall_optimum({}, sizes) is None


def test_the_largest_budgets_are_not_won_by_those_that_are_left() -> None:
    """Runs of equal tokens: only the longest context, the costliest, reaches the largest FLOPs."""
    found = Landscape(lawful(sizes=("pico",)), "flops", {"pico": list(CONTEXTS)})
    assert found is not None
    last = found.cells[-1]
    assert [c.context for c in last] == [1024] and found.optima[-1] == {} and found.contexts["pico"][-1] is None
    for step, some in enumerate(found.optima):
        if "pico" in some and some["pico"].decided:
            assert len(found.cells[step]) >= 2


@pytest.mark.parametrize("unit", ["tokens", "flops"])
def test_the_optimum_of_a_law_is_found(unit: str) -> None:
    found = Landscape(lawful(budgets=range(1, 400, 3)), unit, {size: list(CONTEXTS) for size in SIZES})
    assert found is not None
    checked = Counter()
    for budget, optima in zip(found.budgets, found.optima, strict=True):
        for size, best in optima.items():
            if best.decided:
                spent = {
                    context: budget / (flops(SIZES[size], context, 1.0) if unit == "flops" else 1)
                    for context in CONTEXTS
                }
                true = {context: law(SIZES[size], context, spent[context]) for context in CONTEXTS}
                assert true[best.cell.context] - min(true.values()) < 0.002  # interpolation errs that much
                checked[size] += 1
    assert all(checked[size] > 20 for size in SIZES)
    contexts = [context for context in found.contexts["pico"] if context is not None]
    assert contexts == sorted(contexts) and contexts[0] < contexts[-1]  # grows with the budget


def test_budgets_are_evenly_spaced_in_the_logarithm() -> None:
    lines = [
        Track("a", "pico", 1, 64, np.array([10.0, 100.0]), np.ones(2), np.ones(2)),
        Track("b", "pico", 1, 64, np.array([50.0, 1000.0]), np.ones(2), np.ones(2)),
    ]
    assert budget_steps(lines)[[0, 48, -1]].tolist() == pytest.approx([10, 100, 1000])
    # Exactly: else the ends are not measured
    assert budget_steps(lines)[[0, -1]].tolist() == [10.0, 1000.0]
    assert budget_steps([Track("a", "pico", 1, 64, np.array([5.0]), np.ones(1), np.ones(1))]).tolist() == [5.0]
    assert budget_steps([]).tolist() == []


def test_the_window_is_about_a_factor_of_two() -> None:
    budgets = np.geomspace(1, 2**10, 101)  # ten steps a doubling
    reach = window_reach(budgets)
    assert reach == 5 and budgets[50 + reach] / budgets[50 - reach] == pytest.approx(2)


@given(st.lists(st.sampled_from([None, 64, 128, 256]), max_size=20), st.integers(0, 5))
def test_smoothing_takes_a_most_common_value(values, reach: int) -> None:
    for place, chosen in enumerate(mode_smoothed(values, reach)):
        window = [value for value in values[max(0, place - reach) : place + reach + 1] if value is not None]
        if values[place] is None:
            assert chosen is None
        else:
            assert window.count(chosen) == max(map(window.count, window))
            if window.count(values[place]) == window.count(chosen):
                assert chosen == values[place]
