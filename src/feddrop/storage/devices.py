"""The table of devices: one row per device per round, in Parquet files.

Rows are collected in memory. After :data:`BLOCK` rows, or at the end of the run, they become a file
``devices/rounds-000001-000041.parquet``, which is never changed; the line of its last round holds its first round and
its digest. Until then, every checkpoint carries the rows, so that a kill costs no more of them than of the network.
Importing pyarrow takes 0.2 seconds and 50 MB, so it is imported only to write or decode rows.
"""

from __future__ import annotations

import io
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from feddrop.config.parsing import json_value
from feddrop.errors import RunError, clean, one_of
from feddrop.storage.files import digest, os_errors, read_whole, write_atomically
from feddrop.storage.records import COLUMNS, DeviceRecord, RoundRecord

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK = 4096
"""Rows from which a block of rounds is closed: encoding them again in every round takes 3 ms."""

DEVICES = "devices"
"""The folder of the files, and the group of a checkpoint that holds the rows of the open block."""

_NAME = re.compile(r"rounds-(\d{6,10})-(\d{6,10})\.parquet")


class DeviceBlock(NamedTuple):
    """A file of devices: its first and last round, and the BLAKE2b digest of its bytes."""

    first: int
    last: int
    digest: str

    @property
    def name(self) -> str:
        """The name of the file in the folder ``devices``."""
        return f"rounds-{self.first:06d}-{self.last:06d}.parquet"

    def read(self, folder: Path) -> bytes:
        """Read the file; RunError if it is missing or differs from what was written."""
        path, data, why = folder / self.name, b"", "its checksum does not match"
        with os_errors("read", path):
            try:
                data = read_whole(path)
            except FileNotFoundError:
                why = "it is missing"
        if digest(data) != self.digest:
            raise RunError(f"{clean(path)} is damaged: {why}. Restore it from a backup.")
        return data


