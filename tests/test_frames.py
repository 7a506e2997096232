"""Frames: round trips, the size bound, golden files, and bytes from hostile peers."""

from __future__ import annotations

import math
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from feddrop.errors import FrameError
from feddrop.subnets import frames
from feddrop.subnets.frames import HEADER_BYTES, Header
from feddrop.subnets.piece import Piece, whole

GOLDEN = Path(__file__).parent / "golden"
HEADER = Header(kind="update", round=7, device=3, seed=2**63 + 5, rate=0.25, samples=120, loss=1.5)


def example_subnet():
    kept = np.array([0, 2, 3, 7, 11])
    return {
        "conv.weight": Piece(shape=(3, 4), index=kept, sub_shape=(3, 4), scale=1.25),
        "conv.bias": whole((3,)),
        "fc.weight": Piece(shape=(2, 4), index=np.array([1, 2, 5, 6]), sub_shape=(2, 2)),
    }


def example_values():
    values = torch.tensor([0.5, -1.25, 3.0, 0.0, 100.0, 1.0, 2.0, -3.0, 1e-3, -1e-3, 7.5, 0.25])
    return {"conv.weight": values[:5], "conv.bias": values[5:8], "fc.weight": values[8:]}


def with_field(frame: bytes, offset: int, kind: str, value) -> bytes:
    """Change one header field and make the checksum right again, as a hostile peer would."""
    data = bytearray(frame)
    struct.pack_into(kind, data, offset, value)
    struct.pack_into("<I", data, 60, zlib.crc32(bytes(data[64:]), zlib.crc32(bytes(data[:60]))))
    return bytes(data)


@pytest.mark.parametrize("dtype", frames.DTYPES)
def test_round_trip_and_size(dtype):
    subnet, values = example_subnet(), example_values()
    header = Header(**{**{f: getattr(HEADER, f) for f in HEADER.__slots__}, "dtype": dtype})
    data = frames.encode(header, subnet, values)
    frame = frames.parse(data)
    assert frame.header == header
    width = frames.DTYPES[dtype].itemsize
    assert len(data) == HEADER_BYTES + 12 * width + (4 * 3 if dtype == "int8" else 0) <= 12 * width + 128
    back = frames.decode(frame, subnet)
    for name, value in values.items():
        if dtype == "float32":
            assert torch.equal(back[name], value)
        elif dtype == "int8":
            assert (back[name] - value).abs().max() <= value.abs().max() / 127 * 0.5 + 1e-7
        else:
            assert torch.equal(back[name], value.to(frames.DTYPES[dtype]).float())


@pytest.mark.parametrize("dtype", frames.DTYPES)
def test_golden_file(dtype):
    header = Header(**{**{f: getattr(HEADER, f) for f in HEADER.__slots__}, "dtype": dtype})
    data = frames.encode(header, example_subnet(), example_values())
    assert data == (GOLDEN / f"update-{dtype}.frame").read_bytes()


def test_header_layout_is_the_documented_one():
    data = frames.encode(HEADER, example_subnet(), example_values())
    assert data[:8] == b"FDRP" + bytes([1, 1, 0, 0])
    assert struct.unpack_from("<IIQd", data, 8) == (7, 3, 2**63 + 5, 0.25)
    assert struct.unpack_from("<QQf", data, 40) == (12, 120, 1.5)
    assert np.frombuffer(data, "<f4", 12, 64).tolist() == torch.cat(list(example_values().values())).tolist()


