"""Numbers that remember the runs they were read off, so that every point of a claim leads to its runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self


class Traced(float):
    """A float with the keys of its runs; sums, differences, products and quotients have those of both sides.

    Example:
        >>> (Traced(3.0, ["a"]) - Traced(1.0, ["b"])).runs
        ('a', 'b')
    """

    runs: tuple[str, ...]

    def __new__(cls, value: float, runs: Iterable[str]) -> Self:
        """Return a number with the keys of its runs."""
        made = super().__new__(cls, value)
        made.runs = tuple(dict.fromkeys(runs))
        return made

    def _with(self, value: Any, other: object) -> Any:
        return value if value is NotImplemented else Traced(value, (*self.runs, *runs_of(other)))

    def __add__(self, other: Any) -> Any:
        return self._with(super().__add__(other), other)

    def __sub__(self, other: Any) -> Any:
        return self._with(super().__sub__(other), other)

    def __rsub__(self, other: Any) -> Any:
        return self._with(super().__rsub__(other), other)

    def __mul__(self, other: Any) -> Any:
        return self._with(super().__mul__(other), other)

    def __truediv__(self, other: Any) -> Any:
        return self._with(super().__truediv__(other), other)

    __radd__, __rmul__ = __add__, __mul__


def runs_of(value: object) -> tuple[str, ...]:
    """Return the keys of the runs behind a number; none if it is not traced."""
    return value.runs if isinstance(value, Traced) else ()
