"""When a target is reached, what was spent by then, and differences with bounds where it never was."""

from __future__ import annotations

import numpy as np
import pytest

from feddrop.comparison import Spent, first_reached, matched, running_mean, spent_differences, spent_until


def test_the_first_round_by_hand():
    values = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.5, 0.5, 0.5, 0.5]
    np.testing.assert_allclose(running_mean(values, 5), [0.2, 0.3, 0.38, 0.44, 0.48, 0.5])
    assert first_reached(values, 0.475, 5) == 9  # the mean of rounds 5 to 9
    assert first_reached(values, 0.5) == 6
    assert first_reached(values, 0.6) == np.inf
    assert first_reached([0.4], 0.3, 5) == 1  # fewer rounds than the window


def test_a_running_mean_of_few_rounds_is_their_mean():
    np.testing.assert_allclose(running_mean([1.0, 3.0], 5), [2.0])


@pytest.mark.parametrize(("reached", "until"), [(1, 2.0), (3, 7.0), (np.inf, np.inf)])
def test_what_was_spent_by_then(reached, until):
    assert spent_until([2.0, 2.0, 3.0], reached) == Spent(until, 7.0)


def test_differences_are_matched_by_seed():
    assert matched([1.0, None, 3.0], [0.5, 1.0, None]) == (0.5,)
    with pytest.raises(ValueError, match="longer"):
        matched([1.0], [1.0, 2.0])


def test_a_target_never_reached_gives_a_bound_or_nothing():
    late, early, slow = Spent(np.inf, 40.0), Spent(10.0, 40.0), Spent(90.0, 360.0)
    found = spent_differences([late, late, None], [early, late, early])
    assert found == ((30.0,), (True,), 2)  # at least 30 more; neither reached; not run
    assert spent_differences([early], [late]) == ((-30.0,), (True,), 1)
    assert spent_differences([slow], [late]) == ((), (), 1)  # 90 against at least 40 says nothing
    assert spent_differences([late], [slow]) == ((), (), 1)
    assert spent_differences([early, slow], [early, early]) == ((0.0, 80.0), (False, False), 2)
    assert spent_differences([Spent(np.nan, 1.0)], [early]) == ((), (), 1)
