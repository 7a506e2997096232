"""Frames: round trips, the size to the byte, golden files for every kind, and bytes from hostile peers.

``python tests/test_wire.py`` writes the golden files; a change of them is a new version of the format.
"""

from __future__ import annotations

import math
import re
import struct
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from feddrop import wire
from feddrop.errors import FrameError
from feddrop.subnets.piece import Piece, full_piece
from feddrop.wire import HEADER_BYTES, Header, sections
from feddrop.wire.sections import pack_sections, read_sections, sections_bytes, unpack_sections

GOLDEN = Path(__file__).parents[1] / "golden"
UPDATE = Header(kind="update", round=7, device=3, seed=2**63 + 5, rate=0.25, num_samples=120, loss=1.5)
JOB = Header(kind="job", round=7, device=3, seed=2**63 + 5, rate=0.25)
HEADS = {"job": JOB, "update": UPDATE}
PAYLOAD = {
    "mask": torch.arange(19) % 3 == 0,
    "bytes": torch.tensor([[0, 1, 254], [255, 7, 8]], dtype=torch.uint8),
    "steps": torch.tensor([-1, 2**31 - 1], dtype=torch.int32),
    "ids": torch.tensor(-(2**63) + 1, dtype=torch.int64),
    "scores": torch.tensor([[0.5], [-1e30]], dtype=torch.float32),
    "größe:;": torch.tensor([0.25, 65504.0, -0.125], dtype=torch.float16),
    "nothing": torch.empty(0, 3, dtype=torch.float32),
}
REMEMBERED = {"job": ("mask", "scores"), "update": ()}


def example_subnet():
    kept = np.array([0, 2, 3, 7, 11])
    return {
        "conv.weight": Piece(shape=(3, 4), index=kept, sub_shape=(3, 4), scale=1.25),
        "conv.bias": full_piece((3,)),
        "fc.weight": Piece(shape=(2, 4), index=np.array([1, 2, 5, 6]), sub_shape=(2, 2)),
    }


def example_values():
    values = torch.tensor([0.5, -1.25, 3.0, 0.0, 100.0, 1.0, 2.0, -3.0, 1e-3, -1e-3, 7.5, 0.25])
    return {"conv.weight": values[:5], "conv.bias": values[5:8], "fc.weight": values[8:]}


def frame_of(header=UPDATE, payload=None, remembered=()):
    return wire.encode(header, example_subnet(), example_values(), payload, remembered)


def golden(kind: str, dtype: str) -> bytes:
    return frame_of(replace(HEADS[kind], dtype=dtype), PAYLOAD, REMEMBERED[kind])


def repaired(data: bytes) -> bytes:
    """Make the checksum right again, as a hostile peer would."""
    changed = bytearray(data)
    struct.pack_into("<I", changed, 60, zlib.crc32(bytes(changed[64:]), zlib.crc32(bytes(changed[:60]))))
    return bytes(changed)


def with_field(frame: bytes, offset: int, kind: str, value) -> bytes:
    data = bytearray(frame)
    struct.pack_into(kind, data, offset, value)
    return repaired(bytes(data))


# Values


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("dtype", wire.DTYPES)
def test_round_trip_and_size(kind, dtype):
    subnet, values = example_subnet(), example_values()
    header = replace(HEADS[kind], dtype=dtype)
    data = wire.encode(header, subnet, values)
    frame = wire.parse(data)
    assert frame.header == header
    assert not frame.sections
    width = wire.DTYPES[dtype].itemsize
    assert len(data) == HEADER_BYTES + 12 * width + (4 * 3 if dtype == "int8" else 0) <= 12 * width + 128
    assert len(data) == wire.frame_bytes({name: piece.size for name, piece in subnet.items()}, dtype)
    back = wire.decode(frame, subnet)
    for name, value in values.items():
        if dtype == "float32":
            assert torch.equal(back[name], value)
        elif dtype == "int8":
            assert (back[name] - value).abs().max() <= value.abs().max() / 127 * 0.5 + 1e-7
        else:
            assert torch.equal(back[name], value.to(wire.DTYPES[dtype]).float())


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("dtype", wire.DTYPES)
def test_golden_files(kind, dtype):
    """Every kind and dtype, with a payload section of every dtype, and with sections that are remembered."""
    data = (GOLDEN / f"{kind}-{dtype}.frame").read_bytes()
    assert data == golden(kind, dtype)
    frame = wire.parse(data)
    assert frame.header == replace(HEADS[kind], dtype=dtype)
    assert {name for name, section in frame.sections.items() if section.remembered} == set(REMEMBERED[kind])
    for name, tensor in PAYLOAD.items():
        back = frame.sections[name].tensor(PAYLOAD[name] if name in REMEMBERED[kind] else None)
        assert back.dtype == tensor.dtype
        assert torch.equal(back, tensor)
    assert list(wire.decode(frame, example_subnet())) == list(example_subnet())


