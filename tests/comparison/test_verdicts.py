"""The rule by which differences over seeds are judged: it can say yes, no and neither, and bounds only help."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feddrop.comparison import (
    FAILS,
    FEW_SEEDS,
    HOLDS,
    NO,
    NOT_REACHED,
    NOT_RUN,
    PARTLY,
    UNDECIDED,
    WITHIN_MARGIN,
    YES,
    Comparison,
    judge,
    outcome,
    reason,
)
from feddrop.comparison.verdicts import STUDENT


def says(*differences: float, **more) -> str:
    return judge([Comparison("", differences, **more)])[0].says


def test_the_rule_can_say_yes_no_and_neither():
    assert says(1.0, 1.1, 0.9) == YES
    assert says(-1.0, -1.1, -0.9) == NO
    assert says(1.0, -1.1, 0.2) == UNDECIDED
    assert says(5.0, 5.1) == UNDECIDED  # two seeds never decide


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ([(1.0, 1.1, 0.9), (2.0, 2.1, 1.9)], HOLDS),
        ([(-1.0, -1.1, -0.9), (-2.0, -2.1, -1.9)], FAILS),
        ([(1.0, 1.1, 0.9), (-2.0, -2.1, -1.9)], PARTLY),
        ([(1.0, 1.1, 0.9), (0.1, -0.1, 0.0)], PARTLY),  # the second is undecided
        ([(-1.0, -1.1, -0.9), (0.1, -0.1, 0.0)], FAILS),
        ([(0.1, -0.1, 0.0), (2.0, -2.0, 0.1)], UNDECIDED),
        ([(5.0, 5.1), (6.0, 6.1)], UNDECIDED),
        ([(5.0,), ()], UNDECIDED),
        ([(1.0, 1.1, 0.9), ()], PARTLY),  # the second was not run
    ],
)
def test_outcomes_of_several_comparisons(rows, found):
    assert outcome(judge([Comparison(str(i), row) for i, row in enumerate(rows)])) == found


def test_the_margin_comes_from_the_pooled_spread():
    """By hand: spreads 1 and 3 pool to √5; two comparisons have 4 degrees of freedom, so t = 2.776."""
    one, other = (9.0, 10.0, 11.0), (7.0, 10.0, 13.0)
    for answer in judge([Comparison("a", one), Comparison("b", other)]):
        assert answer.error == pytest.approx(math.sqrt(5 / 3))
        assert answer.margin == pytest.approx(2.776 * math.sqrt(5 / 3))
        assert answer.says == YES
    apart = judge([Comparison("a", one, pool="a"), Comparison("b", other, pool="b")])
    assert [answer.margin for answer in apart] == pytest.approx([4.303 / math.sqrt(3), 4.303 * math.sqrt(3)])


def test_students_points_are_students():
    from scipy.stats import t  # comes with scikit-learn

    assert pytest.approx(t.ppf(0.975, range(1, len(STUDENT) + 1)), abs=5e-4) == STUDENT


def test_noise_rarely_says_yes_or_no():
    rng = np.random.default_rng(0)
    answers = [says(*rng.normal(size=3)) for _ in range(4000)]
    assert 0.035 < 1 - answers.count(UNDECIDED) / len(answers) < 0.065  # 5 % by construction


@pytest.mark.parametrize(
    ("differences", "found"),
    [
        ((0.1, -0.1, 0.0), YES),
        ((1.9, 2.0, 2.1), NO),
        ((-1.9, -2.0, -2.1), NO),
        ((0.9, 1.0, 1.1), UNDECIDED),
        ((0.0,), UNDECIDED),
    ],
)
def test_alike_means_within_a_tolerance(differences, found):
    assert says(*differences, tolerance=1.0) == found


def test_an_undecided_answer_says_why():
    made = judge(
        [
            Comparison("", (0.3,)),
            Comparison("", (-0.3, -0.2)),
            Comparison("", (0.3,), tolerance=1.0),
            Comparison("", certain=True),
            Comparison(""),
            Comparison("", ran=3),
            Comparison("", (-3.0, 3.0, 0.1)),
            Comparison("", (3.0, 3.1), ran=3),
            Comparison("", ran=2),
            Comparison("", estimate=(0.19, 0.01), tolerance=0.2),
            Comparison("", estimate=(0.15, 0.01), tolerance=0.2),
            Comparison("", estimate=(0.25, 0.01), tolerance=0.2),
        ]
    )
    few, late = FEW_SEEDS, NOT_REACHED
    assert [one.why for one in made] == [
        few,
        few,
        few,
        "",
        NOT_RUN,
        late,
        WITHIN_MARGIN,
        late,
        few,
        WITHIN_MARGIN,
        "",
        "",
    ]
    assert [one.leaning for one in made] == [YES, NO, YES, *[""] * 9]
    assert [one.says for one in made[-2:]] == [YES, NO]
    assert all(one.seeds > 1 or math.isnan(one.error) for one in made[:9])
    assert reason(made) == ""  # one is certain
    assert [reason(made[4:5]), reason(made[4:6]), reason(made[1:6:4]), reason(made[4:7])] == [
        NOT_RUN,
        NOT_REACHED,
        FEW_SEEDS,
        WITHIN_MARGIN,
    ]


def test_counts_that_agree_have_the_spread_of_rounding():
    """Three equal differences of counts have the spread of two rounding errors, 1/√6, and 2 degrees of freedom."""
    (answer,) = judge([Comparison("", (1.0, 1.0, 1.0), step=1.0)])
    assert answer.margin == pytest.approx(4.303 / math.sqrt(6) / math.sqrt(3))
    assert answer.says == UNDECIDED
    (answer,) = judge([Comparison("", (1.0, 2.0, 6.0), step=1.0)])
    assert answer.error == pytest.approx(np.std([1, 2, 6], ddof=1) / math.sqrt(3))  # a larger spread counts


def test_a_certain_answer_needs_no_seeds():
    assert outcome(judge([Comparison("", certain=True)])) == HOLDS
    assert outcome(judge([Comparison("", certain=False)])) == FAILS


# Bounds.


def test_a_bound_by_hand():
    """(3, 3.2, at least 30): the bound counts as 3.1, as if it had been measured: t = 4.303 with two degrees."""
    comparison = Comparison("", (3.0, 3.2, 30.0), bounds=(False, False, True))
    (answer,) = judge([comparison])
    assert (answer.mean, answer.says, comparison.sign) == (pytest.approx(3.1), YES, "≥")
    assert answer.margin == pytest.approx(4.303 * math.sqrt(0.02 / 2 / 3))


def test_a_bound_alone_decides_nothing():
    assert says(0.1, -0.1, 100.0, bounds=(False, False, True)) == UNDECIDED
    assert says(-5.0, -5.1, 3.0, bounds=(False, False, True)) == UNDECIDED  # it contradicts the others
    assert says(-30.0, 30.0, 30.0, bounds=(True, True, True)) == UNDECIDED
    assert says(30.0, 31.0, 32.0, bounds=(True, True, True)) == YES
    assert says(-30.0, -31.0, -32.0, bounds=(True, True, True)) == NO


SIZES = st.floats(0.01, 50.0)


@given(
    measured=st.lists(st.floats(-5.0, 50.0), max_size=3),
    bounds=st.lists(SIZES, min_size=1, max_size=3),
    mates=st.lists(st.floats(-5.0, 5.0), max_size=3),
    more=st.floats(0.0, 1000.0),
    which=st.integers(0, 2),
    step=st.sampled_from([0.0, 1.0]),
    side=st.sampled_from([1.0, -1.0]),
)
def test_a_more_favourable_bound_never_turns_yes_into_noise(measured, bounds, mates, more, which, step, side):
    """Nor no; neither in its own comparison nor in one that shares its spread."""
    kinds = (False,) * len(measured) + (True,) * len(bounds)

    def answers(sizes):
        mine = Comparison("", tuple(side * x for x in (*measured, *sizes)), bounds=kinds, step=step)
        return [answer.says for answer in judge([mine, Comparison("", tuple(mates), step=step)])]

    further = [size + more * (i == which % len(bounds)) for i, size in enumerate(bounds)]
    word = YES if side > 0 else NO
    before, after = answers(bounds), answers(further)
    assert before[0] != word or after[0] == word
    assert before[1] == UNDECIDED or after[1] == before[1]
