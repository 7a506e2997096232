"""Masks coded by their gaps: the slow twin, sizes beside the entropy, the promised bound, a golden frame, and
hostile bytes.

``python tests/wire/test_gaps.py`` writes the golden frame; a change of it is a new version of the format.
"""

from __future__ import annotations

import math
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from feddrop import wire
from feddrop.errors import FrameError
from feddrop.subnets.piece import full_piece
from feddrop.wire import Header, gaps
from feddrop.wire.sections import pack_sections, read_sections, sections_bytes, unpack_sections
from support.mask_code import mask_data_bytes, slow_code, slow_read

GOLDEN = Path(__file__).parents[1] / "golden" / "job-masks.frame"
FOREVER = 1 << 60
BITS, TRUE_GAPS, FALSE_GAPS = 0, 0x40, 0x20


def random_mask(size: int, share: float, seed: int = 0):
    return np.random.default_rng(seed).permutation(size) < round(share * size)


@st.composite
def masks(draw):
    """Runs of random densities, as layers have: from nothing marked to everything."""
    runs = draw(st.lists(st.tuples(st.integers(0, 1500), st.sampled_from([0, 0.01, 0.1, 0.5, 0.9, 1])), max_size=5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    return np.concatenate([np.zeros(0, bool)] + [rng.random(length) < share for length, share in runs])


def form_of(mask) -> int:
    return pack_sections({"m": torch.from_numpy(mask)})[2]


# The slow twin


@settings(max_examples=150)
@given(masks())
@example(np.zeros(0, bool))
@example(np.ones(1, bool))
@example(np.arange(256 * 4) % 4 == 3)  # the last gap is a chunk of its own
def test_codes_are_those_of_the_slow_twin(mask):
    code = gaps.code_gaps(mask, FOREVER)
    assert code == slow_code(mask)
    assert np.array_equal(gaps.read_gaps(memoryview(code), mask.size), mask)
    assert slow_read(code, mask.size) == mask.tolist()
    assert gaps.code_gaps(mask, len(code)) is None
    assert gaps.code_gaps(mask, len(code) + 1) == code


@settings(max_examples=150)
@given(masks(), st.booleans())
def test_a_mask_travels_in_its_shortest_form(mask, square):
    tensor = torch.from_numpy(mask)
    tensor = tensor[: mask.size // 7 * 7].reshape(7, -1) if square else tensor
    data = pack_sections({"mask": tensor})
    assert len(data) == 8 + 4 * tensor.ndim + (mask_data_bytes(tensor.flatten().tolist()) + 3) // 4 * 4
    back = unpack_sections(data)["mask"]
    assert back.dtype == torch.bool
    assert torch.equal(back, tensor)


def test_the_form_follows_from_the_mask():
    assert [form_of(random_mask(5000, s)) for s in (0.1, 0.5, 0.9)] == [TRUE_GAPS, BITS, FALSE_GAPS]
    assert form_of(np.ones(1, bool)) == form_of(np.zeros(64, bool)) == BITS  # ties and what is tiny stay bits
    halves = np.concatenate([random_mask(4000, 0.02), random_mask(3000, 0.98)])
    assert form_of(halves) == TRUE_GAPS  # layers that differ: shorter than bits though nearly half is kept
    assert form_of(~halves) == FALSE_GAPS


# Sizes


@pytest.mark.parametrize("share", [0.05, 0.1, 0.25, 0.75, 0.9, 0.95])
def test_sizes_are_near_the_entropy(share):
    mask = random_mask(61_706, share)
    bits = 8 * len(pack_sections({"mask": torch.from_numpy(mask)})) / mask.size
    rare = min(share, 1 - share)
    entropy = -rare * math.log2(rare) - (1 - rare) * math.log2(1 - rare)
    assert entropy < bits < 1.03 * entropy
    assert bits < 1.02 * rare * (math.log2(1 / rare) + 1.5)


@settings(max_examples=300)
@given(masks())
def test_no_mask_is_longer_than_promised(mask):
    tensor, marked = torch.from_numpy(mask), int(mask.sum())
    promised = sections_bytes({"mask": ("bool", (mask.size,))}, {"mask": marked})
    assert len(pack_sections({"mask": tensor})) <= promised <= sections_bytes({"mask": ("bool", (mask.size,))})
    assert mask.size / 64 <= 8 * len(gaps.code_gaps(mask, FOREVER))  # what bounds a decoder's memory


@settings(max_examples=100)
@given(st.integers(1, 100_000), st.lists(st.floats(0, 1), min_size=2, max_size=8))
def test_the_promise_does_not_fall_with_what_is_kept(size, shares):
    promised = [gaps.most_bytes(size, round(share * size)) for share in sorted(shares)]
    assert promised == sorted(promised)
    assert gaps.most_bytes(size, size) == (size + 7) // 8


def test_the_promise_is_of_use():
    size = 61_706
    for share in (0.05, 0.1, 0.25):
        sent = mask_data_bytes(random_mask(size, share))
        assert sent <= gaps.most_bytes(size, round(share * size)) < 1.1 * sent


# Golden


GOLDEN_MASKS = {
    "bits": random_mask(100, 0.5),
    "sparse": random_mask(3000, 0.05),
    "dense": random_mask(3000, 0.93).reshape(30, 100),
    "layers": np.concatenate([np.ones(40, bool), random_mask(6000, 0.15), random_mask(3000, 0.004)]),
    "all": np.ones(7000, bool),
}


def golden_frame() -> bytes:
    """Build what the file holds. Tests start from the file: NumPy does not promise the same draws for ever."""
    header = Header(kind="job", round=2, device=1, seed=9, rate=0.5)
    payload = {name: torch.from_numpy(mask) for name, mask in GOLDEN_MASKS.items()}
    return wire.encode(header, {"w": full_piece((2,))}, {"w": torch.tensor([1.0, -2.0])}, payload)


def test_golden_frame():
    data = GOLDEN.read_bytes()
    frame = wire.parse(data)
    assert list(frame.sections) == list(GOLDEN_MASKS)
    forms = {name: section.form for name, section in frame.sections.items()}
    assert forms == {"bits": BITS, "sparse": TRUE_GAPS, "dense": FALSE_GAPS, "layers": TRUE_GAPS, "all": FALSE_GAPS}
    payload = {name: section.tensor() for name, section in frame.sections.items()}
    assert payload["dense"].shape == (30, 100)
    assert wire.encode(frame.header, {"w": full_piece((2,))}, {"w": torch.tensor([1.0, -2.0])}, payload) == data
    for name, section in frame.sections.items():
        if section.form:
            read = slow_read(bytes(section.data), payload[name].numel())
            assert read == (payload[name].flatten() == (section.form == TRUE_GAPS)).tolist()


def test_the_example_of_the_page():
    mask = torch.zeros(200, dtype=torch.bool)
    mask[[3, 80, 190]] = True
    data = pack_sections({"m": mask})
    page = (Path(__file__).parents[2] / "docs" / "frames.md").read_text()
    for part in (data[:4], data[4:8], data[8:12], data[12:16], data[16:20], data[20:21], data[21:]):
        assert f"| `{part.hex(' ')}` |" in page
    assert len(data) == 28


# Hostile


def coded(size=3000, share=0.05) -> bytes:
    return gaps.code_gaps(random_mask(size, share), FOREVER)


def with_head(count: int, data: bytes) -> bytes:
    return struct.pack("<II", count, len(data) - 8) + data[8:]


GOOD = coded()
HOSTILE = {
    "no gaps": (with_head(0, GOOD), "0 gaps"),
    "one gap too few": (with_head(150, GOOD), "head says"),
    "one gap too many": (with_head(152, GOOD), "head says"),
    "4 billion gaps": (with_head(2**32 - 1, GOOD), "claims 4294967295 gaps"),
    "as many gaps as bits": (with_head(8 * (len(GOOD) - 8), GOOD), "low bits|head says|claims"),
    "a large parameter": (GOOD[:8] + b"\7" + GOOD[9:], "parameter above 6"),
    "another parameter": (GOOD[:8] + b"\5" + GOOD[9:], "head says|add up"),
    "a byte too many": (with_head(151, GOOD + b"\0"), "bits after the last"),
    "a byte too few": (with_head(151, GOOD[:-1]), "head says"),
    "a mask of another size": (coded(3001), "add up to 3001 entries; its shape has 3000"),
    "an empty body": (struct.pack("<II", 1, 0), "claims 1 gaps in 0 bytes"),
    "a parameter and nothing else": (struct.pack("<II", 1, 1) + b"\6", "low bits"),
    "a gap without end": (struct.pack("<II", 1, 2) + b"\0\0", "holds 0 gaps"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_codes(what):
    data, message = HOSTILE[what]
    assert slow_read(data, 3000) is None
    with pytest.raises(FrameError, match=message):
        gaps.read_gaps(memoryview(data), 3000)


def as_section(code: int, data: bytes, dims=(3000,)) -> bytes:
    return struct.pack(f"<HBB{len(dims)}I", 1, code, len(dims), *dims) + b"m\0\0\0" + data + bytes(-len(data) % 4)


@pytest.mark.parametrize("code", [0x41, 0x24, 0x60, 0xC0, 0xA0, 0xE0, 0x46])
def test_only_masks_are_coded_and_in_one_form(code):
    assert unpack_sections(as_section(0x40, GOOD))["m"].sum() == 150
    assert unpack_sections(as_section(0x20, GOOD))["m"].sum() == 2850
    with pytest.raises(FrameError, match=r"a section has dtype \d, form 0x"):
        unpack_sections(as_section(code, GOOD))


@pytest.mark.parametrize("length", [len(GOOD) - 4, len(GOOD) + 4, 2**32 - 1])
def test_a_length_that_is_not_there(length):
    with pytest.raises(FrameError, match=r"after the end|padding|head says|bits after"):
        unpack_sections(as_section(0x40, GOOD[:4] + struct.pack("<I", length) + GOOD[8:]))
    with pytest.raises(FrameError, match="after the end"):
        unpack_sections(as_section(0x40, b""))


@pytest.mark.parametrize("dims", [(2**32 - 1,), (2**16, 2**16, 2**15), (0, 5), ()])
def test_a_huge_shape_costs_no_memory(dims):
    tracemalloc.start()
    with pytest.raises(FrameError, match="its shape has"):
        unpack_sections(as_section(0x40, GOOD, dims))
    assert tracemalloc.get_traced_memory()[1] < 1e6
    tracemalloc.stop()


@pytest.mark.parametrize("data", [b"\xff" * 10_000, b"\0" * 9_999 + b"\1"], ids=["many gaps", "one gap"])
def test_memory_is_bounded_by_the_data(data):
    """The two extremes: as many gaps as bits, and one gap as long as can be; both are right codes."""
    count = 8 * len(data) if data[0] else 1
    parameters = bytes(math.ceil(count / 256)) if data[0] else b"\6"
    code = struct.pack("<II", count, len(parameters) + len(data)) + parameters + data
    size = count - 1 if data[0] else 64 * (8 * len(data) - 6 - 1)
    tracemalloc.start()
    assert gaps.read_gaps(memoryview(code), size).sum() == count - 1
    assert tracemalloc.get_traced_memory()[1] < 700 * len(code)
    tracemalloc.stop()


@settings(max_examples=400)
@given(
    st.sampled_from([(300, 0.1), (3000, 0.02), (1200, 0.9)]),
    st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), min_size=1, max_size=4),
    st.integers(-3, 3),
)
def test_changed_bytes_are_read_as_the_slow_twin_reads_them(which, changes, longer):
    """Accepted as the same mask or refused: nothing in between, and no other error."""
    data = bytearray(coded(*which))
    for position, value in changes:
        data[position % len(data)] = value
    data = bytes(data[: len(data) + longer]) + bytes(max(0, longer))
    try:
        sections, _ = read_sections(memoryview(as_section(TRUE_GAPS, data, (which[0],))), 0, 1)
        found = sections["m"].tensor().tolist()
    except FrameError:
        assert slow_read(data, which[0]) is None
        return
    assert found == slow_read(bytes(sections["m"].data), which[0])


if __name__ == "__main__":
    GOLDEN.write_bytes(golden_frame())