def test_golden_files_are_all_there_is():
    assert {path.stem for path in GOLDEN.glob("*.frame")} == {
        "job-masks",  # tests/wire/test_gaps.py
        *(f"{kind}-{dtype}" for kind in HEADS for dtype in wire.DTYPES),
    }
    assert {str(tensor.dtype).removeprefix("torch.") for tensor in PAYLOAD.values()} == set(sections.DTYPES)


def test_header_layout_is_the_documented_one():
    data = frame_of(payload={"m": torch.tensor([True, False, True])})
    assert data[:8] == b"FDRP" + bytes([2, 0x10, 1, 0])
    assert struct.unpack_from("<IIQd", data, 8) == (7, 3, 2**63 + 5, 0.25)
    assert data[32:40] == wire.subnet_digest(example_subnet())
    assert struct.unpack_from("<QQf", data, 40) == (12, 120, 1.5)
    assert data[64:68] == struct.pack("<HBB", 1, 0, 1)  # length of the name, dtype, dimensions
    assert data[68:72] == struct.pack("<I", 3)
    assert data[72:76] == b"m\0\0\0"
    assert data[76:80] == bytes([0b10100000, 0, 0, 0])
    assert np.frombuffer(data, "<f4", 12, 80).tolist() == torch.cat(list(example_values().values())).tolist()


def test_the_page_tells_of_this_version():
    page = (Path(__file__).parents[2] / "docs" / "frames.md").read_text()
    assert page.startswith(f"# The frame format, version {wire.VERSION}\n")
    rows = [(int(at), int(size)) for at, size in re.findall(r"^\| (\d+) \| (\d+) \|", page, re.MULTILINE)]
    sizes = [struct.calcsize(f"<{code}") for code in re.findall(r"\d*[a-zA-Z]", wire.frame._LAYOUT.format[1:])]
    assert rows == [(sum(sizes[:n]), size) for n, size in enumerate(sizes)]
    codes = re.search(r"dtype \| (0 bool.*?);", page)[1]
    assert codes == ", ".join(f"{code} {name}" for code, name in enumerate(sections.DTYPES))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused_at_both_ends(bad):
    values = example_values()
    values["conv.bias"] = torch.tensor([1.0, bad, 2.0])
    with pytest.raises(FrameError, match=r"conv\.bias"):
        wire.encode(UPDATE, example_subnet(), values)
    data = with_field(frame_of(), HEADER_BYTES + 4 * 6, "<f", bad)
    with pytest.raises(FrameError, match=r"conv\.bias .* not finite"):
        wire.decode(wire.parse(data), example_subnet())
    for dtype in (torch.float32, torch.float16):
        with pytest.raises(FrameError, match="'s' holds a value that is not finite"):
            frame_of(payload={"s": torch.tensor([bad], dtype=dtype)})
    data = with_field(frame_of(payload={"s": torch.tensor([1.0])}), HEADER_BYTES + 12, "<f", bad)
    with pytest.raises(FrameError, match="not finite"):
        wire.parse(data).sections["s"].tensor()


def test_overflow_of_a_small_dtype_is_refused():
    values = example_values() | {"conv.bias": torch.tensor([1.0, 1e5, 2.0])}
    with pytest.raises(FrameError, match="bfloat16"):
        wire.encode(replace(UPDATE, dtype="float16"), example_subnet(), values)


