"""The byte format of messages between server and devices."""

from feddrop.wire.frame import DTYPES as DTYPES
from feddrop.wire.frame import HEADER_BYTES as HEADER_BYTES
from feddrop.wire.frame import VERSION as VERSION
from feddrop.wire.frame import Frame as Frame
from feddrop.wire.frame import Header as Header
from feddrop.wire.frame import decode as decode
from feddrop.wire.frame import decode_flat as decode_flat
from feddrop.wire.frame import encode as encode
from feddrop.wire.frame import frame_bytes as frame_bytes
from feddrop.wire.frame import parse as parse
from feddrop.wire.frame import split as split
from feddrop.wire.frame import subnet_digest as subnet_digest
from feddrop.wire.sections import sections_bytes as sections_bytes
