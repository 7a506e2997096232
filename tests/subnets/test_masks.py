import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feddrop.errors import ConfigError
from feddrop.seeds import derive, philox_words
from feddrop.subnets.masks import check_rate, kept_count, kept_positions, smallest


def slow_positions(seed: int, name: str, size: int, keep: float, count: str) -> list[int]:
    """The documented choice, one position at a time."""
    draws = [int(word) for word in philox_words(derive(seed, name), size)]
    if count == "bernoulli":
        kept = [i for i in range(size) if draws[i] < int(keep * 2**32)]
        return kept or [draws.index(min(draws))]
    ranked = sorted(range(size), key=lambda i: (draws[i], i))
    return sorted(ranked[: kept_count(size, keep)])


@given(
    seed=st.integers(0, 2**64 - 1),
    size=st.integers(1, 300),
    keep=st.floats(0.001, 1.0, exclude_max=True),
    count=st.sampled_from(["exact", "bernoulli"]),
)
def test_fast_choice_is_the_slow_one(seed, size, keep, count):
    fast = kept_positions(seed, "layer", size, keep, count)
    assert (list(range(size)) if fast is None else fast.tolist()) == slow_positions(seed, "layer", size, keep, count)


def test_ties_go_to_the_lower_position(monkeypatch):
    monkeypatch.setattr("feddrop.subnets.masks.philox_words", lambda _, __: np.array([5, 3, 5, 5, 9, 5], np.uint32))
    assert kept_positions(0, "x", 6, 0.5).tolist() == [0, 1, 2]


def test_golden_positions():
    assert kept_positions(1, "conv1.weight", 12, 0.5).tolist() == [0, 5, 7, 8, 9, 11]
    assert kept_positions(1, "conv1.weight", 12, 0.25).tolist() == [0, 5, 11]
    assert kept_positions(1, "conv1.weight", 12, 0.75, "bernoulli").tolist() == [0, 1, 3, 4, 5, 6, 7, 8, 9, 11]


def test_exact_keeps_exactly_and_each_position_equally_often():
    hits = np.zeros(100)
    for seed in range(2000):
        positions = kept_positions(seed, "w", 100, 0.3)
        assert len(positions) == 30
        hits[positions] += 1
    assert abs(hits / 2000 - 0.3).max() < 5 * np.sqrt(0.3 * 0.7 / 2000)


def test_bernoulli_keeps_on_average():
    counts = [len(kept_positions(seed, "w", 1000, 0.7, "bernoulli")) for seed in range(300)]
    assert abs(np.mean(counts) - 700) < 4
    assert 8 < np.std(counts) < 21


def test_all_kept_is_none_and_something_is_always_kept():
    assert kept_positions(0, "w", 10, 1.0) is None
    for count in ("exact", "bernoulli"):
        assert len(kept_positions(0, "w", 10, 1e-9, count)) == 1


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5, float("nan"), "0.3", None])
def test_a_rate_outside_the_range_is_refused(rate):
    with pytest.raises(ConfigError, match=r"\[0, 1\)"):
        check_rate(rate)


@pytest.mark.parametrize("size", [2**11, 2**11 + 1, 10_080, 2**16, 2**16 + 1, 150_001])
@pytest.mark.parametrize("keep", [1e-4, 0.3, 0.5, 0.999])
@pytest.mark.parametrize("spreads", [4.0, 0.05])  # the narrow window misses the threshold and has to fall back
def test_a_window_around_the_threshold_finds_what_sorting_all_words_finds(monkeypatch, size, keep, spreads):
    monkeypatch.setattr("feddrop.subnets.masks._SPREADS", spreads)
    kept = kept_count(size, keep)
    for key in range(3):
        words = philox_words(key, size)
        expected = np.sort(np.argsort(words, kind="stable")[:kept])
        np.testing.assert_array_equal(smallest(key, size, kept), expected)


def test_ties_inside_the_window_go_to_the_lower_position(monkeypatch):
    words = (philox_words(3, 20_000) >> 26 << 26).astype(np.uint32)  # 64 different words
    monkeypatch.setattr("feddrop.subnets.masks._CHUNK", 9_000)
    monkeypatch.setattr("feddrop.subnets.masks.philox_chunks", lambda *_: iter((words[:9_000], words[9_000:])))
    monkeypatch.setattr("feddrop.subnets.masks._SPREADS", 20.0)
    expected = np.sort(np.argsort(words, kind="stable")[:7_001])
    np.testing.assert_array_equal(smallest(3, 20_000, 7_001), expected)