@pytest.mark.parametrize("scale", [-1.0, math.nan, math.inf, 3e38])
def test_scales_of_8_bit_values_are_checked(scale):
    data = with_field(frame_of(replace(UPDATE, dtype="int8")), HEADER_BYTES, "<f", scale)
    with pytest.raises(FrameError, match=r"finite|negative"):
        wire.decode(wire.parse(data), example_subnet())


@pytest.mark.parametrize(
    ("offset", "kind", "value", "message"),
    [
        (0, "<4s", b"EVIL", "not a feddrop frame"),
        (4, "<B", 1, "format 1"),
        (4, "<B", 9, "format 9"),
        (5, "<B", 0x20, "unknown kind 2"),
        (5, "<B", 0x14, "dtype 4"),
        (6, "<H", 1, "section"),
        (6, "<H", 65535, "section"),
        (24, "<d", 1.0, "rate"),
        (24, "<d", -0.1, "rate"),
        (24, "<d", math.nan, "rate"),
        (56, "<f", math.inf, "loss"),
        (56, "<f", math.nan, "loss"),
        (40, "<Q", 2**63, "bytes"),
        (40, "<Q", 3, "bytes"),
        (32, "<8s", b"12345678", "another subnet"),
    ],
)
def test_hostile_headers(offset, kind, value, message):
    with pytest.raises(FrameError, match=message):
        wire.decode(wire.parse(with_field(frame_of(), offset, kind, value)), example_subnet())


def test_another_network_is_refused():
    for other in (
        example_subnet() | {"conv.bias": full_piece((4,))},
        {("x" + name): piece for name, piece in example_subnet().items()},
        dict(reversed(example_subnet().items())),
    ):
        with pytest.raises(FrameError, match="another subnet"):
            wire.decode(wire.parse(frame_of()), other)


def test_a_digest_is_not_fooled_by_names():
    """Names may hold any sign: what one tensor is called never reads as two."""
    one, two = full_piece((3,)), full_piece((4,))
    named = [{"a:3;b": two}, {"a": one, "b": two}, {"a;3:b": two}, {"b": two, "a": one}, {"a:": one, "b": two}]
    named += [
        {"a": full_piece((3, 4))},
        {"a": full_piece((34,))},
        {"a": Piece(shape=(3, 4), index=np.arange(3), sub_shape=(3, 4))},
    ]
    assert len({wire.subnet_digest(subnet) for subnet in named}) == len(named)


@pytest.mark.parametrize("cut", [0, 1, 63, 64, 65, -1])
def test_truncated_and_oversized(cut):
    data = frame_of()
    with pytest.raises(FrameError):
        wire.parse(data[:cut])
    with pytest.raises(FrameError, match="checksum"):
        wire.parse(data + b"\0")
    with pytest.raises(FrameError, match="expected"):
        wire.decode(wire.parse(repaired(data + bytes(4096))), example_subnet())


# Sections


def test_sections_are_as_long_as_was_promised():
    specs = {name: (str(t.dtype).removeprefix("torch."), tuple(t.shape)) for name, t in PAYLOAD.items()}
    assert len(pack_sections(PAYLOAD)) == sections_bytes(specs)
    assert len(golden("update", "float32")) - len(frame_of()) == sections_bytes(specs)
    back = unpack_sections(pack_sections(PAYLOAD))
    assert list(back) == list(PAYLOAD)
    assert all(torch.equal(back[name], tensor) for name, tensor in PAYLOAD.items())


def test_a_device_that_remembers_something_else_notices():
    frame = wire.parse(golden("job", "float32"))
    for other in (None, ~PAYLOAD["mask"], PAYLOAD["mask"][:-1], PAYLOAD["mask"].to(torch.uint8), PAYLOAD["scores"]):
        with pytest.raises(FrameError, match="remembers another tensor"):
            frame.sections["mask"].tensor(other)


def test_what_a_section_cannot_hold_is_refused():
    with pytest.raises(FrameError, match="float64"):
        pack_sections({"x": torch.zeros(1, dtype=torch.float64)})
    with pytest.raises(FrameError, match="has a name of 70000 bytes"):
        pack_sections({"x" * 70000: torch.zeros(1)})
    with pytest.raises(FrameError, match="dimensions"):
        pack_sections({"x": torch.zeros([1] * 40)})
    with pytest.raises(FrameError, match="at most 65535"):
        frame_of(payload={str(i): torch.zeros(0) for i in range(65536)})


