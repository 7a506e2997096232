"""The works of Shakespeare as next-character prediction: every speaking role is a device.

The text is speeches with an empty line between them, each a line with the role's name and a colon, and then what is
said. A role's speeches are joined in their order and cut into sequences of 80 characters; the target of each character
is the one after it. The last tenth of a role's sequences, in the order of the text, is for testing.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from feddrop.errors import DataError

LENGTH = 80
CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
"""The vocabulary: a line's end and all printable characters of ASCII, used or not, so that it never changes."""
NAMES = ("newline", "space", *CHARACTERS[2:])

_LARGEST = 1 << 26
Tokens = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Sequences cut from the text.

    Attributes:
        train: training sequences ``[N, 81]``: a sequence of 80 and the character after each.
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
    """Where the text is looked for and fetched from.

    Attributes:
        folder: where downloads go.
        files: name and checksum of the text as it is fetched.
        names: names that the text goes by in a folder.
        base: address of the folder it is fetched from.
    """

    folder: str = "shakespeare"
    files: Mapping[str, str] = field(
        default_factory=lambda: {"input.txt": "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"}
    )
    names: tuple[str, ...] = ("shakespeare.txt", "shakespeare.txt.gz", "input.txt", "input.txt.gz")
    base: str = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/"

    def find(self, root: Path) -> Path | None:
        """The text, plain or gzipped: ``root`` itself, or in it, or in its folder."""
        if root.is_file():
            return root
        inside = (root / name for name in self.names[:2]), (root / self.folder / name for name in self.names)
        own = (root / name for name in self.names[2:]) if root.name == self.folder else ()
        return next((place for places in (*inside, own) for place in places if place.is_file()), None)

    def read(self, place: Path) -> Text:
        """Read the text and cut it into sequences."""
        return sequences(place, speeches(place, _text(place)))


def speeches(place: Path, text: str) -> dict[str, str]:
    """All that each role says, in the order of the text; roles in the order of their first words."""
    said: dict[str, list[str]] = {}
    for block in text.split("\n\n"):
        name, _, speech = block.strip("\n").partition("\n")
        if not name:
            continue
        if not name.endswith(":") or len(name) > LENGTH:
            raise DataError(
                f"{place}: a speech begins with {name[:40]!r}. It must begin with a line that names the role and ends "
                "with a colon, and an empty line must stand between speeches."
            )
        if speech:  # some roles are named and silent
            said.setdefault(name[:-1], []).append(speech)
    return {role: "\n".join(spoken) for role, spoken in said.items()}


def sequences(place: Path, said: Mapping[str, str]) -> Text:
    """Cut what each role says into sequences; a role with less than one is left out."""
    train, test, roles = [], [], []
    for role, text in said.items():
        tokens = encode(place, text)
        count = (len(tokens) - 1) // LENGTH
        if count == 0:
            continue
        windows = np.lib.stride_tricks.sliding_window_view(tokens, LENGTH + 1)[::LENGTH][:count]
        kept = count if count == 1 else count - max(1, count // 10)
        train.append(windows[:kept])
        test.append(windows[kept:])
        roles.append(role)
    if sum(map(len, test)) == 0:
        raise DataError(f"{place} has no role that says {2 * LENGTH} characters; it is not the text it should be.")
    return Text(
        train=np.concatenate(train),
        test=np.concatenate(test),
        owners=np.repeat(np.arange(len(roles)), [len(windows) for windows in train]),
        roles=tuple(roles),
    )


def encode(place: Path, text: str) -> Tokens:
    """Turn characters into their places in the vocabulary."""
    codes = np.frombuffer(text.encode("utf-32-le"), "<u4").astype(np.int64)
    tokens = np.where(codes == 10, 0, codes - 31)
    bad = np.flatnonzero((codes != 10) & ((codes < 32) | (codes > 126)))
    if bad.size:
        raise DataError(
            f"{place} holds {text[bad[0]]!r}; it may hold printable ASCII characters and line ends only. Replace it."
        )
    return tokens


def _text(place: Path) -> str:
    """Read a text file, plain or gzipped, whatever its line ends."""
    try:
        with place.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        with gzip.open(place) if packed else place.open("rb") as file:
            data = file.read(_LARGEST + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{place} cannot be read ({error}); it is damaged or incomplete: get it again.") from error
    if len(data) > _LARGEST:
        raise DataError(f"{place} holds more than {_LARGEST >> 20} MiB of text; it is not the text it should be.")
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError:
        raise DataError(f"{place} is not UTF-8 text.") from None
