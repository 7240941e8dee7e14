"""The rule of verdicts: intervals beside a bound, agreement, exact numbers; and the estimates that they are made from."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextwise.base.errors import ConfigError
from contextwise.base.estimates import CONFIDENCE, Estimate
from contextwise.base.intervals import estimate
from contextwise.comparison.sequential import seeds_to_decide
from contextwise_papers.claims import (
    Claim,
    above,
    all_agree,
    all_hold,
    below,
    check_names,
    contains,
    exact,
    higher,
    percentage_points,
    share_error,
    significant,
    undecided,
    within,
)

YES, NO, OPEN = exact(True), exact(False), undecided("no reason")
numbers = st.floats(-1e6, 1e6)
intervals = st.tuples(numbers, numbers, numbers).map(sorted).map(lambda x: Estimate(x[1], x[0], x[2]))


def said(verdict):
    return verdict.holds, verdict.reason


@pytest.mark.parametrize(
    ("estimate", "holds", "reason"),
    [
        (Estimate(1.0, 0.1, 2.0), True, ""),
        (Estimate(-1.0, -2.0, -0.1), False, ""),
        (Estimate(1.0, -0.1, 2.0), None, "the interval contains 0"),
        (Estimate(1.0, 0.0, 2.0), None, "the interval contains 0"),
        (Estimate(1.0, 0.1, math.inf), True, ""),
        (Estimate(1.0), None, "there is no interval"),
        (Estimate(1.0, math.nan, math.nan), None, "there is no interval"),
        (Estimate(1.0, 0.5, math.nan), None, "there is no interval"),
        (Estimate(math.nan, 0.5, 2.0), None, "the value is not a number"),
    ],
)
def test_a_claim_is_decided_by_the_whole_interval(estimate, holds, reason):
    assert said(above(estimate)) == (holds, reason)


@given(intervals, numbers)
def test_above_and_below_are_opposites(estimate, bound):
    is_above, is_below = above(estimate, bound), below(estimate, bound)
    assert is_above.reason == is_below.reason
    assert is_below.holds is (None if is_above.holds is None else not is_above.holds)
    if is_above.holds is not None:
        assert is_above.holds == (estimate.value > bound)


@given(intervals, intervals, st.floats(0, 1e6))
def test_widening_an_interval_never_turns_a_verdict_around(estimate, other, by):
    wide = Estimate(estimate.value, estimate.low - by, estimate.high + by)
    for before, after in [
        (above(estimate), above(wide)),
        (below(estimate), below(wide)),
        (higher(estimate, other), higher(wide, other)),
    ]:
        assert after.holds in (None, before.holds)
    assert contains(wide, other.value).holds or not contains(estimate, other.value).holds


@given(st.sampled_from([(math.nan, 0.0, 1.0), (1.0, math.nan, 2.0), (1.0, None, None)]), intervals, numbers)
def test_what_is_not_known_decides_nothing(values, known, bound):
    unknown = Estimate(*values)
    verdicts = [above(unknown, bound), below(unknown, bound), contains(unknown, bound)]
    verdicts += [higher(unknown, known), higher(known, unknown), above(known, math.nan)]
    assert all(verdict.holds is None and verdict.reason for verdict in verdicts)


def test_intervals_that_overlap_rank_nothing():
    low, high, middle = Estimate(1.0, 0.5, 1.5), Estimate(3.0, 2.5, 3.5), Estimate(2.0, 1.0, 3.0)
    assert [higher(high, low).holds, higher(low, high).holds, higher(high, middle).holds] == [True, False, None]


def test_an_interval_between_two_bounds_is_one_comparison():
    inside, across, beyond = Estimate(0.0, -0.01, 0.01), Estimate(0.0, -0.03, 0.01), Estimate(0.1, 0.05, 0.15)
    verdicts = [within(each, -0.02, 0.02) for each in (inside, across, beyond, -beyond)]
    assert [verdict.holds for verdict in verdicts] == [True, None, False, False]
    assert {verdict.comparisons for verdict in verdicts} == {1}


def test_exact_numbers_and_tests_decide_unless_they_are_not_numbers():
    assert exact(True, 1.0).holds is True and exact(False).holds is False
    assert exact(True, 1.0, math.nan).holds is None
    tests = [significant(0.1, 0.01), significant(0.1, 0.2), significant(-0.1, 0.9), significant(-0.1, 0.99)]
    assert [verdict.holds for verdict in tests] == [True, None, None, False]
    assert significant(math.nan, 0.01).holds is None and significant(0.1, math.nan).holds is None


def test_one_part_that_fails_settles_a_claim_of_several_parts():
    assert all_hold([YES, YES]).holds is True
    assert all_hold([YES, OPEN, NO]).holds is False
    assert said(all_hold([YES, OPEN])) == said(OPEN)
    assert all_hold([]).holds is None


def test_repetitions_decide_where_they_agree_and_are_enough():
    assert all_agree([YES, YES], "seeds").holds is True and all_agree([NO, NO], "seeds").holds is False
    for verdicts, least, reason in [
        ([YES, NO], 1, "the seeds do not agree"),
        ([YES, OPEN, NO], 1, "the seeds do not agree"),
        ([YES, OPEN, YES], 1, "2 of 3 seeds decide it"),
        ([OPEN, OPEN, NO], 1, "1 of 3 seeds decides it"),
        ([OPEN], 1, "no reason"),
        ([YES], 2, "it takes 2 seeds or more, and there are 1"),
    ]:
        assert said(all_agree(verdicts, "seeds", least)) == (None, reason)
    assert all_agree([], "seeds").holds is None


def test_an_undecided_claim_has_its_reason_behind_the_evidence():
    assert Claim.of("a", OPEN, "b: 1.0").evidence == "b: 1.0; no reason"
    assert Claim.of("a", OPEN).evidence == "no reason"
    assert Claim.of("a", YES, "b: 1.0") == Claim("a", True, "b: 1.0")


def test_names_that_do_not_exist_are_named():
    check_names({"claims": ["a"]}, "ab")
    with pytest.raises(ConfigError, match="claims names the row 'c', which is none of a, b"):
        check_names({"claims": ["c"]}, "ab", "the row ")


def test_differences_of_shares_are_written_in_points():
    assert percentage_points(Estimate(0.012, -0.005, 0.02)) == "+1.20 [−0.50, +2.00] points"


def test_the_claims_of_an_item_share_the_error():
    """Four intervals of 2.2 standard errors: each is decided alone, none where four share 5%."""
    weak, strong = Estimate(2.2, 2.2 - 1.96, 2.2 + 1.96), Estimate(4.0, 4.0 - 1.96, 4.0 + 1.96)
    claims = [Claim.of(f"claim {n}", above(weak), "2.2") for n in range(3)]
    assert [claim.holds for claim in share_error(claims[:1])] == [True]
    shared = share_error([*claims, Claim.of("strong", below(strong)), Claim.of("exact", exact(True))])
    assert [claim.holds for claim in shared] == [None, None, None, False, True]
    note = "2.2; the interval at 98.8% decides, as 4 comparisons share the error"
    assert [claim.evidence for claim in shared] == [note] * 3 + ["", ""]


def seeds_of(*losses, articles=()):
    """A difference by seed, in nats per target, on six articles that differ by ``articles``."""
    own = np.array(articles or [0.0] * 6)
    return estimate([np.array(losses)[:, None] + own], np.ones(6))


def test_an_undecided_claim_names_the_seeds_that_would_decide_it():
    """By hand: seeds at -3, -1 and 1 have a mean of -1 and a standard deviation of 2."""
    (claim,) = share_error([Claim.of("lower", below(seeds_of(-3.0, -1.0, 1.0)), "-1")])
    promised = seeds_to_decide(-1.0, 2.0, 0.0, CONFIDENCE, most=200)
    assert promised is not None and promised > 3 and claim.holds is None
    wanted = f"-1; the interval contains 0; {promised} seeds would decide it, at this difference and spread"
    assert claim.evidence == wanted
    # Two claims share the error, so each of them takes more seeds.
    more = seeds_to_decide(-1.0, 2.0, 0.0, 0.975, most=200)
    shared = share_error([Claim.of("lower", below(seeds_of(-3.0, -1.0, 1.0)))] * 2)
    assert more > promised and all(f"; {more} seeds would decide it" in claim.evidence for claim in shared)
    # A bound is no different from zero; a claim that is decided needs nothing.
    assert f"; {promised} seeds" in share_error([Claim.of("more", above(seeds_of(2.0, 4.0, 6.0), 3.0))])[0].evidence
    assert share_error([Claim.of("lower", below(seeds_of(-3.0, -3.1, -3.2)), "-3")])[0].evidence == "-3"


def test_no_number_of_seeds_decides_a_difference_of_zero_or_within_that_of_the_articles():
    (zero,) = share_error([Claim.of("lower", below(seeds_of(-2.0, 0.0, 2.0)))])
    assert zero.evidence.endswith("; no number of seeds would decide a difference of zero")
    # The articles alone: t of 5 degrees of freedom times the standard error of their mean, 2.5706 * sqrt(1.2 * 9 / 6).
    (within,) = share_error([Claim.of("lower", below(seeds_of(-3.0, -1.0, 1.0, articles=[-3, 3, -3, 3, -3, 3])))])
    assert within.evidence.endswith("decide it: the rest of the interval is ± 3.4 times the difference")
    # A single seed has no spread, and of two open parts none is named.
    assert (
        share_error([Claim.of("one", below(seeds_of(0.0, articles=[-1, 1] * 3)))])[0].evidence
        == "the interval contains 0"
    )
    open_parts = all_hold([below(seeds_of(-3.0, -1.0, 1.0))] * 2)
    assert share_error([Claim.of("both", open_parts)])[0].evidence == "the interval contains 0"


def test_a_claim_of_parts_takes_as_much_of_the_error_as_can_make_it_wrong():
    """One wrong part refutes a claim of which all must hold; of repetitions all would have to be wrong."""
    weak = Estimate(2.2, 2.2 - 1.96, 2.2 + 1.96)
    parts = [above(weak)] * 4
    assert share_error([Claim.of("all", all_hold(parts))])[0].holds is None
    assert share_error([Claim.of("each", all_agree(parts, "seeds"))])[0].holds is True
    assert share_error([Claim.of("test", significant(0.1, 0.02)), Claim.of("all", all_agree(parts, "seeds"))])[0].holds
    late = share_error([Claim.of("test", significant(0.1, 0.03)), Claim.of("all", all_agree(parts, "seeds"))])
    assert [claim.holds for claim in late] == [None, None]


@given(intervals, st.integers(2, 20))
def test_sharing_the_error_never_turns_a_verdict_around(estimate, claims):
    before = [Claim.of("above", above(estimate)), Claim.of("below", below(estimate)), Claim.of("no number", OPEN)]
    for claim, shared in zip(before * claims, share_error(before * claims), strict=True):
        assert shared.holds in (None, claim.holds)


def test_a_refuted_part_refutes_the_claim_at_every_confidence():
    """Also where the limits are numpy's, whose False is not Python's."""
    below, beyond = (Estimate(each, each - 0.1, each + 0.1, documents=30) for each in (-1.0, 1.0))
    for known in (below, below.at(0.99), Estimate(-1.0, np.float64(-1.1), np.float64(-0.9), documents=30)):
        claims = [
            Claim.of("both are above", all_hold([above(known), above(beyond)])),
            Claim.of("one is", above(beyond)),
        ]
        assert [claim.holds for claim in claims] == [claim.holds for claim in share_error(claims)] == [False, True]
        assert "decides" not in share_error(claims)[0].evidence
        assert above(known).holds is above(known, np.float64(0)).holds is False


def test_a_claim_that_refutes_nothing_still_shares_the_error():
    seeds = seeds_of(1.0, 1.3, 1.6)
    one, failing = Claim.of("one", above(seeds)), Claim.of("all", all_hold([below(seeds)] * 20), "-1")
    assert (one.holds, failing.holds) == (True, False)
    kept = failing.without_refutation("the model is small")
    assert kept.holds is None and kept.evidence == "the model is small: -1"
    decided = [[claim.holds for claim in share_error([one, other])] for other in (failing, kept)]
    assert decided == [[None, None], [None, None]], "21 comparisons"
    assert share_error([kept])[0].holds is None
    assert [claim.holds for claim in share_error([one, Claim("noted", None, "")])] == [True, None]