def test_masks_travel_only_where_they_are_given():
    masks = {"conv.weight": np.arange(12).reshape(3, 4) % 2 == 0}
    data = frames.encode(HEADER, example_subnet(), example_values(), masks)
    frame = frames.parse(data)
    assert frame.header.masked
    assert len(data) == HEADER_BYTES + 4 + 12 * 4
    read = frames.decode_masks(frame, {"conv.weight": (3, 4)})
    assert (read["conv.weight"] == masks["conv.weight"]).all()
    assert torch.equal(frames.decode(frame, example_subnet(), 12)["conv.bias"], example_values()["conv.bias"])
    plain = frames.parse(frames.encode(HEADER, example_subnet(), example_values()))
    assert frames.decode_masks(plain, {"conv.weight": (3, 4)}) is None
    with pytest.raises(FrameError, match="too short"):
        frames.decode_masks(frame, {"conv.weight": (300, 400)})


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused_at_both_ends(bad):
    values = example_values()
    values["conv.bias"] = torch.tensor([1.0, bad, 2.0])
    with pytest.raises(FrameError, match=r"conv\.bias"):
        frames.encode(HEADER, example_subnet(), values)
    data = with_field(frames.encode(HEADER, example_subnet(), example_values()), HEADER_BYTES + 4 * 6, "<f", bad)
    with pytest.raises(FrameError, match=r"conv\.bias .* not finite"):
        frames.decode(frames.parse(data), example_subnet())


def test_overflow_of_a_small_dtype_is_refused():
    values = example_values() | {"conv.bias": torch.tensor([1.0, 1e5, 2.0])}
    with pytest.raises(FrameError, match="bfloat16"):
        frames.encode(
            Header(kind="update", round=1, device=0, seed=0, rate=0, dtype="float16"), example_subnet(), values
        )


@pytest.mark.parametrize(
    ("offset", "kind", "value", "message"),
    [
        (0, "<4s", b"EVIL", "not a feddrop frame"),
        (4, "<B", 9, "format 9"),
        (5, "<B", 7, "unknown kind"),
        (6, "<B", 5, "unknown kind"),
        (7, "<B", 99, "unknown kind"),
        (24, "<d", 1.0, "rate"),
        (24, "<d", math.nan, "rate"),
        (56, "<f", math.inf, "loss"),
        (40, "<Q", 2**63, "bytes"),
        (40, "<Q", 3, "bytes"),
        (32, "<8s", b"12345678", "another subnet"),
        (6, "<B", 0x80, "another|bytes|expected"),
    ],
)
def test_hostile_headers(offset, kind, value, message):
    data = with_field(frames.encode(HEADER, example_subnet(), example_values()), offset, kind, value)
    with pytest.raises(FrameError, match=message):
        frames.decode(frames.parse(data), example_subnet(), 24)


def test_another_network_is_refused():
    data = frames.encode(HEADER, example_subnet(), example_values())
    other = example_subnet() | {"conv.bias": whole((4,))}
    with pytest.raises(FrameError, match="another subnet"):
        frames.decode(frames.parse(data), other)
    renamed = {("x" + name): piece for name, piece in example_subnet().items()}
    with pytest.raises(FrameError, match="another subnet"):
        frames.decode(frames.parse(data), renamed)


@pytest.mark.parametrize("cut", [0, 1, 63, 64, 65, -1])
def test_truncated_and_oversized(cut):
    data = frames.encode(HEADER, example_subnet(), example_values())
    with pytest.raises(FrameError):
        frames.parse(data[:cut])
    with pytest.raises(FrameError, match="checksum"):
        frames.parse(data + b"\0")
    longer = with_field(data + bytes(4096), 40, "<Q", 12)
    with pytest.raises(FrameError, match="expected"):
        frames.decode(frames.parse(longer), example_subnet())


@settings(max_examples=300)
@given(position=st.integers(0, 10_000), flip=st.integers(1, 255))
def test_any_flipped_byte_is_noticed(position, flip):
    data = bytearray(frames.encode(HEADER, example_subnet(), example_values()))
    data[position % len(data)] ^= flip
    with pytest.raises(FrameError):
        frames.decode(frames.parse(bytes(data)), example_subnet())


@settings(max_examples=300)
@given(st.binary(max_size=200), st.booleans())
def test_random_bytes_never_do_anything_but_frame_error(junk, plausible):
    if plausible:  # right magic, version and checksum; everything else random
        junk = with_field(b"FDRP\x01" + junk + bytes(64), 0, "<4s", b"FDRP")
    try:
        frame = frames.parse(junk)
        frames.decode_masks(frame, {"conv.weight": (3, 4)})
        frames.decode(frame, example_subnet(), 12)
    except FrameError:
        return
    pytest.fail("random bytes were taken for a frame")