class DeviceWriter:
    """Collects the rows of a run and writes the files into a folder, which is created with the first one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: tuple[int, pa.Table | bytes] = (1, b"")
        self._next = self._open

    def add(self, record: RoundRecord, *, last: bool = False) -> tuple[bytes, DeviceBlock | None]:
        """Add the devices of a round; return the rows of the open block, and the block if this round closed it.

        They count from :meth:`commit` on, so that a round that could not be saved can be repeated.
        """
        import pyarrow

        first, before = self._open
        if isinstance(before, bytes):
            before = decode(before, "the checkpoint") if before else _schema().empty_table()
        table = pyarrow.concat_tables([before, to_table([record])]).combine_chunks()
        data = encode(table)
        if not last and len(table) < BLOCK:
            self._next = first, table
            return data, None
        block = DeviceBlock(first, record.round, digest(data))
        write_atomically(self._folder / block.name, data)
        self._next = record.round + 1, b""
        return b"", block

    def commit(self) -> None:
        """Apply what was added."""
        self._open = self._next

    def restore(self, blocks: Sequence[DeviceBlock], rows: bytes) -> None:
        """Continue after these blocks with these rows of the open one; other files are removed."""
        self._open = blocks[-1].last + 1 if blocks else 1, rows
        remove(self._folder, {block.name for block in blocks})


class DeviceTable:
    """The devices of all rounds of a run, read when they are asked for.

    Args:
        folder: the folder of the files.
        blocks: the files, in order.
        rows: the rows after the last file, from a checkpoint.
    """

    def __init__(self, folder: Path, blocks: Sequence[DeviceBlock], rows: bytes) -> None:
        self._folder, self.blocks, self._rows = folder, tuple(blocks), rows
        self._known: tuple[int, dict[int, tuple[DeviceRecord, ...]]] = (-1, {})

    def __repr__(self) -> str:
        return f"DeviceTable({str(self._folder)!r})"

    def check(self) -> None:
        """Raise a RunError if a file is missing or damaged."""
        for block in self.blocks:
            block.read(self._folder)

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the table, or some of its columns, as a ``pyarrow.Table`` with nulls for unknown values."""
        import pyarrow

        for name in columns or ():
            one_of("a column of the devices", name, COLUMNS)
        return pyarrow.concat_tables([_schema(columns).empty_table(), *self.parts(columns)])

    def parts(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Yield the table in parts of some thousand rows, so that it need not be held in full."""
        for number in range(self._parts):
            yield self._part(number, columns)

    def of_round(self, round_: int) -> tuple[DeviceRecord, ...]:
        """Return the devices of a round; the block that holds it is kept for the next call."""
        part = bisect_left([block.last for block in self.blocks], round_)
        if self._known[0] != part:
            self._known = part, (_by_round(self._part(part)) if part < self._parts else {})
        return self._known[1].get(round_, ())

    @property
    def _parts(self) -> int:
        return len(self.blocks) + bool(self._rows)

    def _part(self, number: int, columns: Sequence[str] | None = None) -> pa.Table:
        if number < len(self.blocks):
            block = self.blocks[number]
            return decode(block.read(self._folder), str(self._folder / block.name), columns)
        return decode(self._rows, "the last checkpoint", columns)


class RoundDevices(Sequence[DeviceRecord]):
    """The devices of one round of a loaded run; read from the files at the first use."""

    __slots__ = ("_round", "_table")

    def __init__(self, table: DeviceTable, round_: int) -> None:
        self._table, self._round = table, round_

    @overload
    def __getitem__(self, index: int) -> DeviceRecord: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[DeviceRecord, ...]: ...
    def __getitem__(self, index: int | slice) -> DeviceRecord | tuple[DeviceRecord, ...]:
        return self._table.of_round(self._round)[index]

    def __len__(self) -> int:
        return len(self._table.of_round(self._round))

    def __iter__(self) -> Iterator[DeviceRecord]:
        return iter(self._table.of_round(self._round))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, tuple | RoundDevices) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(self._table.of_round(self._round))

    def __repr__(self) -> str:
        return repr(self._table.of_round(self._round))


def to_table(records: Sequence[RoundRecord]) -> pa.Table:
    """Return the devices of rounds as a table; non-finite numbers are unknown."""
    import pyarrow

    schema = _schema()
    names = [one.name for one in fields(DeviceRecord)]
    rows = [(record.round, device) for record in records for device in record.devices]
    columns: dict[str, list[Any]] = {"round": [round_ for round_, _ in rows]}
    columns |= {name: [json_value(getattr(device, name)) for _, device in rows] for name in names}
    return pyarrow.table([pyarrow.array(columns[one.name], one.type) for one in schema], schema=schema)


def encode(table: pa.Table) -> bytes:
    """Return a table as the bytes of a Parquet file; equal tables have equal bytes."""
    from pyarrow import parquet

    sink, few = io.BytesIO(), [name for name, kind in COLUMNS.items() if kind != "float"]
    parquet.write_table(table, sink, compression="zstd", use_dictionary=few, write_statistics=False)
    return sink.getvalue()


def decode(data: bytes, where: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a Parquet file that :func:`encode` wrote, or some of its columns."""
    from pyarrow import ArrowException, BufferReader, parquet

    with suppress(ArrowException, OSError, ValueError):
        file = parquet.ParquetFile(BufferReader(data))
        if file.schema_arrow.equals(_schema()):
            return file.read(columns=columns, use_threads=False)
    raise RunError(f"{clean(where)} holds no table of devices that this version can read.")


def remove(folder: Path, kept: set[str]) -> None:
    """Remove the files of the table except those with these names."""
    for path in list(folder.iterdir()) if folder.is_dir() else ():
        if _NAME.fullmatch(path.name) and path.name not in kept:
            with suppress(OSError):
                path.unlink()
    if not kept:
        with suppress(OSError):  # other files are in it
            folder.rmdir()


def _schema(columns: Sequence[str] | None = None) -> pa.Schema:
    import pyarrow

    chosen = [(name, kind) for name, kind in COLUMNS.items() if columns is None or name in columns]
    return pyarrow.schema([(name, arrow_type(kind)) for name, kind in chosen])


def arrow_type(kind: str) -> pa.DataType:
    """Return the type of a column by the name of its Python type."""
    import pyarrow

    return {"int": pyarrow.int64(), "float": pyarrow.float64(), "str": pyarrow.string()}[kind]


def _by_round(table: pa.Table) -> dict[int, tuple[DeviceRecord, ...]]:
    """Return the records of a table by round."""
    found: dict[int, list[DeviceRecord]] = {}
    names = [name for name in COLUMNS if name != "round"]
    columns = [table[name].to_pylist() for name in names]
    for round_, *values in zip(table["round"].to_pylist(), *columns, strict=True):
        found.setdefault(round_, []).append(DeviceRecord(**dict(zip(names, values, strict=True))))
    return {round_: tuple(devices) for round_, devices in found.items()}
