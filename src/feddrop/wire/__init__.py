"""The byte format of what travels between server and devices."""

from feddrop.wire.frame import DTYPES, HEADER_BYTES, Header, decode, encode, frame_bytes, parse

__all__ = ["DTYPES", "HEADER_BYTES", "Header", "decode", "encode", "frame_bytes", "parse"]