def section(name=b"s", code=1, dims=(2,), data=b"\1\2\0\0", length=None, rank=None) -> bytes:
    """A section as a hostile peer writes it."""
    head = struct.pack("<HBB", len(name) if length is None else length, code, len(dims) if rank is None else rank)
    return head + struct.pack(f"<{len(dims)}I", *dims) + name + bytes(-len(name) % 4) + data


def read_all(data: bytes) -> None:
    frame = wire.parse(data)
    for one in frame.sections.values():
        one.tensor(PAYLOAD["mask"])
    wire.decode(frame, example_subnet())


HUGE = 2**32 - 1
HOSTILE = {
    "a name longer than the frame": section(length=65535),
    "more dimensions than there are": section(rank=255),
    "a product beyond 64 bits": section(dims=(HUGE, HUGE, HUGE)),
    "a product far beyond": section(dims=(HUGE,) * 255),
    "a product that wraps to a small one": section(code=4, dims=(2**31, 2**31, 4)),
    "an empty one of absurd dimensions": section(dims=(0, HUGE, HUGE, HUGE), data=b""),
    "more data than there are": section(dims=(2**31,)),
    "an unknown type": section(code=6),
    "an unknown type, remembered": section(code=0x86, data=bytes(8)),
    "a name that is not UTF-8": section(name=b"\xff\xfe"),
    "padding of a name that is not zero": section()[:9] + b"x\0\0" + section()[12:],
    "padding of data that is not zero": section(data=b"\1\2\3\0"),
    "bits behind the last one": section(code=0, dims=(3,), data=b"\xff\0\0\0"),
    "a digest that is cut": section(code=0x81, data=b""),
    "too many dimensions": section(dims=(1,) * 40, data=b"\1\0\0\0"),
    "nothing at all": b"",
    "half a head": b"\1\0",
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_sections(what):
    """Right values stand behind them: only the section is wrong."""
    data = bytearray(frame_of())
    data[64:64] = HOSTILE[what]
    data[6:8] = struct.pack("<H", 1)
    with pytest.raises(FrameError):
        read_all(repaired(bytes(data)))
    if HOSTILE[what]:
        with pytest.raises(FrameError):
            unpack_sections(HOSTILE[what])


def test_two_sections_of_one_name_are_refused():
    twice = section() + section()
    with pytest.raises(FrameError, match="two sections are named 's'"):
        read_sections(memoryview(twice), 0, 2)
    with pytest.raises(FrameError, match="two sections are named 's'"):
        unpack_sections(twice)


# Fuzz


@settings(max_examples=300)
@given(position=st.integers(0, 10_000), flip=st.integers(1, 255))
def test_any_flipped_byte_is_noticed(position, flip):
    data = bytearray(golden("update", "float32"))
    data[position % len(data)] ^= flip
    with pytest.raises(FrameError):
        wire.parse(bytes(data))


@settings(max_examples=300)
@given(st.binary(max_size=200), st.booleans())
def test_random_bytes_never_do_anything_but_frame_error(junk, plausible):
    if plausible:  # right magic, version and checksum; everything else random
        junk = repaired(b"FDRP\x02" + junk + bytes(64))
    with pytest.raises(FrameError):
        read_all(junk)


@settings(max_examples=500)
@given(
    st.sampled_from([(kind, dtype) for kind in HEADS for dtype in wire.DTYPES]),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=6),
    st.integers(0, 40),
)
def test_frames_changed_by_one_who_knows_the_checksum(which, changes, cut):
    """Taken whole or refused whole: whatever else happens is a FrameError."""
    data = bytearray(golden(*which))
    for position, value in changes:
        data[position % len(data)] = value
    try:
        read_all(repaired(bytes(data[: len(data) - cut])))
    except FrameError:
        return


if __name__ == "__main__":
    for kind in HEADS:
        for dtype in wire.DTYPES:
            (GOLDEN / f"{kind}-{dtype}.frame").write_bytes(golden(kind, dtype))
