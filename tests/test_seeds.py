import numpy as np
import pytest

from feddrop.errors import ConfigError
from feddrop.seeds import derive, generator, permutation, philox_chunks, philox_words

M64 = 2**64 - 1


def philox_4x64_10(key: int, counter: int) -> list[int]:
    """The generator as its authors specify it (Salmon et al., 2011), one block at a time."""
    c = [(counter >> (64 * i)) & M64 for i in range(4)]
    k = [key & M64, (key >> 64) & M64]
    for _ in range(10):
        product0, product1 = 0xD2E7470EE14C6C93 * c[0], 0xCA5A826395121157 * c[2]
        c = [(product1 >> 64) ^ c[1] ^ k[0], product1 & M64, (product0 >> 64) ^ c[3] ^ k[1], product0 & M64]
        k = [(k[0] + 0x9E3779B97F4A7C15) & M64, (k[1] + 0xBB67AE8584CAA73B) & M64]
    return c


@pytest.mark.parametrize("key", [0, 1, 14321382303959324032, M64])
def test_words_are_philox_by_its_specification(key):
    raw = [word for block in range(1, 4) for word in philox_4x64_10(key, block)]
    halves = [half for word in raw for half in (word & 0xFFFFFFFF, word >> 32)]
    assert philox_words(key, 24).tolist() == halves
    assert philox_words(key, 7).tolist() == halves[:7]


def test_golden_vectors():
    assert derive(0) == 11730765846984475443
    assert derive(0, "mask", 1, 2) == 14321382303959324032
    assert philox_words(5, 5).tolist() == [888999057, 3151414882, 226028104, 2536266856, 4123169955]
    assert permutation(3, 6).tolist() == [3, 2, 5, 4, 0, 1]


def test_labels_do_not_run_into_each_other():
    seeds = [derive(0), derive(0, ""), derive(0, "a", "bc"), derive(0, "ab", "c"), derive(0, 1), derive(0, "1")]
    seeds += [derive(1), derive(0, 0), derive(0, 256), derive(0, 0, 1), derive(2**100)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed <= M64 for seed in seeds)


def test_permutation_is_one_and_looks_random():
    order = permutation(7, 10_000)
    assert sorted(order) == list(range(10_000))
    assert abs(np.corrcoef(order, np.arange(10_000))[0, 1]) < 0.05


def test_generator_repeats():
    assert generator(9).normal(size=3).tolist() == generator(9).normal(size=3).tolist()


def test_seeds_out_of_range_are_refused():
    for draw in (derive, lambda seed: derive(0, "mask", seed)):
        with pytest.raises(ConfigError, match="is -3; it must be at least 0"):
            draw(-3)
    for draw in (generator, lambda seed: philox_words(seed, 2), lambda seed: permutation(seed, 2)):
        for seed in (-3, 2**128):
            with pytest.raises(ConfigError, match=rf"seed is {seed}; it must be at least 0 and below 2\*\*128"):
                draw(seed)
        draw(2**128 - 1)


@pytest.mark.parametrize("count", [1, 6, 7, 12, 13])
def test_words_in_chunks_are_the_words(count):
    parts = list(philox_chunks(11, count, 6))
    assert [len(part) for part in parts] == [min(6, count - start) for start in range(0, count, 6)]
    assert np.concatenate(parts).tolist() == philox_words(11, count).tolist()


def test_the_generator_that_is_used_again_starts_anew():
    for key in (5, 2**64 - 1, 5, 2**64, 2**127 + 9, 5):
        fresh = np.random.Philox(key=key).random_raw(4).astype("<u8").view("<u4")
        assert philox_words(key, 7).tolist() == fresh[:7].tolist()
