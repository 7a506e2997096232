"""The byte format of messages between server and devices."""

from feddrop.wire.frame import (
    DTYPES,
    HEADER_BYTES,
    VERSION,
    Frame,
    Header,
    decode,
    encode,
    frame_bytes,
    parse,
    subnet_digest,
)
from feddrop.wire.sections import sections_bytes

__all__ = [
    "DTYPES",
    "HEADER_BYTES",
    "VERSION",
    "Frame",
    "Header",
    "decode",
    "encode",
    "frame_bytes",
    "parse",
    "sections_bytes",
    "subnet_digest",
]
