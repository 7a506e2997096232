"""Verdicts on the paper's claims, by the rule of :mod:`feddrop.comparison`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from feddrop.comparison import Answer, Comparison, judge, outcome


class Verdict(NamedTuple):
    """What an experiment says of one claim.

    Attributes:
        claim: name of the claim.
        answers: one per comparison.
        note: what else the reader must know, in a sentence.
        condition: what the outcome depends on; shown beside it.
    """

    claim: str
    answers: tuple[Answer, ...]
    note: str = ""
    condition: str = ""

    @property
    def outcome(self) -> str:
        """Holds, holds in part, undecided or does not hold."""
        return outcome(self.answers)


def verdict(claim: str, comparisons: Sequence[Comparison], note: str = "", condition: str = "") -> Verdict:
    """Judge a claim."""
    return Verdict(claim, judge(comparisons), note, condition)
