"""The base of the learning methods' settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

from feddrop.config.conversion import to_table
from feddrop.config.fields import Settings
from feddrop.errors import ConfigError, shortened


class MethodSettings(Settings):
    """The learning method and its settings."""

    __slots__ = ()
    section: ClassVar[str] = "method"
    name: ClassVar[str] = ""
    """The method's name in TOML and on the command line."""
    rateless: ClassVar[bool] = False
    """Whether the method has no dropout rate."""
    one_mask: ClassVar[bool] = False
    """Whether all devices train the same sparse network, so that they need the same rate throughout the run."""
    by_rounds: ClassVar[str] = ""
    """The setting, if any, by which the total number of rounds affects every round."""

    named: ClassVar[Callable[..., MethodSettings]]
    """Returns the settings of a method by its name; set by :mod:`feddrop.config.methods`, which has the table."""

    @staticmethod
    def read(value: Any, name: str) -> MethodSettings:
        """Read a settings object, a name, or a table with a name and settings."""
        if isinstance(value, MethodSettings):
            return value
        table = dict(value) if isinstance(value, Mapping) else {"name": value}
        which = table.pop("name", "feddrop")
        if not isinstance(which, str):
            raise ConfigError(
                f"{name} is {shortened(value)}; it must be a name, a table, or settings such as feddrop.FedDrop(). "
                "To use your own method, pass it as feddrop.run(..., method=...)."
            )
        return MethodSettings.named(which, **table)

    def to_table(self) -> dict[str, Any]:
        """Return the method's name and settings as plain values."""
        return {"name": self.name, **to_table(self)}

    def fitted(self, *, sizes_needed: bool) -> MethodSettings:  # noqa: ARG002
        """Return the settings with the defaults that suit a run which needs the size of a subnet in advance, or not."""
        return self

    def impossible(self, rounds: int, devices: int | None) -> Iterator[str]:  # noqa: ARG002
        """Yield one message for each setting that a run of this many rounds and devices (None if unknown) rules out."""
        yield from ()

    def notices(self, rounds: int) -> list[str]:  # noqa: ARG002
        """Return one line for each step of the method that a run of this many rounds never reaches."""
        return []

    def remark(self, highest: float) -> str:  # noqa: ARG002
        """Return one line of advice if the highest rate of a round is one that the method does not handle well."""
        return ""
