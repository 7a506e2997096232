"""The works of Shakespeare for next-character prediction; every speaking role is an owner.

The text consists of speeches separated by empty lines; each starts with a line that holds the role's name and a colon.
A role's speeches are joined in order and cut into sequences of 80 characters; the target of each character is the next
one. The last tenth of a role's sequences is the test set.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from feddrop.data.archives import damaged
from feddrop.errors import DataError

LENGTH = 80
CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
"""The vocabulary: newline and all printable ASCII characters, used or not, so that it never changes."""
NAMES = ("newline", "space", *CHARACTERS[2:])

_LARGEST = 1 << 26
Tokens = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Sequences cut from the text.

    Attributes:
        train: training sequences ``[N, 81]``: 80 characters and the one after them.
        test: test sequences ``[M, 81]``.
        owners: role of each training sequence ``[N]``.
        roles: name of every role.
    """

    train: Tokens
    test: Tokens
    owners: Tokens
    roles: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shakespeare:
    """Where to find the text (``names``), and from where (``base``) to download which ``files`` with checksums."""

    folder: str = "shakespeare"
    files: Mapping[str, str] = field(
        default_factory=lambda: {"input.txt": "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"}
    )
    names: tuple[str, ...] = ("shakespeare.txt", "shakespeare.txt.gz", "input.txt", "input.txt.gz")
    base: str = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/"

    def find(self, root: Path) -> Path | None:
        """Return the text, plain or gzipped: ``root`` itself, a file in it, or one in its folder ``shakespeare``."""
        if root.is_file():
            return root
        inside = (root / name for name in self.names[:2]), (root / self.folder / name for name in self.names)
        direct = (root / name for name in self.names[2:]) if root.name == self.folder else ()
        return next((place for places in (*inside, direct) for place in places if place.is_file()), None)

    def read(self, place: Path) -> Text:
        """Read the text and cut it into sequences."""
        return sequences(place, speeches(place, _text(place)))


def speeches(place: Path, text: str) -> dict[str, str]:
    """Return the joined speeches of each role, in the order of the text."""
    said: dict[str, list[str]] = {}
    for block in text.split("\n\n"):
        name, _, speech = block.strip("\n").partition("\n")
        if not name:
            continue
        if not name.endswith(":") or len(name) > LENGTH:
            raise DataError(
                f"{place}: a speech starts with {name[:40]!r}; it must start with a line 'ROLE:', after an empty line."
            )
        if speech:  # some roles are named but silent
            said.setdefault(name[:-1], []).append(speech)
    return {role: "\n".join(spoken) for role, spoken in said.items()}


def sequences(place: Path, said: Mapping[str, str]) -> Text:
    """Cut the speeches of each role into sequences; roles too short for one are left out."""
    train, test, roles = [], [], []
    for role, text in said.items():
        tokens = encode_text(place, text)
        count = (len(tokens) - 1) // LENGTH
        if count == 0:
            continue
        windows = np.lib.stride_tricks.sliding_window_view(tokens, LENGTH + 1)[::LENGTH][:count]
        kept = count if count == 1 else count - max(1, count // 10)
        train.append(windows[:kept])
        test.append(windows[kept:])
        roles.append(role)
    if sum(map(len, test)) == 0:
        raise damaged(place, f"no role speaks {2 * LENGTH} characters")
    return Text(
        train=np.concatenate(train),
        test=np.concatenate(test),
        owners=np.repeat(np.arange(len(roles)), [len(windows) for windows in train]),
        roles=tuple(roles),
    )


def encode_text(place: Path, text: str) -> Tokens:
    """Encode characters as their positions in the vocabulary."""
    codes = np.frombuffer(text.encode("utf-32-le"), "<u4").astype(np.int64)
    tokens = np.where(codes == 10, 0, codes - 31)
    bad = np.flatnonzero((codes != 10) & ((codes < 32) | (codes > 126)))
    if bad.size:
        raise DataError(f"{place} holds {text[bad[0]]!r}; only printable ASCII and newlines are allowed. Replace it.")
    return tokens


def _text(place: Path) -> str:
    """Read a text file, plain or gzipped, with any line endings."""
    try:
        with place.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        with gzip.open(place) if packed else place.open("rb") as file:
            data = file.read(_LARGEST + 1)
        text = data.decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise damaged(place, error) from error
    if len(data) > _LARGEST:
        raise damaged(place, f"more than {_LARGEST >> 20} MiB of text")
    return text.replace("\r\n", "\n")
