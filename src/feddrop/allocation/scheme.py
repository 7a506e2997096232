"""The interface of allocation schemes: small objects with settings, a name and ``solve``."""

from __future__ import annotations

from typing import ClassVar, Protocol

from feddrop.allocation.solution import Allocation, AnyProblem


class Scheme(Protocol):
    """A way to choose rates and shares.

    Attributes:
        name: its name in TOML and on the command line.
    """

    name: ClassVar[str]

    def solve(self, problem: AnyProblem, policy: str = "error") -> Allocation:
        """Allocate one round or a batch of rounds.

        Args:
            problem: costs, deadline and budgets.
            policy: what to do if no allocation meets the constraints; see :func:`feddrop.allocation.allocate`.
        """
        ...
